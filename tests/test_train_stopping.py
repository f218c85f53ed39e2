"""SIGTERM and SIGINT end a run after the step at work, saved; resumed it is the run it would have been."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.__main__ import main
from foredraft.train.checkpoint import load_state, load_tensors
from foredraft.train.loop import Run
from foredraft.train.stopping import Stopped, stop_requests
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_gpt2, tiny_llama

ROWS = [*random_rows(17), *random_rows(4, split="dev", seed=1)]


def fields(folder: Path, target: Any) -> dict[str, Any]:
    """Return the fields of a short run that would save at its start and end alone."""
    return {
        "target": "toy",
        "corpus": write_corpus_folder(folder / "corpus", target, ROWS),
        "output": str(folder / "run"),
        "layers": 1,
        "head_tokens": 120,
        "steps": 6,
        "batch_rows": 5,
        "learning_rate": 3e-3,
        "eval_every": 100,
        "report_to": "none",
        "eval_prompts": 0,
    }


def run(base: dict[str, Any], target: Any, **changes: Any) -> DistillResult:
    config = DistillConfig(**{**base, **changes})
    return distill(config, target=target, tokenizer=byte_tokenizer())


def send_in_step(monkeypatch: pytest.MonkeyPatch, step: int, *numbers: int) -> None:
    """Let signals come in the middle of step `step` of the next run."""
    original = Run._accumulate_gradients

    def interrupted(self: Run, *args: Any) -> Any:
        if self.state.step == step - 1:
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(0.02)  # of two at once, Python would handle the lower number first
        return original(self, *args)

    monkeypatch.setattr(Run, "_accumulate_gradients", interrupted)


def assert_same_checkpoint(one: Path, other: Path) -> None:
    """Weights, optimizer, generators and where the run stood, bit for bit; not the clock."""
    for name in ("model.safetensors", "config.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    (first, rng), (second, other_rng) = load_tensors(one), load_tensors(other)
    assert first["param_groups"] == second["param_groups"]
    for index, state in first["state"].items():
        assert all(torch.equal(state[name], second["state"][index][name]) for name in state)
    assert all(torch.equal(a, b) for a, b in zip(rng[0], other_rng[0], strict=True))
    states = load_state(one), load_state(other)
    for state in states:
        state.seconds = 0.0
    assert states[0] == states[1]


def test_a_stopped_run_resumes_into_the_run_it_would_have_been(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """B74, B76, with dropout and across the end of an epoch (at step 4 of 17 rows by 5); stopped twice."""
    target = tiny_gpt2()
    target.config.resid_pdrop = 0.2  # of the draft: the target is in eval mode
    base = fields(tmp_path, target)
    straight = run(base, target, output=base["output"] + "-straight")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    output = Path(base["output"])
    for number, step in ((signal.SIGTERM, 2), (signal.SIGINT, 4)):
        with monkeypatch.context() as patch:
            send_in_step(patch, step, number)
            with pytest.raises(Stopped, match=rf"saved in .*step-{step:06d}; the same command"):
                run(base, target)
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
        assert (output / "latest").readlink() == Path(f"step-{step:06d}")
        torch.rand(7)  # the caller's stream is another by now
    resumed = run(base, target)
    losses = [
        [row["train/loss"] for row in r.curve if "train/loss" in row] for r in (resumed, straight)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 6
    assert_same_checkpoint(output / "latest", Path(base["output"] + "-straight") / "latest")


def test_a_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tiny_llama()
    base = fields(tmp_path, target)
    send_in_step(monkeypatch, 2, signal.SIGTERM, signal.SIGINT)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            run(base, target)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not isinstance(caught.value, Stopped)
    assert (Path(base["output"]) / "latest").readlink() == Path("step-000000")


def test_a_signal_in_the_last_step_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tiny_llama()
    base = fields(tmp_path, target)
    send_in_step(monkeypatch, 6, signal.SIGTERM)
    assert run(base, target).curve[-1]["step"] == 6


def test_the_command_says_what_is_left_where_and_exits_as_the_signal_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tiny_llama()
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    base = {**fields(tmp_path, target), "target": str(tmp_path / "target")}
    arguments = [f"--{name}={value}" for name, value in base.items()]
    send_in_step(monkeypatch, 3, signal.SIGTERM)
    assert main(arguments) == 128 + signal.SIGTERM == 143
    said = capfd.readouterr().err.splitlines()
    assert "SIGTERM: the step at work is finished and saved; again: at once" in said
    assert said[-1] == (
        f"SIGTERM: stopped and saved in {tmp_path}/run/step-000003; the same command goes on"
    )


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    numbers = []

    def enter() -> None:
        with stop_requests() as request:
            numbers.append(request.number)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert numbers == [0]
    assert signal.getsignal(signal.SIGTERM) is before
