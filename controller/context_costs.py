"""How costs grow with the context and with the rows of a batch, on top of the curve over tokens.

Attention reads keys and values once a forward: so many seconds for a token more of context, whatever the
steps of the curve. A forward over B rows of n tokens reads the weights once, as one over B·n tokens does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .config import check_integer, check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSlopes:
    """Seconds that a forward takes longer for each token more of context: never fewer than 0.

    Raises:
        ValueError: naming the slope that is negative or not a number.
    """

    draft: float = 0.0  # of a draft step
    verify_one: float = 0.0  # of a target forward over one token
    verify_most: float = 0.0  # of one over γ_max + 1 tokens; those between lie on a line

    def __post_init__(self) -> None:
        for name in ("draft", "verify_one", "verify_most"):
            check_number(name, getattr(self, name), low=0.0)

    def verify(self, lengths: int) -> tuple[float, ...]:
        """Return the slopes of target forwards over 1 … `lengths` tokens of `lengths`."""
        more = np.linspace(self.verify_one, self.verify_most, lengths)
        return tuple(more.tolist())


NO_SLOPES = ContextSlopes()


def fit_slope(contexts: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the least-squares seconds per token of context; 0 where it would be negative, or of one point."""
    if len(contexts) < 2:
        return 0.0
    away = np.array(contexts) - np.mean(contexts)
    return max(0.0, float(away @ np.array(seconds) / (away @ away)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCosts:
    """Seconds of a round for one row of a batch whose rows all draft as much: a row's part of the forwards.

    Raises:
        ValueError: naming the field that is not positive.
    """

    rows: int
    draft_step_seconds: float
    verify_seconds: tuple[float, ...]  # of 1, 2, …, γ_max + 1 tokens in each row
    overhead_seconds: float

    def __post_init__(self) -> None:
        check_integer("rows", self.rows, low=2)
        for value in (self.draft_step_seconds, *self.verify_seconds):
            check_number("seconds of a batch", value, low=1e-12)
        check_number("overhead_seconds", self.overhead_seconds, low=0.0)


def estimated_batch(
    rows: int, draft_step: float, verify: Sequence[float], overhead: float
) -> BatchCosts:
    """Return what a row's part is expected to take, by the curve of a single row.

    B rows of n tokens are taken as B·n tokens of one; beyond the curve its second half goes on as a line.
    The draft's step is taken to grow as the target's does.

    Args:
        verify: seconds of target forwards over 1, 2, … tokens of a single row.
    """
    lengths = np.arange(1, len(verify) + 1)
    half = (len(verify) - 1) // 2
    rise = fit_slope(lengths[half:].tolist(), verify[half:])
    wanted = rows * lengths  # tokens of the whole forward
    beyond = np.maximum(wanted - len(verify), 0) * rise
    whole = np.interp(wanted, lengths, verify) + beyond
    return BatchCosts(
        rows=rows,
        draft_step_seconds=draft_step * float(whole[0]) / verify[0] / rows,
        verify_seconds=tuple((whole / rows).tolist()),
        overhead_seconds=overhead,
    )
