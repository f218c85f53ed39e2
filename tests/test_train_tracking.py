"""Trackers: W&B never asks, runs end whatever happens, metrics.jsonl is complete."""

import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
import yaml  # type: ignore[import-untyped]
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from wandb.proto.wandb_internal_pb2 import Record

from foredraft.train import DistillConfig, distill
from foredraft.train.loop import Run
from foredraft.train.tracking import read_metrics
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama


class FakeRun:
    """A W&B run that keeps what it is told."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.defined: dict[str, str] = {}
        self.finished = 0

    def define_metric(self, name: str, summary: str) -> None:
        self.defined[name] = summary

    def of(self, prefix: str) -> list[tuple[int, dict[str, Any]]]:
        """Return what was logged under names that begin so."""
        return [
            (step, values) for step, values in self.logged if next(iter(values)).startswith(prefix)
        ]

    def log(self, values: dict[str, Any], step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


class FakeWandb:
    """What replaces W&B's own functions, and the arguments that they were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[FakeRun] = []
        self.options: list[dict[str, Any]] = []
        self.hyperparameters: dict[str, Any] = {}
        monkeypatch.setattr(wandb, "init", self._init)
        monkeypatch.setattr(wandb, "config", SimpleNamespace(update=self._update))

    def _init(self, **options: Any) -> FakeRun:
        self.options.append(options)
        self.runs.append(FakeRun())
        return self.runs[-1]

    def _update(self, values: dict[str, Any], **_: Any) -> None:
        self.hyperparameters = values


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeWandb:
    """Return a W&B without network, on a machine without a key."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)
    return FakeWandb(monkeypatch)


def run(tmp_path: Path, **changes: Any) -> Any:
    target = tiny_llama()
    corpus = tmp_path / "corpus"
    if not corpus.exists():
        rows = [*random_rows(8), *random_rows(2, split="dev", seed=1)]
        write_corpus_folder(corpus, target, rows)
    fields = {
        "target": "toy", "corpus": str(corpus), "output": str(tmp_path / "run"), "layers": 1,
        "head_tokens": 60, "steps": 4, "batch_rows": 2, "eval_every": 2, "save_every": 2,
        "eval_prompts": 2, "eval_max_tokens": 6, "report_to": "wandb",
    }  # fmt: skip
    config = DistillConfig(**{**fields, **changes})
    return distill(config, target=target, tokenizer=byte_tokenizer())


def test_without_a_key_wandb_is_offline_and_gets_every_metric(
    fake: FakeWandb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B77."""
    result = run(tmp_path, run_name="a name")
    options = fake.options[0]
    assert (options["mode"], options["dir"]) == ("offline", str(tmp_path / "run"))
    assert (options["project"], options["name"]) == ("foredraft", "a name")
    assert "no W&B key" in capsys.readouterr().out
    extra = [*fake.runs[0].of("best/"), *fake.runs[0].of("eval/samples")]
    metrics = [pair for pair in fake.runs[0].logged if pair not in extra]
    assert [{"step": step, **values} for step, values in metrics] == result.curve
    assert fake.runs[0].finished == 1
    assert fake.hyperparameters["learning_rate"] == 1e-3
    assert {"target_fingerprint", "train_tokens"} <= fake.hyperparameters.keys()


@pytest.mark.parametrize("where", ["environment", "netrc"])
def test_with_a_key_a_resumed_run_goes_on_in_the_same_wandb_run(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """B78, B79: the run is ended though training fails, and taken up under its id."""
    if where == "environment":
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    else:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    original = Run.step

    def fail_at_three(self: Run) -> dict[str, float]:
        if self.state.step == 3:
            raise RuntimeError("out of luck")
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", fail_at_three)
        with pytest.raises(RuntimeError, match="out of luck"):
            run(tmp_path)
    assert fake.runs[0].finished == 1
    result = run(tmp_path)
    first, second = fake.options
    assert first["mode"] == second["mode"] == "online"
    assert first["id"] == second["id"]
    assert second["resume"] == "allow"
    assert read_metrics(tmp_path / "run", until=4) == result.curve
    assert [row["step"] for row in result.curve if "train/loss" in row] == [1, 2, 3, 4]


def test_offline_too_an_attempt_goes_on_with_the_run_where_sync_can_join_them(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B79: an older W&B ignores `resume`, and of two runs with one id the second would replace the first."""
    run(tmp_path)
    run(tmp_path)
    record = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())
    for options in fake.options:
        assert (options["id"], options["resume"]) == (record["id"], "allow")
    monkeypatch.setattr(wandb, "__version__", "0.30.2")
    run(tmp_path)
    assert "id" not in fake.options[2]
    assert fake.options[2]["group"] == record["id"]


def test_the_users_own_wandb_mode_is_kept(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run(tmp_path)
    assert fake.options[0]["mode"] == "disabled"


def test_in_a_sweep_the_agent_says_which_run_it_is(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")
    run(tmp_path)
    assert {"id", "group", "resume"}.isdisjoint(fake.options[0])


def test_a_sweep_can_raise_the_best_alpha_and_tau(fake: FakeWandb, tmp_path: Path) -> None:
    """The last that is logged is the best checkpoint's; the summary keeps the highest of each."""
    result = run(tmp_path)
    told = fake.runs[0]
    assert told.defined == {"eval/T1/alpha_tf": "max", "eval/tau": "max"}
    best = [values for _, values in told.of("best/")]
    assert len(best) == 4  # evaluations: as cut, aligned, at steps 2 and 4
    names = {"best/alpha_tf": "eval/T1/alpha_tf", "best/tau": "eval/tau"}
    assert best[-1] == {name: result.best[of] for name, of in names.items()}
    alphas = [values["best/alpha_tf"] for values in best]
    assert alphas == sorted(alphas)


def test_answers_are_shown_with_how_each_token_came(fake: FakeWandb, tmp_path: Path) -> None:
    """In W&B as a table, and as a page beside the checkpoint they were decoded with."""
    run(tmp_path)
    tables = fake.runs[0].of("eval/samples")
    assert [step for step, _ in tables] == [0, 0, 2, 4]
    table = tables[-1][1]["eval/samples"]
    assert table.columns == ["prompt", "temperature", "answer", "tokens per forward"]
    assert len(table.data) == 4  # two prompts at two temperatures
    assert all(isinstance(row[2], wandb.Html) for row in table.data)
    page = (tmp_path / "run" / "latest" / "samples.html").read_text()
    assert all(row[2].html.split("<div", 1)[1] in page for row in table.data)


def test_another_tracker_gets_the_metrics_and_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plain(GeneralTracker):  # type: ignore[misc]  # untyped
        name = "plain"
        requires_logging_directory = False

        def __init__(self) -> None:
            self.logged: list[dict[str, Any]] = []

        @property
        def tracker(self) -> Any:
            return self

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            pass

        def log(self, values: dict[str, Any], step: int | None, **_: Any) -> None:
            self.logged.append(values)

    plain = Plain()
    monkeypatch.setattr(
        Accelerator, "init_trackers", lambda self, *a, **k: self.trackers.append(plain)
    )
    result = run(tmp_path)
    told = [values for values in plain.logged if "best/alpha_tf" not in values]
    assert told == [{name: row[name] for name in row if name != "step"} for row in result.curve]
    assert (tmp_path / "run" / "latest" / "samples.html").is_file()


def test_a_tracker_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"report_to must be one of none, .*got 'nonsense'"):
        run(tmp_path, report_to="nonsense")


def run_record(path: Path) -> Any:
    """Return what a .wandb file says of its run: records in blocks of 32 KiB, behind a header of 7 bytes."""
    data, place, record = path.read_bytes(), 7, b""
    while True:
        if place % 32768 > 32768 - 7:
            place += -place % 32768
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found = Record.FromString(record)
            if found.WhichOneof("record_type") == "run":
                return found.run
            record = b""


def test_wandb_itself_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B79: the real package, without key, network and keyboard; twice, in folders that are one run's."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run(tmp_path)
    run(tmp_path)
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.parent for file in files}) == 2
    record = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())
    for file in files:
        told = run_record(file)
        assert (told.run_id, told.resume) == (record["id"], True)  # what `wandb sync` joins
