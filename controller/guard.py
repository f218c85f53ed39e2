"""Never slower than plain decoding, path by path.

What plain decoding would have taken for the tokens emitted so far is known: P, one plain step each.
A round may speculate only if, were it to take its worst time and emit a single token, the request
would still be within the bound. Each round emits at least one token, so after every round

    elapsed ≤ (1 + ε)·P + B₀ + credit + (what a round overran its declared worst time by)

for any predictor, any drift, any adversary. An overrun is charged to the rounds after it, so it is
paid back before the next speculation. Only a stall, a lone round of several times its prediction, is
the machine's and would have hit plain decoding as well: it is counted on both sides.

The credit is time that earlier requests saved: where the first rounds of a short request are unlucky,
a draft that has proved itself goes on. What they lost is a debt, taken off B₀ until ε has paid it back:
over all requests, however short, nothing is lost beyond ε and one B₀.
Conservative bandits (Wu et al. 2016) with a baseline that is known without playing it.
"""

from __future__ import annotations

STALL = 3.0  # times its prediction: a round that long was held up
STALL_ROUNDS = 16  # speculative rounds in which one stall is excused; more of them are slowness


class SlowdownGuard:
    """Keeps the account of one request at a time, and what the requests before it saved."""

    def __init__(self, *, tolerance: float, budget: float, credit_max: float) -> None:
        """Set the bound.

        Args:
            tolerance: ε.
            budget: B₀ in plain steps.
            credit_max: most plain steps of earlier savings that a request may use.
        """
        self._tolerance = tolerance
        self._budget = budget
        self._credit_max = credit_max
        self._since_stall = STALL_ROUNDS  # speculative rounds since a stall was excused
        self._step = 0.0  # seconds of a plain step when last asked
        self.credit = 0.0  # plain steps saved before this request; below 0, lost
        self.elapsed = 0.0  # seconds of the request's rounds
        self.plain = 0.0  # P: seconds that plain decoding would have taken for the same tokens

    def begin_request(self) -> None:
        """Close the account of the request before and open one."""
        if self._step > 0.0:
            credit = self.credit + (self.plain - self.elapsed) / self._step
            if credit < 0.0:
                credit = min(0.0, credit + self._tolerance * self.plain / self._step)
            self.credit = min(credit, self._credit_max)
        self.elapsed = self.plain = 0.0

    def room(self, plain_step: float) -> float:
        """Return the seconds that a speculative round may take at worst; a plain step takes t₀ now."""
        self._step = plain_step
        bound = (1.0 + self._tolerance) * (self.plain + plain_step)
        bound += (self._budget + self.credit) * plain_step
        return bound - self.elapsed

    def observe_plain(self, seconds: float) -> None:
        """Account for a plain round: what it took is what plain decoding takes."""
        self.elapsed += seconds
        self.plain += seconds

    def observe_speculation(
        self, seconds: float, *, emitted: int, plain_step: float, predicted: float
    ) -> None:
        """Account for a round that ran the draft.

        Args:
            emitted: tokens of the round.
            plain_step: seconds of a plain step at the time.
            predicted: seconds that the round was expected to take.
        """
        self.elapsed += seconds
        self.plain += emitted * plain_step
        stall = seconds - STALL * predicted
        self._since_stall += 1
        if stall > 0.0 and self._since_stall > STALL_ROUNDS:
            self.plain += stall
            self._since_stall = 0
