"""Never slower than plain decoding, path by path, but for a stated share of bad luck.

A round's gain in plain steps is its tokens less what it costs in plain steps: tokens − T / t₀, both as the
latency table puts them once it has seen the round (`costs.py`). Seconds of single rounds are not used: on a
machine that others use a forward takes 1.2 times its median on average and now and then twenty times, which
hits plain decoding as well, and what stays is in the table soon. The guard keeps two accounts of gains:

    R   realised gains, at most `credit_max`: what earlier rounds saved may be risked, and no more
    S   expected gains, at most `credit_max`, and with them luck: X, the sum of realised − expected since its
        last high, and V, the variance that was predicted for X, but no more than the squares of the
        lengths that were ever accepted add up to

and lets a round speculate if, were it to take its worst time and emit a single token, still

    R ≥ −B₀   or   S + min(0, X + z·√V) ≥ −B₀

The second is for drafts of small gains: one that gains 5 % a round with a deviation of 0.6 loses B₀ to chance
alone sooner or later, and R would never recover. Bad luck of up to z deviations is forgiven, more is wrong
predictions, and counts. A draft that has never been right has no luck to wait for, however it is believed
in, and is forgiven next to nothing: by what was predicted alone it cost 2.4 % of 400 tokens.

Whatever the predictor, the drift or the adversary: from any round to any later one, and so over a request
or over all of them,

    costs ≤ (1 + ε)·tokens + B₀ + credit_max + z·√V

in plain steps; probes have a budget of their own and are not counted. z·√V grows with the root of the rounds,
so its share shrinks. Conservative bandits (Wu et al. 2016) with a baseline known without playing it.
"""

from __future__ import annotations

import math

VARIANCE_MAX = 1.5  # tokens², of a round: long drafts that pay need no forgiveness
SEEN_START = 0.36  # tokens²: what is taken as seen before anything was accepted


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
        self._realised = 0.0  # R
        self._expected = 0.0  # S
        self._luck = 0.0  # X
        self._variance = 0.0  # predicted for X
        self._seen = SEEN_START  # squares of accepted lengths, ever

    @property
    def balance(self) -> float:
        """Plain steps to the good; below 0, lost."""
        return max(self._realised, self._forgiven)

    @property
    def _forgiven(self) -> float:
        """The account of expected gains, less luck that is too bad to be luck."""
        variance = min(self._variance, self._seen)  # V
        unlikely = self._luck + self._deviations * math.sqrt(variance)
        return self._expected + min(0.0, unlikely)

    def room(self, plain_step: float) -> float:
        """Return the seconds that a speculative round may take at worst; a plain step takes t₀ now."""
        return (1.0 + self._budget + self.balance) * plain_step

    def observe_plain(self) -> None:
        """Account for a plain round: a token for a plain step."""
        self._pay_back(1.0)

    def observe_probe(self, gain: float) -> None:
        """Account for a probe: what it costs is limited by `ProbeBudget`, what it gains counts here.

        A draft that has become good is so let go on, however much was lost before.
        """
        self._realised = min(self._realised + max(0.0, gain), self._credit_max)

    def observe_speculation(
        self, *, emitted: int, cost: float, expected: float, variance: float
    ) -> None:
        """Account for a round that ran the draft.

        Args:
            emitted: tokens of the round.
            cost: of the round, in plain steps.
            expected: tokens that it was expected to emit, known before any was judged.
            variance: of the tokens emitted, as predicted.
        """
        self._realised = min(self._realised + emitted - cost, self._credit_max)
        self._expected = min(self._expected + expected - cost, self._credit_max)
        self._luck += emitted - expected
        self._variance += min(variance, VARIANCE_MAX)
        self._seen += min((emitted - 1) ** 2, VARIANCE_MAX)
        if self._luck >= 0.0:
            self._luck = self._variance = 0.0
        self._pay_back(cost)

    def _pay_back(self, steps: float) -> None:
        pay = self._tolerance * steps
        self._realised += max(0.0, min(pay, -self._realised))
        self._expected += max(0.0, min(pay, -self._forgiven))
