"""Looks again, rarely, after speculation stopped paying: bad text must not end it for good.

A `share` of all decoding time is credited, what a probe really cost is charged, and a probe may run
when the credit would pay for its failure. Probing thus costs at most `share` of the time, plus what was
saved up. A probe that succeeds earns its time back, so the next may follow at once: recovery is quick,
and close to where speculation pays, probing is nearly free and therefore frequent.
"""

from __future__ import annotations

CREDIT_STEPS = 6.0  # plain steps that may be saved up


class ProbeBudget:
    """The account of probing, in plain steps, across requests."""

    def __init__(self, *, share: float) -> None:
        self._share = share
        self._credit = 0.0

    def is_due(self, cost: float) -> bool:
        """Is a probe that would cost `cost` plain steps, were it to fail, affordable?"""
        return self._share > 0.0 and self._credit >= cost

    def observe(self, steps: float) -> None:
        """Credit a share of a round of any kind."""
        self._add(self._share * steps)

    def charge(self, steps: float) -> None:
        """Charge what a probe took beyond plain decoding of its tokens; negative where it saved."""
        self._add(-steps)

    def _add(self, steps: float) -> None:
        self._credit = min(self._credit + steps, CREDIT_STEPS)
