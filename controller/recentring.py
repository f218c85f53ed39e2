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

    def age(self, *, unseen: bool) -> None:
        """Let a round pass. While nothing is tested the text may have become another."""
        drift = UNSEEN_DRIFT if unseen else self._drift
        self.variance = max(self.variance, min(self.variance + drift, VARIANCE_MAX))

    def observe(self, logit: float, accepted: bool) -> None:
        """Learn from one tested token whose predicted logit, without this intercept, was `logit`."""
        chance = sigmoid(logit + self.value)
        self.variance /= 1.0 + self.variance * chance * (1.0 - chance)
        step = self.variance * (float(accepted) - chance)
        step = max(-STEP_MAX, min(STEP_MAX, step))
        self.value = max(-VALUE_MAX, min(VALUE_MAX, self.value + step))


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
