"""The latency table as it is now: measured once, corrected by what rounds take.

Log seconds of each part are the table's, plus how slow the machine is at the moment (shared by all
parts, drifts quickly), plus how the part differs (drifts slowly; lengths of verify mostly together, as one
model runs them all). A Kalman filter keeps them apart, so a busy machine seen in one kind of round moves
the estimates of all kinds, plain decoding included, and a length that is not played is not left behind by
those that are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..spec import RoundOutcome
from .economics import RoundCosts

NOISE = 0.15**2  # variance of log seconds between equal rounds
SHARED_START, SHARED_DRIFT = 0.2**2, 0.02**2  # of the machine's slowness; drift per round
PART_START, PART_DRIFT = 0.1**2, 0.003**2  # of a part's own deviation
TOGETHER = 0.8  # correlation of the deviations of verify's lengths
OUTLIER = 3.0  # standard deviations; a spike counts no more
OVERHEAD_GAIN = 0.05
BEHIND_MAX = 2  # tokens that a draft step takes in without counting as catching up
CATCH_UP = 0.03  # draft steps that a token more takes, until it is known better
CATCH_UP_GAIN = 0.3
CONTEXT_STEP = 16  # tokens


class OnlineCosts:
    """Seconds of the parts of a round, kept up to date."""

    def __init__(
        self, table: RoundCosts, at_context: Callable[[int], RoundCosts] | None = None
    ) -> None:
        """Start from a table.

        Args:
            at_context: the table at a context of so many tokens; None: the same at all.
        """
        self._table = table
        self._at_context = at_context
        self._context: int | None = None  # what the table is of, in steps of CONTEXT_STEP
        parts = 2 + len(table.verify)  # the machine, the draft step, verify of 1, 2, …
        self._state = np.zeros(parts)  # logs
        self._covariance = _variances(parts, SHARED_START, PART_START)
        self._drift = _variances(parts, SHARED_DRIFT, PART_DRIFT)
        self._overheads = [table.plain_overhead, table.round_overhead]
        self._current = table
        self._catch_up = CATCH_UP * table.draft_step  # seconds a token

    @property
    def current(self) -> RoundCosts:
        """The best estimate now."""
        return self._current

    def move(self, context_length: int) -> None:
        """Let `current` be of a round at so many tokens of context."""
        context = CONTEXT_STEP * (context_length // CONTEXT_STEP)
        if self._at_context is not None and context != self._context:
            self._context, self._table = context, self._at_context(context)
            self._rebuild()

    def catch_up(self, behind: int) -> float:
        """Return what the first draft step takes longer where the draft is `behind` tokens behind."""
        return self._catch_up * max(0, behind - BEHIND_MAX)

    def observe(self, outcome: RoundOutcome, *, behind: int | None) -> None:
        """Learn from a round.

        Args:
            behind: tokens the first draft step had to take in, many after plain rounds; None: the
                prompt, whose time says nothing of a step.
        """
        self._covariance += self._drift
        self._correct(
            1 + outcome.drafted + 1, outcome.verify_seconds, self._table.verify[outcome.drafted]
        )
        rest = outcome.round_seconds - outcome.verify_seconds
        if outcome.draft_steps:
            rest -= outcome.draft_seconds
            if behind is not None:
                self._learn_draft(outcome, behind)
        self._follow_overhead(int(outcome.draft_steps > 0 or outcome.drafted > 0), rest)
        self._rebuild()

    def _learn_draft(self, outcome: RoundOutcome, behind: int) -> None:
        if behind <= BEHIND_MAX:
            step = outcome.draft_seconds / outcome.draft_steps
            self._correct(1, step, self._table.draft_step)
        else:
            more = outcome.draft_seconds - outcome.draft_steps * self._current.draft_step
            each = max(0.0, more) / (behind - BEHIND_MAX)
            self._catch_up += CATCH_UP_GAIN * (each - self._catch_up)

    def _correct(self, part: int, seconds: float, expected: float) -> None:
        """One step of the filter: log(seconds / expected) = machine + part + noise."""
        if seconds <= 0.0 or expected <= 0.0:
            return
        state, covariance = self._state, self._covariance
        surprise = math.log(seconds / expected) - state.item(0) - state.item(part)
        reach = covariance[:, 0] + covariance[:, part]  # [parts]
        variance = reach.item(0) + reach.item(part) + NOISE
        limit = OUTLIER * math.sqrt(variance)
        gain = reach / variance
        state += gain * max(-limit, min(limit, surprise))
        covariance -= np.outer(gain, reach)

    def _follow_overhead(self, kind: int, seconds: float) -> None:
        before = self._overheads[kind]
        bounded = max(0.0, min(seconds, 5.0 * before + 0.1 * self._current.plain))
        self._overheads[kind] = before + OVERHEAD_GAIN * (bounded - before)

    def _rebuild(self) -> None:
        factors = np.exp(self._state[1:] + self._state[0]).tolist()
        self._current = RoundCosts(
            draft_step=self._table.draft_step * factors[0],
            verify=tuple(
                seconds * factor
                for seconds, factor in zip(self._table.verify, factors[1:], strict=True)
            ),
            plain_overhead=self._overheads[0],
            round_overhead=self._overheads[1],
        )


def _variances(
    parts: int, shared: float, part: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the covariance of the machine, the draft step and verify's lengths: [parts, parts]."""
    matrix = np.diag([shared] + [part] * (parts - 1))
    verify = matrix[2:, 2:]
    verify += TOGETHER * part * (1.0 - np.eye(len(verify)))
    return matrix
