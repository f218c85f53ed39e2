"""What a round of many looked-up tokens takes where fewer were measured, or none: guesses that rounds correct.

A latency table ends at the longest draft of a draft model; a lookup drafts longer where that is cheap. The
verify curve is carried on as its upper half rises. Without a table it starts from the first plain rounds.
How far off the guesses are is mostly one unknown, so that the first long round puts all of them about right,
and no round is more than twice as long as the longest before it, so that none is a leap. A length that was
guessed and hardly ever run is hoped to be cheaper by a deviation, or a step of the curve would never be found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ..spec import RoundOutcome
from .costs import OnlineCosts
from .economics import RoundCosts
from .latency import LatencyTable

SLOPE = 0.05  # plain steps that a token more takes, where nothing was measured
LEAST_SLOPE = 0.005  # and at least, where the measured curve is carried on
GUESS = 0.5  # deviation of log seconds, of all lengths far beyond what was measured together
GUESS_ALONE = 0.15  # and of each by itself
FIRST_REACH = 2  # tokens drafted in the first round, where nothing was measured
PLAIN_ROUNDS = 3  # from which the plain step is taken: the least of them, the first are slow


def extended(costs: RoundCosts, gamma_max: int) -> RoundCosts:
    """Return costs whose verify curve goes on to `gamma_max` + 1 tokens; what was measured is kept."""
    verify = list(costs.verify[: gamma_max + 1])
    slope = SLOPE * verify[0]
    if len(verify) > 1:
        half = len(verify) // 2
        rise = (verify[-1] - verify[half]) / max(1, len(verify) - 1 - half)
        slope = max(rise, LEAST_SLOPE * verify[0])
    while len(verify) <= gamma_max:
        verify.append(verify[-1] + slope)
    return replace(costs, verify=tuple(verify))


class GuessedCosts(OnlineCosts):
    """Costs kept up to date, of which those of long drafts are guesses to begin with."""

    def __init__(
        self,
        table: RoundCosts,
        gamma_max: int,
        at_context: Callable[[int], RoundCosts] | None = None,
    ) -> None:
        """Carry a table on.

        Args:
            table: the costs as far as they were measured.
            gamma_max: most tokens to draft.
            at_context: the table at a context of so many tokens; None: the same at all.
        """
        further = None
        if at_context is not None:
            further = partial(_extended_at, at_context, gamma_max)
        super().__init__(extended(table, gamma_max), further)
        measured = len(table.verify)
        lengths = np.arange(1, gamma_max + 2)
        off = GUESS * np.maximum(0.0, 1.0 - measured / lengths)  # [gamma_max + 1]
        alone = GUESS_ALONE**2 * (lengths > measured)
        self._covariance[2:, 2:] += np.outer(off, off) + np.diag(alone)
        self._measured = measured

    @property
    def hoped(self) -> RoundCosts:
        """The best estimate, with guesses a deviation lower."""
        now = self.current
        verify = self._covariance[2:, 2:]
        apart = (
            verify.diagonal() + verify[0, 0] - 2.0 * verify[0]
        )  # variance of the ratio to a plain step
        deviations = np.sqrt(np.maximum(apart, 0.0))
        deviations[: self._measured] = 0.0
        hoped = np.array(now.verify) * np.exp(-deviations)
        return replace(now, verify=tuple(hoped.tolist()))


class LookupCosts:
    """The costs of rounds that a lookup drafts, from a table or from the first plain rounds."""

    def __init__(
        self, gamma_max: int, online: GuessedCosts | None = None, *, longest: int = 0
    ) -> None:
        """Start from what is known.

        Args:
            gamma_max: most tokens to draft.
            online: costs that may be shared; None: nothing is known yet.
            longest: tokens drafted in a round, as far as is known what it takes.
        """
        self._gamma_max, self._longest = gamma_max, longest
        self.online = online
        self._plain: list[RoundOutcome] = []

    @classmethod
    def of(cls, gamma_max: int, latency: LatencyTable | None, rows: int = 1) -> LookupCosts:
        """Return those of a latency table, or of nothing."""
        if latency is None:
            return cls(gamma_max)
        return cls(gamma_max, costs_of(latency, gamma_max, rows), longest=latency.gamma_max)

    def move(self, context_length: int) -> None:
        """Let the estimates be of a round at so many tokens of context."""
        if self.online is not None:
            self.online.move(context_length)

    @property
    def reach(self) -> int:
        """The most tokens to draft now."""
        return max(FIRST_REACH, 2 * self._longest)

    @property
    def hoped(self) -> RoundCosts | None:
        """What to plan by; None where nothing is known yet."""
        return None if self.online is None else self.online.hoped

    @property
    def current(self) -> RoundCosts | None:
        """The best estimate now; None where nothing is known yet."""
        return None if self.online is None else self.online.current

    def observe(self, outcome: RoundOutcome) -> None:
        """Learn from a round."""
        if self.online is not None:
            self.online.observe(outcome, behind=None)
            self._longest = max(self._longest, outcome.drafted)
        elif outcome.drafted == 0:
            self._plain.append(outcome)
            if len(self._plain) == PLAIN_ROUNDS:
                self.online = GuessedCosts(_first_guess(self._plain), self._gamma_max)
                for (
                    each
                ) in self._plain:  # how slow the machine is now is known, so a guess is what is off
                    self.online.observe(each, behind=None)
                self._plain = []


def costs_of(latency: LatencyTable, gamma_max: int, rows: int) -> GuessedCosts:
    """Return the costs of a table for so many rows, carried on to `gamma_max`."""
    costs = partial(latency.costs, latency.gamma_max, rows=rows)
    return GuessedCosts(costs(), gamma_max, lambda context: costs(context_length=context))


def _extended_at(
    at_context: Callable[[int], RoundCosts], gamma_max: int, context_length: int
) -> RoundCosts:
    return extended(at_context(context_length), gamma_max)


def _first_guess(plain: list[RoundOutcome]) -> RoundCosts:
    """Return the costs of one token."""
    verify = min(outcome.verify_seconds for outcome in plain)
    overhead = min(outcome.round_seconds - outcome.verify_seconds for outcome in plain)
    return RoundCosts(
        draft_step=0.0,
        verify=(verify,),
        plain_overhead=max(0.0, overhead),
        round_overhead=max(0.0, overhead),
    )
