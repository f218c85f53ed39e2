"""Measures the latency table: whole rounds of the real loop, every γ in turn at one context, the shortest
and the longest at others."""

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
from .context_costs import ContextSlopes, fit_slope
from .latency import LatencyTable, MachineFingerprint
from .measuring_rows import measure_rows, parts_of
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
    curve keeps its steps; falls that the repeats do not tell from noise are pooled. What a token more of
    context takes is fitted to a few rounds at longer contexts.

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
        slopes=_slopes(decoder, gamma_max, prompt, config, low),
        batches=tuple(
            measure_rows(decoder, gamma_max, rows, prompt=prompt, config=config)
            for rows in config.rows
        ),
    )


def _slopes(
    decoder: SpeculativeDecoder,
    gamma_max: int,
    prompt: Sequence[int],
    config: LatencyConfig,
    low: dict[str, float],
) -> ContextSlopes:
    """Return what a token of context takes; zeros where no longer context fits both models.

    Args:
        low: seconds of each part at `config.context_length`.
    """
    parts = ("draft", "verify 1", f"verify {gamma_max + 1}")
    contexts, seconds = [config.context_length], [[low[part] for part in parts]]
    for context in sorted(set(config.contexts)):
        if config.context_length < context <= _room(decoder) - gamma_max - 1:
            run = _rounds_of(decoder, gamma_max, prompt, context)
            cells = _cells(run, (0, gamma_max), config.context_repeats)
            contexts.append(context)
            seconds.append([float(np.quantile(cells[part], config.quantile)) for part in parts])
    draft, one, most = (fit_slope(contexts, each) for each in zip(*seconds, strict=True))
    return ContextSlopes(draft=draft, verify_one=one, verify_most=most)


def _room(decoder: SpeculativeDecoder) -> int:
    """Return the tokens that both models hold."""
    assert isinstance(decoder.drafter, ModelDrafter)
    return min(decoder.target.context, decoder.drafter.context + 1)


def _rounds_of(
    decoder: SpeculativeDecoder, gamma_max: int, prompt: Sequence[int], context_length: int
) -> RunRound:
    """Return a function that runs one round at a fixed context and takes it back."""
    target, drafter = decoder.target, decoder.drafter
    if not isinstance(drafter, ModelDrafter):
        raise ValueError("decoder must have a draft model to measure, got none")
    capacity = context_length + gamma_max + 1
    room = _room(decoder)
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
    seconds: dict[str, list[float]] = {}
    spread = 1.0
    for number in range(config.max_passes):
        cells = _cells(run, range(gamma_max + 1), config.repeats, warm_up=number == 0)
        for part, values in cells.items():
            seconds.setdefault(part, []).extend(values)
        spread = median(
            float(np.quantile(cell, 0.5) / np.quantile(cell, 0.1))
            for part, cell in seconds.items()
            if part != "overhead"
        )
        if spread <= config.max_spread:
            break
    return seconds, spread


def _cells(
    run: RunRound, gammas: Sequence[int], repeats: int, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Return the seconds of each part of rounds of each γ in turn; a first turn is thrown away."""
    seconds: dict[str, list[float]] = {}
    for gamma in gammas if warm_up else ():
        run(gamma)
    for _ in range(repeats):
        for gamma in gammas:
            for part, value in parts_of(run(gamma)).items():
                seconds.setdefault(part, []).append(value)
    return seconds
