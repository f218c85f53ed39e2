"""λ, the price of time: the policy's own long-run tokens per second.

Time is counted in plain steps of the moment it passed. A machine that is busy for a while, or a
longer context, slows plain decoding too, so it leaves this number and the decisions as they are.
"""

from __future__ import annotations

START_ROUNDS = 10.0  # rounds of plain decoding that the start is worth


class Throughput:
    """Ratio of exponentially forgotten sums of tokens and time."""

    def __init__(self, half_life: float) -> None:
        self._forgetting = 0.5 ** (1.0 / half_life)
        self._tokens = self._steps = START_ROUNDS

    @property
    def rate(self) -> float:
        """Tokens per plain step, at least 1: plain decoding is always to be had."""
        return max(1.0, self._tokens / self._steps)

    def observe(self, tokens: int, cost: float) -> None:
        """Take in a round.

        Args:
            cost: of the round, in plain steps.
        """
        self._tokens = self._forgetting * self._tokens + tokens
        self._steps = self._forgetting * self._steps + cost
