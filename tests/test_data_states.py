"""Saved hidden states of a corpus: they spare the teacher, and are never trusted blindly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_data_corpus import tiny_sliding

from foredraft.data import (
    CorpusConfig,
    CorpusManifest,
    Prompt,
    SavedStates,
    read_corpus,
    write_corpus,
)
from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.batches import Example
from foredraft.train.teacher import Teacher
from toys import byte_tokenizer, tiny_llama

CONFIG = CorpusConfig(max_new_tokens=10, batch_size=4)


def prompts() -> list[Prompt]:
    """Return prompts of which some are in each split that training needs."""
    many = [Prompt(f"p{i}", "x", f"tell me {i}") for i in range(40)]
    return [prompt for prompt in many if prompt.split in ("train", "dev")]


@pytest.fixture
def target() -> Any:
    return tiny_llama(seed=3)


def write(target: Any, folder: Path, **options: Any) -> CorpusManifest:
    return write_corpus(target, byte_tokenizer(), prompts(), folder, CONFIG, **options)


def train(target: Any, corpus: Path, output: Path) -> DistillResult:
    config = DistillConfig(
        target="toy",
        corpus=str(corpus),
        output=str(output),
        layers=1,
        head_tokens=150,
        steps=3,
        batch_rows=4,
        eval_every=1,
        eval_prompts=0,
        complete_only=False,
        report_to="none",
    )
    return distill(config, target=target, tokenizer=byte_tokenizer())


def test_states_are_those_the_target_has(target: Any, tmp_path: Path) -> None:
    write(target, tmp_path, keep_states=True)
    saved, rows = SavedStates(tmp_path), read_corpus(tmp_path, complete_only=False)
    assert set(saved) == {row.id for row in rows}
    for row in rows:
        with torch.no_grad():
            ids = torch.tensor([row.prompt_ids + row.response_ids[:-1]])
            whole = target.base_model(ids).last_hidden_state[0]  # [T, d]
        states = whole[-len(row.response_ids) :]
        torch.testing.assert_close(saved[row.id], states, rtol=1e-3, atol=1e-4)


def test_a_teacher_with_states_does_not_run_the_target(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    compute = Teacher._compute

    def counting(self: Teacher, example: Example) -> torch.Tensor:
        computed.append(example)
        return compute(self, example)

    monkeypatch.setattr(Teacher, "_compute", counting)
    write(target, tmp_path / "with", keep_states=True)
    write(target, tmp_path / "without")
    ours = train(target, tmp_path / "with", tmp_path / "a")
    assert len(computed) == 1  # the check of one row
    theirs = train(target, tmp_path / "without", tmp_path / "b")
    assert len(computed) > 10
    for name in ("train/loss", "eval/T1/alpha_tf"):
        mine, other = ([row[name] for row in run.curve if name in row] for run in (ours, theirs))
        assert mine == pytest.approx(other, rel=1e-3)


def test_an_interrupted_corpus_keeps_the_states_of_its_rows(target: Any, tmp_path: Path) -> None:
    def stop(done: int, wanted: int, tokens: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(target, tmp_path, keep_states=True, progress=stop)
    first = set(SavedStates(tmp_path))
    assert first == {row.id for row in read_corpus(tmp_path, complete_only=False)}
    assert len(first) == 5
    write(target, tmp_path, keep_states=True)
    rows = {row.id for row in read_corpus(tmp_path, complete_only=False)}
    assert set(SavedStates(tmp_path)) == rows > first


def test_rows_without_states_are_computed(target: Any, tmp_path: Path) -> None:
    def stop(done: int, wanted: int, tokens: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(target, tmp_path / "corpus", progress=stop)
    write(target, tmp_path / "corpus", keep_states=True)
    rows = read_corpus(tmp_path / "corpus", complete_only=False)
    assert 0 < len(SavedStates(tmp_path / "corpus")) < len(rows)
    assert train(target, tmp_path / "corpus", tmp_path / "run").best["eval/T1/alpha_tf"] > 0


def test_states_of_another_target_are_not_used(target: Any, tmp_path: Path) -> None:
    write(target, tmp_path / "corpus", keep_states=True)
    other = tiny_llama(seed=4)
    train(other, tmp_path / "corpus", tmp_path / "run")  # would be refused if they were looked at


def test_states_that_are_not_the_targets_are_refused(target: Any, tmp_path: Path) -> None:
    write(target, tmp_path / "corpus", keep_states=True)
    (shard,) = (tmp_path / "corpus").glob("states-*.safetensors")
    states = load_file(shard)
    save_file({name: value + 0.5 for name, value in states.items()}, shard)
    with pytest.raises(ValueError, match=r"saved states of row .* differ"):
        train(target, tmp_path / "corpus", tmp_path / "run")
    save_file({name: value[:1] for name, value in states.items()}, shard)
    with pytest.raises(ValueError, match="saved states of 1"):
        train(target, tmp_path / "corpus", tmp_path / "run")


def test_a_broken_shard_is_named(target: Any, tmp_path: Path) -> None:
    write(target, tmp_path, keep_states=True)
    (shard,) = tmp_path.glob("states-*.safetensors")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{shard.name} is broken"):
        SavedStates(tmp_path)


def test_states_need_full_attention(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_states needs a target with full attention"):
        write(tiny_sliding(seed=3), tmp_path, keep_states=True)
