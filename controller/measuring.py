"""Measures the latency table: whole rounds of the real loop, every γ in turn, at one context."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from ..spec import (
    FixedLookahead,
    GeneratorDraws,
    ModelDrafter,
    RoundOutcome,
    SamplingParams,
    SpeculativeDecoder,
    TokenLaw,
    decode_round,
)
from .config import LatencyConfig, check_integer
from .latency import LatencyTable, MachineFingerprint
from .steps import without_noise

RunRound = Callable[[int], RoundOutcome]  # γ -> a round that drafts γ tokens


def measure_latency(
    decoder: SpeculativeDecoder,
    gamma_max: int,
    *,
    prompt: Sequence[int] = (0,),
    target: str = "",
    draft: str = "",
    config: LatencyConfig | None = None,
) -> LatencyTable:
    """Return what rounds of 0 … `gamma_max` drafted tokens take on this machine, in seconds.

    Rounds of the real loop are timed, since isolated forwards leave out what comes with them. Each
    γ is run in turn, so that a busy spell hits all of them; the first turn is thrown away. The verify
    curve keeps its steps; falls that the repeats do not tell from noise are pooled.

    Args:
        prompt: token ids that fill the context, repeated as needed.
        target, draft: fingerprints of the models, kept in the table.

    Raises:
        ValueError: if the decoder has no draft model, or a context is too short.
    """
    config = config or LatencyConfig()
    check_integer("gamma_max", gamma_max, low=1)
    run = _rounds_of(decoder, gamma_max, prompt, config.context_length)
    rounds, spread = _measure(run, gamma_max, config)
    low = {name: float(np.quantile(cell, config.quantile)) for name, cell in rounds.items()}
    noise = 2.0 * (spread - 1.0) / math.sqrt(len(rounds["verify 1"]))  # two errors of a quantile
    verify = without_noise([low[f"verify {n}"] for n in range(1, gamma_max + 2)], max(0.0, noise))
    device = decoder.target.device
    return LatencyTable(
        draft_step_seconds=low["draft"],
        verify_seconds=verify,
        overhead_seconds=max(0.0, low["overhead"]),
        context_length=config.context_length,
        machine=MachineFingerprint.here(device),
        device=str(device),
        target=target,
        draft=draft,
        spread=spread,
        contended=spread > config.max_spread,
    )


def _rounds_of(
    decoder: SpeculativeDecoder, gamma_max: int, prompt: Sequence[int], context_length: int
) -> RunRound:
    """Return a function that runs one round at a fixed context and takes it back."""
    target, drafter = decoder.target, decoder.drafter
    if not isinstance(drafter, ModelDrafter):
        raise ValueError("decoder must have a draft model to measure, got none")
    capacity = context_length + gamma_max + 1
    room = min(target.context, drafter.context + 1)
    if capacity > room:
        raise ValueError(
            f"context_length + gamma_max must be at most {room - 1}, what both models hold, "
            f"got {context_length} + {gamma_max}"
        )
    if not prompt:
        raise ValueError("prompt must have at least one token id, got none")
    tokens = [prompt[index % len(prompt)] for index in range(context_length)]
    target.start(tokens, capacity)
    drafter.reset(capacity)
    draws = GeneratorDraws(0)
    law = TokenLaw(
        SamplingParams(temperature=0.0),
        tokens,
        width=drafter.width,
        eos_token_ids=(),
        device=target.device,
    )

    def run(gamma: int) -> RoundOutcome:
        policy = FixedLookahead(gamma)
        _, outcome = decode_round(tokens, target, drafter, policy, law, draws, gamma_limit=gamma)
        target.roll_back(context_length - 1)
        drafter.roll_back(context_length - 1)
        return outcome

    return run


def _measure(
    run: RunRound, gamma_max: int, config: LatencyConfig
) -> tuple[dict[str, list[float]], float]:
    """Return the seconds of each part, and their spread; more passes while it is contended."""
    for gamma in range(gamma_max + 1):
        run(gamma)  # warm-up
    seconds: dict[str, list[float]] = {}
    spread = 1.0
    for _ in range(config.max_passes):
        for _ in range(config.repeats):
            for gamma in range(gamma_max + 1):
                for part, value in _parts(run(gamma)).items():
                    seconds.setdefault(part, []).append(value)
        spread = median(
            float(np.quantile(cell, 0.5) / np.quantile(cell, 0.1))
            for part, cell in seconds.items()
            if part != "overhead"
        )
        if spread <= config.max_spread:
            break
    return seconds, spread


def _parts(outcome: RoundOutcome) -> dict[str, float]:
    """Return the seconds of a round's parts."""
    parts = {f"verify {outcome.drafted + 1}": outcome.verify_seconds}
    rest = outcome.round_seconds - outcome.verify_seconds
    if outcome.draft_steps:
        parts["draft"] = outcome.draft_seconds / outcome.draft_steps
        rest -= outcome.draft_seconds
    return parts | {"overhead": rest}
