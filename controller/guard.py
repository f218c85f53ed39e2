"""Never slower than plain decoding, path by path, but for a stated share of bad luck.

What plain decoding would have taken for the tokens emitted so far is known: one plain step each. So a round's
gain in plain steps is known too, tokens − seconds / t₀. The guard keeps two accounts of those gains:

    R   realised gains, at most `credit_max`: what earlier rounds saved may be risked, and no more
    S   expected gains, at most `credit_max`, and with them luck: X, the sum of realised − expected since its
        last high, and V, the variance that was predicted for X

and lets a round speculate if, were it to take its worst time and emit a single token, still

    R ≥ −B₀   or   S + min(0, X + z·√V) ≥ −B₀

The second is for drafts of small gains: one that gains 5 % a round with a deviation of 0.6 loses B₀ to chance
alone sooner or later, and R would never recover. Bad luck of up to z deviations is forgiven, more is wrong
predictions, and counts. Whatever the predictor, the drift or the adversary: from any round to any later one,
and so over a request or over all of them,

    elapsed ≤ (1 + ε)·P + B₀ + credit_max + z·√V + (what rounds overran their declared worst times by)

in plain steps, P being plain decoding's time; probes have a budget of their own and are not counted. z·√V grows
with the root of the rounds, so its share shrinks.
Only a stall, a lone round of several times its prediction, is the machine's and would have hit plain decoding
as well: it is not counted. Conservative bandits (Wu et al. 2016) with a baseline known without playing it.
"""

from __future__ import annotations

import math

STALL = 3.0  # times its prediction: a round that long was held up
STALL_ROUNDS = 16  # speculative rounds in which one stall is excused; more of them are slowness
VARIANCE_MAX = 1.5  # tokens², of a round: long drafts that pay need no forgiveness
TIME_NOISE = 0.15  # deviation of a round's seconds, relative to their prediction


class SlowdownGuard:
    """The account of what speculation has cost so far, across requests."""

    def __init__(
        self, *, tolerance: float, budget: float, credit_max: float, deviations: float
    ) -> None:
        """Open the account.

        Args:
            tolerance: ε, which pays debts back and saves nothing up.
            budget: B₀ in plain steps.
            credit_max: most plain steps of earlier gains that may be risked.
            deviations: z.
        """
        self._tolerance = tolerance
        self._budget = budget
        self._credit_max = credit_max
        self._deviations = deviations
        self._since_stall = STALL_ROUNDS  # speculative rounds since a stall was excused
        self._realised = 0.0  # R
        self._expected = 0.0  # S
        self._luck = 0.0  # X
        self._variance = 0.0  # V

    @property
    def balance(self) -> float:
        """Plain steps to the good; below 0, lost."""
        return max(self._realised, self._forgiven)

    @property
    def _forgiven(self) -> float:
        """The account of expected gains, less luck that is too bad to be luck."""
        unlikely = self._luck + self._deviations * math.sqrt(self._variance)
        return self._expected + min(0.0, unlikely)

    def room(self, plain_step: float) -> float:
        """Return the seconds that a speculative round may take at worst; a plain step takes t₀ now."""
        return (1.0 + self._budget + self.balance) * plain_step

    def observe_plain(self, steps: float = 1.0) -> None:
        """Account for a plain round: it took what plain decoding takes."""
        self._pay_back(steps)

    def observe_probe(self, gain: float) -> None:
        """Account for a probe: what it costs is limited by `ProbeBudget`, what it gains counts here.

        A draft that has become good is so let go on, however much was lost before.
        """
        self._realised = min(self._realised + max(0.0, gain), self._credit_max)

    def observe_speculation(
        self,
        seconds: float,
        *,
        emitted: int,
        plain_step: float,
        predicted: float,
        expected: float,
        variance: float,
    ) -> None:
        """Account for a round that ran the draft.

        Args:
            emitted: tokens of the round.
            plain_step: seconds of a plain step at the time.
            predicted: seconds that the round was expected to take.
            expected: tokens that it was expected to emit, known before any was judged.
            variance: of the tokens emitted, as predicted.
        """
        self._since_stall += 1
        if seconds > STALL * predicted and self._since_stall > STALL_ROUNDS:
            seconds = STALL * predicted
            self._since_stall = 0
        gain, realised = expected - predicted / plain_step, emitted - seconds / plain_step
        self._realised = min(self._realised + realised, self._credit_max)
        self._expected = min(self._expected + gain, self._credit_max)
        self._luck += realised - gain
        self._variance += min(variance, VARIANCE_MAX) + (TIME_NOISE * predicted / plain_step) ** 2
        if self._luck >= 0.0:
            self._luck = self._variance = 0.0
        self._pay_back(seconds / plain_step)

    def _pay_back(self, steps: float) -> None:
        pay = self._tolerance * steps
        self._realised += max(0.0, min(pay, -self._realised))
        self._expected += max(0.0, min(pay, -self._forgiven))
