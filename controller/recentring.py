"""Follows drift of the predictor's intercept from what rounds observe; slopes stay as fitted.

A domain moves the mean acceptance, hardly the meaning of the features, so one number per request is
learned, starting from one that is learned across requests. Each is a scalar Kalman filter.
"""

from __future__ import annotations

import math

STEP_MAX = 0.5  # logits a single token may move the intercept: damping
VALUE_MAX = 6.0
SPREAD = 0.03  # variance between requests
UNSEEN_DRIFT, VARIANCE_MAX = 2e-3, 0.25
SURPRISE_FORGETTING = 0.97  # per token: the last thirty or so
SURPRISE = 2.3  # standard deviations that these are off: the text is of another kind
SURPRISED_VARIANCE = 0.35


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(−logit)) without overflow."""
    if logit >= 0.0:
        return 1.0 / (1.0 + math.exp(-logit))
    odds = math.exp(logit)
    return odds / (1.0 + odds)


class InterceptFilter:
    """A drifting intercept: its mean and variance."""

    def __init__(self, *, value: float, variance: float, drift: float) -> None:
        """Start somewhere.

        Args:
            variance: of the start.
            drift: variance added per round; this is the forgetting.
        """
        self.value = value
        self.variance = variance
        self._drift = drift
        self._off = self._off_variance = 0.0  # accepted − predicted of the last tokens

    def age(self, *, unseen: bool) -> None:
        """Let a round pass. While nothing is tested the text may have become another."""
        drift = UNSEEN_DRIFT if unseen else self._drift
        self.variance = max(self.variance, min(self.variance + drift, VARIANCE_MAX))

    def observe(self, logit: float, accepted: bool) -> None:
        """Learn from one tested token whose predicted logit, without this intercept, was `logit`."""
        chance = sigmoid(logit + self.value)
        if self._surprised(float(accepted) - chance, chance * (1.0 - chance)):
            self.variance = max(self.variance, SURPRISED_VARIANCE)
        self.variance /= 1.0 + self.variance * chance * (1.0 - chance)
        step = self.variance * (float(accepted) - chance)
        step = max(-STEP_MAX, min(STEP_MAX, step))
        self.value = max(-VALUE_MAX, min(VALUE_MAX, self.value + step))

    def _surprised(self, off: float, variance: float) -> bool:
        """Are the last tokens, this one included, too far from what was predicted for them to be luck?

        Ten rejections in a row where 0.3 was predicted, for example. What was learned before then counts
        for little; once it is said, the count begins anew.
        """
        self._off = SURPRISE_FORGETTING * self._off + off
        self._off_variance = SURPRISE_FORGETTING**2 * self._off_variance + variance
        bound = max(1.0, SURPRISE * math.sqrt(self._off_variance))
        if abs(self._off) <= bound:
            return False
        self._off = self._off_variance = 0.0
        return True


class Recentring:
    """The intercept of the running request, seeded from the one across requests."""

    def __init__(self) -> None:
        self._across = InterceptFilter(value=0.0, variance=0.05, drift=1e-4)
        self.begin_request(shared=True)

    @property
    def shift(self) -> float:
        """Logits to add to the predictor's."""
        return self._within.value

    def begin_request(self, *, shared: bool) -> None:
        """Start a request; what a request that is not `shared` teaches ends with it."""
        self._shared = shared
        self._within = InterceptFilter(
            value=self._across.value, variance=self._across.variance + SPREAD, drift=5e-4
        )

    def age(self, *, unseen: bool) -> None:
        """Let a round pass; `unseen`: it tested nothing."""
        self._within.age(unseen=unseen)
        self._across.age(unseen=False)

    def observe(self, logit: float, accepted: bool) -> None:
        """Learn from one tested token whose predicted logit was `logit`, without the shift."""
        self._within.observe(logit, accepted)
        if self._shared:
            self._across.observe(logit, accepted)
