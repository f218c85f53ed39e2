"""The benchmark against TRL: our arm at a tiny size, the comparison, what is refused; TRL where it is."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import against_trl
from against_trl import Arm, TrlBenchmark, compare, job_of
from against_trl_arms import ARMS, Measured, answer_start, batches_of, make_examples, make_target
from foredraft.train.batches import Example
from foredraft.train.divergences import forward_kl
from foredraft.train.draft import first_layers

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "against_trl.py"
TINY: dict[str, Any] = {
    "vocabulary": 90, "hidden": 32, "layers": 2, "draft_layers": 1, "rows": 8, "batch_rows": 4,
    "prompt_tokens": 5, "answer_tokens": 9, "repeats": 1, "threads": torch.get_num_threads(),
}  # fmt: skip


def test_our_arm_counts_tokens_and_notes_the_losses_of_the_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, where the peak means nothing; the first loss from the models' own logits."""
    monkeypatch.setattr(against_trl, "_alone", against_trl.measure)
    config = TrlBenchmark(**TINY, arms=("foredraft",))
    (arm,) = against_trl.run(config)
    assert len(arm.losses) == 4
    assert arm.losses[2] < arm.losses[0]
    assert len(arm.tokens_per_second) == len(arm.wall_tokens_per_second) == 2  # epochs
    assert "foredraft: " in capsys.readouterr().out

    job = job_of(config)
    batches = batches_of(make_examples(job.sizes), job.config)
    visited = [one.row_id or tuple(one.tokens.tolist()) for batch in batches for one in batch]
    assert sorted(visited[:8]) == sorted(visited[8:])  # each row once an epoch
    target = make_target(job.sizes)
    draft = first_layers(target, 1).eval()
    losses = []
    with torch.no_grad():
        for one in batches[0]:
            ids = one.input_ids[None]
            logits = [model(ids).logits[0, -one.supervised :] for model in (target, draft)]
            losses.append(forward_kl(*logits))
    assert arm.losses[0] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-4)


def test_rates_are_medians_of_an_epochs_tokens_over_its_seconds() -> None:
    found = [
        Measured([10, 20, 30, 40], [4.0, 3.0, 2.0, 1.0], seconds, [1.0] * 4, peak)
        for seconds, peak in (([1.0, 2.0, 1.0, 1.0], 0.5), ([1.0, 1.0, 2.0, 3.0], 0.7))
    ]
    arm = against_trl._summary("gkd", found, epochs=2)
    assert arm.tokens_per_second == [30 / 2.5, 70 / 3.5]
    assert arm.wall_tokens_per_second == [15.0, 35.0]
    assert (arm.peak_gb, arm.losses) == (0.7, [4.0, 3.0, 2.0, 1.0])
    ours = Arm("foredraft", [24.0, 60.0], [1.0, 1.0], 0.35, [4.0, 3.0, 2.0, 1.01])
    assert compare(ours, arm) == (
        "against gkd: 2.00×, 3.00× its tokens/s in each epoch, 0.50 of its peak, "
        "losses at most 1.0e-02 apart"
    )


def test_trl_is_given_rows_whose_answer_is_their_end_and_no_others() -> None:
    """A conversation of two answers, or one that a question follows, has another mask than its last tokens."""
    tokens = torch.arange(9)
    assert answer_start(Example(tokens, 4)) == 5
    assert answer_start(Example(tokens, 4, spans=((5, 9),))) == 5
    assert answer_start(Example(tokens, 4, spans=((5, 7), (7, 9)))) == 5
    for spans in (((3, 5), (7, 9)), ((4, 8),)):
        with pytest.raises(
            ValueError, match=r"^spans must be the row's last 4 tokens .*, got .* of 9"
        ):
            answer_start(Example(tokens, 4, spans=spans))


def test_bad_fields_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="rows must be a multiple of batch_rows = 4, got 6"):
        TrlBenchmark(**{**TINY, "rows": 6})
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        TrlBenchmark(**{**TINY, "repeats": 0})
    with pytest.raises(ValueError, match="arms must be some of foredraft, gkd, distillation, got"):
        TrlBenchmark(**TINY, arms=("trl",))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install trl"):
        against_trl.run(TrlBenchmark(**TINY))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
def test_all_trainers_have_the_same_losses(tmp_path: Path) -> None:
    out = tmp_path / "trl.json"
    command = [sys.executable, str(SCRIPT), f"--out={out}"]
    command += [f"--{name}={value}" for name, value in TINY.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    arms = json.loads(out.read_text())["arms"]
    assert [arm["name"] for arm in arms] == list(ARMS)
    for arm in arms[1:]:
        assert arm["losses"] == pytest.approx(arms[0]["losses"], rel=1e-4)
