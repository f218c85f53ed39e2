"""A run begun by another version: what it lacks has its default, what cannot be told is refused and named."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from foredraft.train import DistillConfig, distill
from foredraft.train.config import OUTPUT_NEUTRAL
from foredraft.train.run_record import open_record, write_record
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama

SOURCES = {"corpus_rows": "abc", "tokenizer": "def"}
YOUNGER = [  # the fields that came after the first version, by the losses, teachers and probes they belong to
    "jsd_beta", "skew", "lk_eta", "state_weight", "head_start", "teacher", "cache_top_k", "cache_folder",
    "on_policy_share", "on_policy_every", "on_policy_tokens", "on_policy_after", "lora_rank",
    "lora_alpha", "lora_targets", "serving_temperatures", "eval_prompts", "eval_temperatures",
    "eval_gamma", "eval_max_tokens", "best_by", "gradient_checkpointing",
]  # fmt: skip
OTHERS: dict[str, Any] = {  # of those that change what is trained, something that is not the default
    "jsd_beta": 0.3, "skew": 0.2, "lk_eta": 1.0, "state_weight": 1.0, "head_start": "target",
    "teacher": "cache", "cache_top_k": 8, "on_policy_share": 0.5, "on_policy_every": 9,
    "on_policy_tokens": 3, "on_policy_after": 2, "lora_rank": 4, "lora_alpha": 3.0,
    "lora_targets": ("q_proj",), "serving_temperatures": (0.3,), "eval_prompts": 3,
    "eval_temperatures": (0.5,), "eval_gamma": 2, "eval_max_tokens": 9, "best_by": "tau",
}  # fmt: skip


def config_of(output: Path, **changes: Any) -> DistillConfig:
    return DistillConfig(target="toy", corpus="rows", output=str(output), **changes)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return the folder of a run with a checkpoint."""
    config = config_of(tmp_path / "run")
    (tmp_path / "run" / "step-000001").mkdir(parents=True)
    (tmp_path / "run" / "run.yaml").write_text(
        yaml.safe_dump({"id": "x", "config": {}, "sources": SOURCES, "attempts": []})
    )
    write_record(config, open_record(config, SOURCES, {}))
    return tmp_path / "run"


def edit(output: Path, **parts: Any) -> dict[str, Any]:
    path = output / "run.yaml"
    record: dict[str, Any] = yaml.safe_load(path.read_text())
    for part, change in parts.items():
        change(record[part])
    path.write_text(yaml.safe_dump(record))
    return record


def test_a_run_older_than_any_field_goes_on_with_its_default(output: Path) -> None:
    edit(output, config=forget)
    record = open_record(config_of(output), SOURCES, {"processes": 1})
    assert record["config"]["skew"] == 0.1
    assert record["config"]["lora_targets"] == ["all-linear"]
    assert record["id"] == "x"
    assert len(record["attempts"]) == 2


def forget(fields: dict[str, Any]) -> None:
    for name in YOUNGER:
        del fields[name]


def test_training_itself_goes_on(tmp_path: Path) -> None:
    target = tiny_llama()
    rows = [*random_rows(6), *random_rows(2, split="dev", seed=1)]
    config = DistillConfig(
        target="toy", corpus=write_corpus_folder(tmp_path / "corpus", target, rows),
        output=str(tmp_path / "run"), layers=1, head_tokens=100, batch_rows=2, steps=2,
        eval_prompts=1, eval_max_tokens=4, max_seconds=0.001, report_to="none",
    )  # fmt: skip
    first = distill(config, target=target, tokenizer=byte_tokenizer())
    edit(tmp_path / "run", config=lambda fields: fields.pop("skew"))
    state = first.folder.parent / "latest" / "trainer_state" / "state.json"
    assert distill(config, target=target, tokenizer=byte_tokenizer()).curve == first.curve
    state.write_text(state.read_text().replace('"step"', '"steps"'))
    with pytest.raises(ValueError, match=r"state.json: not a state of this version: .*'steps'"):
        distill(config, target=target, tokenizer=byte_tokenizer())


@pytest.mark.parametrize("name", OTHERS)
def test_what_it_lacks_may_not_be_given_otherwise(output: Path, name: str) -> None:
    edit(output, config=lambda fields: fields.pop(name))
    with pytest.raises(
        ValueError, match=rf"^{name} is .*, but the run in .* has .*: give the same"
    ):
        open_record(config_of(output, **{name: OTHERS[name]}), SOURCES, {})


def test_all_younger_fields_are_tried() -> None:
    assert set(YOUNGER) - set(OTHERS) == OUTPUT_NEUTRAL & set(YOUNGER)


def test_what_another_version_did_and_this_one_cannot_is_named(output: Path) -> None:
    edit(output, config=lambda fields: fields.update(gone=7))
    with pytest.raises(ValueError, match=r"^gone = 7 is in the config of .*, but unknown to this"):
        open_record(config_of(output), SOURCES, {})
    edit(output, config=lambda fields: fields.pop("gone"), sources=lambda d: d.pop("tokenizer"))
    with pytest.raises(ValueError, match=r"^tokenizer is 'def', but the run in .* is older than"):
        open_record(config_of(output), SOURCES, {})


def test_a_file_that_is_no_record_is_named(output: Path) -> None:
    for text, lacks in (("", "id"), ("- 1", "id"), ("id: x", "config")):
        (output / "run.yaml").write_text(text)
        with pytest.raises(
            ValueError, match=rf"run.yaml: not the record of a run, it has no {lacks}"
        ):
            open_record(config_of(output), SOURCES, {})
