"""kill -9 at any moment loses no finished checkpoint and no corpus row; the run goes on as if nothing was."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.data import CorpusConfig, Prompt, write_corpus
from foredraft.data.corpus_folder import read_rows
from foredraft.spec import DraftInfo
from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.checkpoint import (
    TrainerState,
    load_state,
    load_tensors,
    newest_checkpoint,
    save_checkpoint,
    tidy,
)
from foredraft.train.draft import first_layers, prepare_draft
from killing import dies_at_write, killed_after
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_gpt2, tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")


def files_of(folder: Path) -> dict[str, bytes]:
    """Return what is in a folder, by its path."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_process_killed_at_any_write_of_a_checkpoint_leaves_the_last_one_whole(
    tmp_path: Path,
) -> None:
    """Dies before each write in turn: while a checkpoint is written, linked, and while old ones go."""
    draft = prepare_draft(
        first_layers(tiny_llama(), 1),
        torch.arange(50),
        DistillConfig(target="toy", corpus="toy"),
    )
    info = DraftInfo(target="toy", target_fingerprint="f", tokenizer_hash="t", kept_tokens=50)
    tokenizer, rng = byte_tokenizer(), [[torch.get_rng_state()]]

    def save(output: Path, step: int) -> None:
        state = TrainerState(step=step, best_step=step - step % 2)
        save_checkpoint(output, draft, tokenizer, info, state, {"step": step}, rng, keep=1)

    for step in (0, 1):
        save(tmp_path / "whole", step)
    expected = files_of(tmp_path / "whole" / "step-000001")
    output = tmp_path / "run"
    save(output, 0)
    number, step, lost = 1, 1, 0
    while dies_at_write(partial(save, output, step), number):
        newest = newest_checkpoint(output)
        assert newest is not None
        for folder in output.glob("step-*"):  # what bears the name of one is a whole one
            assert files_of(folder).keys() == expected.keys()
        state = load_state(newest)
        assert state.step in (step - 1, step)
        assert load_tensors(newest)[0] == {"step": state.step}
        tidy(output, state, keep=1)  # as a run that is taken up does
        assert (output / "latest").readlink() == Path(newest.name)
        assert (output / "best").readlink() == Path(f"step-{state.best_step:06d}")
        assert (output / "best" / "foredraft.json").is_file()
        assert not list(output.glob(".pending*"))
        lost += state.step < step
        step = state.step + 1
        number += 1
    assert 10 < lost < number - 3  # dying before the rename, and after it


def test_a_process_killed_at_any_write_of_a_corpus_loses_no_row(tmp_path: Path) -> None:
    prompts = [Prompt(id=str(i), domain="toy", text="x" * i) for i in range(1, 6)]
    config = CorpusConfig(temperatures=(1.0,), max_new_tokens=4, batch_size=2)
    target, tokenizer = tiny_llama(), byte_tokenizer()

    def rows(folder: Path) -> dict[str, Any]:
        return {row.id: row for row in read_rows(folder / "rows.jsonl")}

    write_corpus(target, tokenizer, prompts, tmp_path / "whole", config)
    expected, there = rows(tmp_path / "whole"), 0
    output = tmp_path / "corpus"
    number = 1
    while dies_at_write(lambda: write_corpus(target, tokenizer, prompts, output, config), number):
        found = rows(output)
        assert len(found) >= there
        assert found.items() <= expected.items()
        there = len(found)
        number += 1
    assert rows(output) == expected
    assert number > 5
    assert json.loads((output / "manifest.json").read_text())["complete"]


@pytest.mark.slow
def test_a_run_killed_at_ten_random_moments_is_the_run_that_was_not(tmp_path: Path) -> None:
    """Bit for bit, with dropout: weights, optimizer, generators, metrics."""
    target, tokenizer = tiny_gpt2(), byte_tokenizer()
    target.config.resid_pdrop = 0.2
    rows = [*random_rows(40), *random_rows(4, split="dev", seed=1)]
    config = DistillConfig(
        target="toy", corpus=write_corpus_folder(tmp_path / "corpus", target, rows),
        output=str(tmp_path / "straight"), layers=1, head_tokens=120, steps=200, batch_rows=5,
        learning_rate=3e-3, eval_every=7, save_every=2, eval_prompts=0, report_to="none",
    )  # fmt: skip

    def run(config: DistillConfig) -> DistillResult:
        return distill(config, target=target, tokenizer=tokenizer)

    straight = run(config)
    again = replace(config, output=str(tmp_path / "run"))
    milliseconds = [
        row["perf/draft_ms"] + row["perf/teacher_ms"]
        for row in straight.curve
        if "perf/draft_ms" in row
    ]
    rng, steps = np.random.default_rng(0), [-1]
    for _ in range(10):
        delay = rng.uniform(0.2, 0.3 + 2e-4 * sum(milliseconds))  # starting takes some 0.2 s
        assert killed_after(partial(run, again), delay)
        newest = newest_checkpoint(tmp_path / "run")
        steps.append(-1 if newest is None else load_state(newest).step)
    assert steps == sorted(steps)
    assert len(set(steps)) > 4
    resumed = run(again)
    names = [name for name in straight.curve[-2] if name.startswith("train/")]
    pairs = zip(straight.curve, resumed.curve, strict=True)
    assert all(a.get(name) == b.get(name) for a, b in pairs for name in names)
    one, other = (Path(c.output) / "latest" for c in (config, again))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    (first, first_rng), (second, second_rng) = load_tensors(one), load_tensors(other)
    assert torch.equal(first_rng[0][0], second_rng[0][0])
    for index, values in first["state"].items():
        assert all(torch.equal(value, second["state"][index][n]) for n, value in values.items())
