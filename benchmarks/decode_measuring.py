"""Runs the arms of the decode benchmark, timed and under instruments, and compares them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from decode_arms import Arm
from decode_figures import ArmFigures, Ratio, Run, arm_figures, ratio_of
from decode_probes import ForwardTimer, HostReads, LiveTensors, Marks, cache_bytes, weight_bytes
from foredraft.spec import layer_kernels


class Now(Protocol):
    """A clock; a test brings its own."""

    def now(self) -> float:
        """Return seconds, the device's work done."""


def measure(
    arms: Sequence[Arm],
    prompts: Sequence[Sequence[int]],
    *,
    repeats: int,
    clock: Now,
    seed: int = 0,
    max_seconds: float | None = None,
) -> dict[str, list[list[Run]]]:
    """Return arm -> prompt -> repeat -> run. Every arm decodes the first prompt once before; the order of
    the arms is new for each repeat of each prompt."""
    for arm in arms:
        arm.decode(prompts[0], None)
    order = random.Random(seed)
    runs: dict[str, list[list[Run]]] = {arm.name: [] for arm in arms}
    begun = time.perf_counter()
    for prompt in prompts:
        for arm in arms:
            runs[arm.name].append([])
        for _ in range(repeats):
            for arm in order.sample(arms, len(arms)):
                runs[arm.name][-1].append(timed(arm, prompt, clock))
        if max_seconds is not None and time.perf_counter() - begun > max_seconds:
            break
    return runs


def timed(
    arm: Arm,
    prompt: Sequence[int],
    clock: Now,
    first_done: Callable[[], None] | None = None,
) -> Run:
    """Decode once and return when what came out."""
    marks = Marks(clock.now, first_done)
    tokens = arm.decode(prompt, marks)
    end = clock.now()
    return Run(
        tokens=tokens,
        rounds=marks.rounds,
        first_tokens=marks.first_tokens,
        first_seconds=marks.first - marks.begun,
        seconds=end - marks.begun,
    )


def compare(
    arms: Sequence[Arm], runs: dict[str, list[list[Run]]], *, greedy: bool, exact: bool
) -> list[ArmFigures]:
    """Return the figures of each arm.

    Args:
        greedy: outputs are compared with `generate`'s.
        exact: they must be the same; no ratio is given of or over an arm where one is not.
    """
    reference = runs["generate"] if greedy else None
    all_figures = [arm_figures(arm.name, arm.about, runs[arm.name], reference) for arm in arms]
    sound = {
        figures.name
        for figures in all_figures
        if not exact or figures.equal_outputs == figures.outputs
    }
    result = []
    for arm, figures in zip(arms, all_figures, strict=True):
        target, draft = [*map(layer_kernels, arm.models), None, None][:2]
        ratios = _ratios(arm, runs, sound)
        result.append(replace(figures, target_layers=target, draft_layers=draft, ratios=ratios))
    return result


def _ratios(arm: Arm, runs: dict[str, list[list[Run]]], sound: set[str]) -> list[Ratio]:
    bases = [base for base in ("generate", *arm.bases) if base in sound and base != arm.name]
    found = [ratio_of(base, runs[base], runs[arm.name]) for base in bases if arm.name in sound]
    return [ratio for ratio in found if ratio is not None]


def probed(
    figures: ArmFigures,
    arm: Arm,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    clock: Now,
) -> ArmFigures:
    """Return the figures with what instrumented passes show: all prompts for the shares of a round, the
    first prompt for host reads and memory."""
    device = next(arm.models[0].parameters()).device
    timer = ForwardTimer(arm.models, device)
    window, forwards, rounds = 0.0, [0.0] * len(arm.models), []
    with timer.running():
        for prompt in prompts:
            timer.reset()
            run = timed(arm, prompt, clock, timer.reset)
            window += run.decode_seconds
            rounds.append(run.rounds)
            forwards = [a + b for a, b in zip(forwards, timer.seconds(), strict=True)]
    shares = [part / window for part in forwards] if window > 0 else None
    with HostReads(device) as reads:
        arm.decode(prompts[0], None)
    positions = len(prompts[0]) + max_tokens
    weights = weight_bytes(arm.models)
    return replace(
        figures,
        outside_share=None if shares is None else max(0.0, 1.0 - sum(shares)),
        target_share=None if shares is None else shares[0],
        draft_share=None if shares is None else sum(shares[1:]),
        host_reads_per_round=reads.count / rounds[0],
        peak_bytes=weights + _peak(arm, prompts[0], device),
        bound_bytes=weights + sum(cache_bytes(model, positions) for model in arm.models),
    )


def _peak(arm: Arm, prompt: Sequence[int], device: torch.device) -> int:
    """Return the most bytes that lived during a call besides the weights."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        arm.decode(prompt, None)
        return torch.cuda.max_memory_allocated(device) - before
    known = [weight for model in arm.models for weight in (*model.parameters(), *model.buffers())]
    live = LiveTensors(known)
    with live:
        arm.decode(prompt, None)
    return live.peak
