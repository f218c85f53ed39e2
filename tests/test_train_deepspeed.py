"""What the loop asks of accelerate holds for a DeepSpeed engine too, and a run under one goes on exactly.

DeepSpeed is not installed here: an engine that does what accelerate calls of it stands for it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper, DeepSpeedOptimizerWrapper

from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.deepspeed_engine import settle_deepspeed
from foredraft.train.loop import Run
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_gpt2, tiny_llama

ROWS = [*random_rows(12), *random_rows(3, split="dev", seed=1)]


class Engine(torch.nn.DataParallel[Any]):
    """What accelerate calls of a DeepSpeed engine; of the class of a wrapper that accelerate unwraps."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(module)
        self.optimizer, self.calls, self.norm = optimizer, list[str](), 0.0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.calls.append("last" if is_boundary else "more")

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self.calls.append("step")
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def get_global_grad_norm(self) -> float:
        return self.norm

    def save_checkpoint(self, folder: str, tag: str) -> None:
        self.calls.append("save")
        (Path(folder) / tag).mkdir()
        torch.save(
            (self.module.state_dict(), self.optimizer.state_dict()), Path(folder) / tag / "state.pt"
        )

    def load_checkpoint(self, folder: str, tag: str) -> None:
        self.calls.append("load")
        weights, moments = torch.load(Path(folder) / tag / "state.pt", weights_only=True)
        self.module.load_state_dict(weights)
        self.optimizer.load_state_dict(moments)


class UnderDeepSpeed(Accelerator):  # type: ignore[misc]
    """The accelerator that examples/accelerate/deepspeed.yaml asks for."""

    engines: ClassVar[list[Engine]] = []
    stage = 2

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.state.distributed_type = DistributedType.DEEPSPEED
        self.state.deepspeed_plugins = SimpleNamespace(
            zero_stage=self.stage, deepspeed_config={}, selected=True
        )

    def prepare(self, model: Any, optimizer: Any) -> Any:
        engine = Engine(model, optimizer)
        self.engines.append(engine)
        self._models.append(engine)
        self.deepspeed_engine_wrapped = DeepSpeedEngineWrapper(engine)
        wrapper = DeepSpeedOptimizerWrapper(optimizer)
        self.state.distributed_type = DistributedType.DEEPSPEED  # the wrapper looked anew
        return engine, wrapper


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Engine]]:
    """Train under DeepSpeed, and list the engines that come."""
    monkeypatch.setattr("foredraft.train.distillation.Accelerator", UnderDeepSpeed)
    monkeypatch.setattr(UnderDeepSpeed, "engines", [])
    AcceleratorState._reset_state()
    yield UnderDeepSpeed.engines
    AcceleratorState._reset_state()


def run(folder: Path, target: Any, **changes: Any) -> DistillResult:
    corpus = folder / "corpus"
    if not corpus.exists():
        write_corpus_folder(corpus, target, ROWS)
    fields: dict[str, Any] = {
        "target": "toy", "corpus": str(corpus), "output": str(folder / "run"), "layers": 1,
        "head_tokens": 100, "steps": 3, "batch_rows": 5, "learning_rate": 3e-3, "report_to": "none",
        "eval_prompts": 0, "serving_temperatures": (),
    }  # fmt: skip
    config = DistillConfig(**{**fields, **changes})
    return distill(config, target=target, tokenizer=byte_tokenizer())


def losses(result: DistillResult) -> list[float]:
    return [row["train/loss"] for row in result.curve if "train/loss" in row]


def stop_before(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let a run fail when it has made so many steps."""
    original = Run.step

    def failing(self: Run) -> dict[str, float]:
        if self.state.step == step:
            raise RuntimeError("out of luck")
        return original(self)

    monkeypatch.setattr(Run, "step", failing)


def test_an_engine_that_steps_in_the_backward_makes_the_same_steps(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One step an update, in the last of its micro-batches, with the rate of that step."""
    target = tiny_llama()
    plain = run(tmp_path, target, micro_rows=2)
    engines = request.getfixturevalue("engines")
    result = run(tmp_path, target, micro_rows=2, output=str(tmp_path / "engine"))
    steps = [call for call in engines[0].calls if call != "save"]
    assert steps == ["more", "more", "last", "step"] * 3  # 5 rows by 2
    assert losses(result) == losses(plain)
    norms = [[row.get("train/grad_norm") for row in r.curve] for r in (plain, result)]
    assert norms[0] == norms[1]


def test_a_run_under_deepspeed_goes_on_bit_for_bit(
    engines: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout. The optimizer's state comes back from the engine alone."""
    target = tiny_gpt2()
    target.config.resid_pdrop = 0.2  # of the draft: the target is in eval mode
    straight = run(tmp_path, target, steps=4, save_every=2, output=str(tmp_path / "straight"))
    with monkeypatch.context() as patch:
        stop_before(patch, 3)
        with pytest.raises(RuntimeError, match="out of luck"):
            run(tmp_path, target, steps=4, save_every=2)
    newest = tmp_path / "run" / "latest" / "trainer_state"
    assert newest.resolve().parent.name == "step-000002"
    assert not (
        newest / "optimizer.pt"
    ).exists()  # one process's part, which must not be taken for it
    resumed = run(tmp_path, target, steps=4, save_every=2)
    assert engines[-1].calls[0] == "load"
    assert losses(resumed) == losses(straight)
    names = [Path(f) / "model.safetensors" for f in (straight.folder, resumed.folder)]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert not list((tmp_path / "run").glob(".pending*"))


def test_what_cannot_go_on_exactly_is_refused_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    target = tiny_llama()
    run(tmp_path, target, steps=1, output=str(tmp_path / "plain"))
    engines = request.getfixturevalue("engines")
    engine = str(tmp_path / "engine")
    run(tmp_path, target, steps=1, output=engine)
    before = (tmp_path / "engine" / "run.yaml").read_text()

    with pytest.raises(
        ValueError, match=r"^distributed_type must be one without DeepSpeed in .* got DEEPSPEED"
    ):
        run(tmp_path, target, steps=1, output=str(tmp_path / "plain"))
    monkeypatch.setattr(UnderDeepSpeed, "stage", 1)
    with pytest.raises(
        ValueError, match=r"^zero_stage must be 2 in accelerate's config, got 1: .*en"
    ):
        run(tmp_path, target, steps=1, output=engine)
    monkeypatch.setattr(UnderDeepSpeed, "stage", 2)
    state = tmp_path / "engine" / "latest" / "trainer_state" / "engine"
    (state / "foredraft.json").write_text(json.dumps({"num_processes": 8, "zero_stage": 2}))
    with pytest.raises(ValueError, match=r"^num_processes must be 8 in accelerate's config, got 1"):
        run(tmp_path, target, steps=1, output=engine)
    (state / "foredraft.json").unlink()
    with pytest.raises(ValueError, match="not a whole state of DeepSpeed's"):
        run(tmp_path, target, steps=1, output=engine)
    monkeypatch.setattr("foredraft.train.distillation.Accelerator", Accelerator)
    AcceleratorState._reset_state()
    with pytest.raises(
        ValueError, match=r"^distributed_type must be DEEPSPEED in .* got NO: .*engine"
    ):
        run(tmp_path, target, steps=1, output=engine)
    assert len(engines) == 1  # none was made for a run that was refused
    assert (tmp_path / "engine" / "run.yaml").read_text() == before


def test_zero_3_is_refused_and_the_others_settled() -> None:
    zero: Any = SimpleNamespace(zero_stage=3, deepspeed_config={})
    accelerator: Any = SimpleNamespace(
        distributed_type="DEEPSPEED", state=SimpleNamespace(deepspeed_plugin=zero)
    )
    with pytest.raises(ValueError, match=r"^zero_stage must be at most 2 .*, got 3; .* use FSDP2"):
        settle_deepspeed(accelerator, 0.5)
    zero.zero_stage = 2
    settle_deepspeed(accelerator, 0.5)
    assert zero.deepspeed_config["gradient_clipping"] == 0.5
