"""How often a drafted token is accepted at each depth, given that those before it were.

Counts are at risk: depth k is counted only in rounds where it was tested. "Accepted / drafted" and
mean accepted length depend on γ, hazards do not. In a loop that stops early the tested tokens are
the promising ones, so the hazards are compared with what was predicted for the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

FORGETTING = 0.995  # per round with a tested token: about 140 rounds to half the weight
PRIOR_STRENGTH = 20.0  # tested tokens that the prior is worth
OFFSET_INFORMATION = 60.0  # prior precision of a depth's offset, in units of Σ a(1 − a)
OFFSET_MAX = 1.0  # logits


class HazardTracker:
    """Hazards by depth, and the logit by which the predictor is off at each depth."""

    def __init__(self, prior: Sequence[float]) -> None:
        """Start from hazards a_1 … a_Γ of the traces."""
        self._prior = list(prior)
        self._tested = [0.0] * len(prior)
        self._accepted = [0.0] * len(prior)
        self._expected = [0.0] * len(prior)
        self._information = [0.0] * len(prior)

    def observe(self, predicted: Sequence[float], accepted: int) -> None:
        """Take in a round's tested tokens.

        Args:
            predicted: chance of acceptance of each tested token, without this tracker's offsets.
            accepted: how many of them, from the first on, were accepted.
        """
        for sums in (self._tested, self._accepted, self._expected, self._information):
            for index in range(len(sums)):
                sums[index] *= FORGETTING
        for index, chance in enumerate(predicted):
            self._tested[index] += 1.0
            self._accepted[index] += float(index < accepted)
            self._expected[index] += chance
            self._information[index] += chance * (1.0 - chance)

    @property
    def hazards(self) -> list[float]:
        """Mean chance of acceptance at each depth, of the tokens that were tested there."""
        return [
            (accepted + PRIOR_STRENGTH * prior) / (tested + PRIOR_STRENGTH)
            for accepted, tested, prior in zip(
                self._accepted, self._tested, self._prior, strict=True
            )
        ]

    def offset(self, depth: int) -> float:
        """Return the logit to add at `depth` (from 1): a shrunken Newton step off the predictions."""
        index = depth - 1
        surplus = self._accepted[index] - self._expected[index]
        step = surplus / (self._information[index] + OFFSET_INFORMATION)
        return max(-OFFSET_MAX, min(OFFSET_MAX, step))
