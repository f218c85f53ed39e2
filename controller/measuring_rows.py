"""Measures what a round takes a row of a batch: rounds of the real batch loop, every γ in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..spec import (
    BatchDecoder,
    LookaheadPolicy,
    RoundOutcome,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
)
from .config import LatencyConfig, check_integer
from .context_costs import BatchCosts

PROMPT_TOKENS = 32  # of each row: the context has costs of its own
Cells = dict[str, list[float]]


def parts_of(outcome: RoundOutcome) -> dict[str, float]:
    """Return the seconds of a round's parts."""
    parts = {f"verify {outcome.drafted + 1}": outcome.verify_seconds}
    rest = outcome.round_seconds - outcome.verify_seconds
    if outcome.draft_steps:
        parts["draft"] = outcome.draft_seconds / outcome.draft_steps
        rest -= outcome.draft_seconds
    return parts | {"overhead": rest}


class _EndedError(Exception):
    """The script is over: how a row is told to leave the batch."""


class _Script:
    """Every γ in turn, turn after turn, all rows alike; the first turn is not kept."""

    reads_logits = False

    def __init__(self, gamma_max: int, turns: int, cells: Cells) -> None:
        self.gamma_max = gamma_max
        self._gammas = list(range(gamma_max + 1)) * turns
        self._cells = cells  # of all rows
        self._round = 0

    def begin_request(self, params: SamplingParams) -> None:
        pass

    def begin_round(self, start: RoundStart) -> int:
        if self._round == len(self._gammas):
            raise _EndedError
        return self._gammas[self._round]

    def wants_step(self, depth: int) -> bool:
        return True

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        self._round += 1
        if self._round > self.gamma_max + 1:
            for part, value in parts_of(outcome).items():
                self._cells.setdefault(part, []).append(value)

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        turns = len(self._gammas) // (self.gamma_max + 1)
        return [_Script(self.gamma_max, turns, self._cells) for _ in range(count)]


def measure_rows(
    decoder: SpeculativeDecoder,
    gamma_max: int,
    rows: int,
    *,
    prompt: Sequence[int] = (0,),
    config: LatencyConfig | None = None,
) -> BatchCosts:
    """Return what a row of a batch of `rows` takes, all rows drafting alike; about a second a γ.

    Args:
        prompt: token ids that fill each row's context, repeated as needed.

    Raises:
        ValueError: if the models' rows cannot share a forward, naming why, or a context is too short.
    """
    config = config or LatencyConfig()
    check_integer("rows", rows, low=2)
    cells: Cells = {}
    turns = config.context_repeats + 1
    batch = BatchDecoder(decoder.with_lookahead(_Script(gamma_max, turns, cells)), rows=rows)
    if batch.obstacle is not None:
        raise ValueError(f"rows must be 1 for these models, got {rows}: {batch.obstacle}")
    tokens = [prompt[index % len(prompt)] for index in range(PROMPT_TOKENS)]
    most = turns * (gamma_max + 1) * (gamma_max + 2) // 2 + 1  # emitted, were all accepted
    params = SamplingParams(temperature=0.0, max_tokens=most + gamma_max, ignore_eos=True)
    for _, output in batch.as_ended([tokens] * rows, params):
        if not isinstance(output.error, _EndedError):
            raise ValueError(
                f"rows: a batch of {rows} could not be measured: {output.error or 'context too short'}"
            )
    low = {part: float(np.quantile(values, config.quantile)) for part, values in cells.items()}
    return BatchCosts(
        rows=rows,
        draft_step_seconds=low["draft"],
        verify_seconds=tuple(low[f"verify {n}"] for n in range(1, gamma_max + 2)),
        overhead_seconds=max(0.0, low["overhead"]),
    )
