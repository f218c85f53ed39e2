"""The chance that a looked-up token is right, learned online from match length, counts and depth.

What is copied so far says most: `run` tokens before the match are the same, and where k − 1 candidates were
right, run + k − 1 are. With the runs so counted, depth by itself says nothing more (85 000 candidates in
texts of a 135M target, T = 0, 0.7 and 1: its weight was fitted as −0.02 a doubling), so there is one logit:

    logit a_k = w · (1, log2(run + k − 1), disputed, log2(1 + agreed)) + the request's own intercept

The prior weights were fitted to those looks. All of them move with what comes, of every look, followed or
not: an extended Kalman filter of a logistic regression. Texts differ more in how much they copy than in what a
match means, so a request's intercept moves fast, and the weights slowly.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..spec import Look
from .recentring import InterceptFilter

Array = npt.NDArray[np.float64]
WEIGHTS = (-1.1, 0.8, -1.4, 0.8)  # of 1, log2 of the run, disputed, log2(1 + agreed)
VARIANCES = (0.1, 0.01, 0.1, 0.05)
DRIFT = 2e-6  # variance that a look adds to each weight: the forgetting
AGREED_MAX = 7
LATER = 0.5  # what earlier occurrences say of the second candidate and on, of what they say of the first
REQUEST_VARIANCE, REQUEST_DRIFT = 0.2, 0.005
CHANCE_MAX = 0.995
LOGIT_MAX = 12.0


class MatchPredictor:
    """Predicts the acceptance of looked-up tokens; learns from what came."""

    def __init__(self) -> None:
        """Know what the prior says."""
        self._weights: Array = np.array(WEIGHTS)  # [4]
        self._covariance: Array = np.diag(VARIANCES)  # [4, 4]
        self._last: Look | None = None  # the look that the next one judges
        self.begin_request()

    def begin_request(self) -> None:
        """A new text starts."""
        self._last = None
        self._request = InterceptFilter(value=0.0, variance=REQUEST_VARIANCE, drift=REQUEST_DRIFT)

    def see(self, look: Look) -> None:
        """Learn what came of the look before, and remember this one; once a round, before it is predicted."""
        before, self._last = self._last, look
        if before is None or before.match is None:
            return
        self._request.age(unseen=not look.came)
        features = match_features(before, len(look.came))  # [n, 4]
        for row, came in zip(features, look.came, strict=True):
            self._learn(row, came)

    def chances(self, look: Look, count: int) -> list[float]:
        """Return a_1 … of the first `count` candidates, each given that those before it were right."""
        if look.match is None:
            return []
        logits = match_features(look, count) @ self._weights + self._request.value  # [count]
        chances = 1.0 / (1.0 + np.exp(-np.clip(logits, -LOGIT_MAX, LOGIT_MAX)))
        return np.minimum(chances, CHANCE_MAX).tolist()  # type: ignore[no-any-return]

    def for_row(self) -> MatchPredictor:
        """Return a predictor of another text at the same time: what a match means is learned together."""
        row = copy.copy(self)  # the arrays are changed in place, so they are shared
        row.begin_request()
        return row

    @property
    def weights(self) -> list[float]:
        """What the prior's weights have become."""
        return self._weights.tolist()  # type: ignore[no-any-return]

    @property
    def shift(self) -> float:
        """Logits that the running request is off."""
        return self._request.value

    def _learn(self, row: Array, came: bool) -> None:
        known = float(row @ self._weights)
        chance = 1.0 / (1.0 + np.exp(-np.clip(known + self._request.value, -LOGIT_MAX, LOGIT_MAX)))
        self._request.observe(known, came)
        self._covariance.flat[:: len(row) + 1] += DRIFT
        reach = self._covariance @ row  # [4]
        information = chance * (1.0 - chance)
        gain = reach / (1.0 + information * float(row @ reach))
        self._weights += gain * (float(came) - chance)
        self._covariance -= information * np.outer(gain, reach)


def match_features(look: Look, count: int) -> Array:
    """Return the features of the first `count` candidates of a look that found a match, [count, 4]."""
    assert look.match is not None
    rows = np.empty((count, len(WEIGHTS)))
    rows[:, 0] = 1.0
    rows[:, 1] = np.log2(look.run + np.arange(count))
    disputed = look.match.count > 1 and look.match.agreed == 0
    rows[:, 2] = float(disputed)
    rows[:, 3] = np.log2(1 + min(look.match.agreed, AGREED_MAX))
    rows[1:, 2:] *= LATER
    return rows


def survivals(chances: Sequence[float]) -> list[float]:
    """Return S_1 …, the chance that all candidates up to each are right."""
    return np.cumprod(chances).tolist()  # type: ignore[no-any-return]
