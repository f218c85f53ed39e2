"""Looks again, rarely, after speculation stopped paying: a stretch of bad text must not end it for good.

A probe may be run when enough credit was saved for it to fail: `share` of all decoding time is credited,
what a probe really cost is charged. Probing thus costs at most `share` of the time and one probe. A probe
that succeeds earns its time back at once, so the next may follow at once: recovery is quick.
"""

from __future__ import annotations


class ProbeBudget:
    """The account of probing, in seconds, across requests."""

    def __init__(self, *, share: float) -> None:
        self._share = share
        self._credit = 0.0
        self._cost = 0.0  # of the probe that was planned last

    def is_due(self, cost: float) -> bool:
        """Is a probe that would cost `cost` seconds, were it to fail, affordable?"""
        self._cost = cost
        return self._share > 0.0 and self._credit >= cost

    def observe(self, seconds: float) -> None:
        """Save credit for a round of any kind; no more than two failed probes would cost."""
        if self._cost > 0.0:
            self._credit = min(self._credit + self._share * seconds, 2.0 * self._cost)

    def charge(self, seconds: float) -> None:
        """Charge what a probe took beyond plain decoding of its tokens; negative where it saved time."""
        self._credit = min(self._credit - seconds, 2.0 * self._cost)
