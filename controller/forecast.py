"""What the next look at the draft's distribution will be like: a small Markov chain over bins.

A look is summed up by one number, the part of the predicted logit that the draft's distribution
gives. Depth, history and drift are added later, so the chain stays valid when those move.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
FIRST_STRENGTH = 8.0  # looks that the fitted law of a first look is worth
ROW_STRENGTH = 10.0  # the same for each row of the chain
FORGETTING = 0.99  # per look: about 70 looks to half the weight, so a new domain is followed


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastPrior:
    """The chain as it was in the traces. K bins."""

    edges: tuple[float, ...]  # K − 1, ascending
    centers: tuple[float, ...]  # K, mean logit of a bin
    first: tuple[float, ...]  # K, law at depth 1
    following: tuple[tuple[float, ...], ...]  # K × K, row i: law after bin i

    def __post_init__(self) -> None:
        bins = len(self.centers)
        shapes = len(self.edges) == bins - 1 and len(self.first) == bins == len(self.following)
        laws = [self.first, *self.following]
        if not shapes or any(len(law) != bins or abs(sum(law) - 1.0) > 1e-6 for law in laws):
            raise ValueError(f"forecast must be laws over its {bins} bins, with {bins - 1} edges")


class LookForecast:
    """The chain, kept up to date by what is seen: counts with forgetting on top of the prior."""

    def __init__(self, prior: ForecastPrior) -> None:
        self._edges = list(prior.edges)
        self.centers: Array = np.array(prior.centers)  # [K]
        self._first_prior: Array = FIRST_STRENGTH * np.array(prior.first)  # [K]
        self._following_prior: Array = ROW_STRENGTH * np.array(prior.following)  # [K, K]
        self._first = np.zeros_like(self._first_prior)
        self._following = np.zeros_like(self._following_prior)

    def bin(self, logit: float) -> int:
        """Return the bin of a look."""
        return bisect_right(self._edges, logit)

    def observe(self, bin_: int, previous: int | None) -> None:
        """Count a look; `previous` is the bin of the round's look before it, None for the first."""
        row = self._first if previous is None else self._following[previous]
        row *= FORGETTING
        row[bin_] += 1.0

    def first(self) -> Array:
        """Return the law of a round's first look, [K]."""
        counts = self._first_prior + self._first
        law: Array = counts / counts.sum()
        return law

    def following(self) -> Array:
        """Return the laws of a later look, [K, K]; row i is after bin i."""
        counts = self._following_prior + self._following
        laws: Array = counts / counts.sum(1, keepdims=True)
        return laws

    def acceptance(self, logit: float, offsets: Sequence[float]) -> Array:
        """Return the chance of acceptance at each depth in each bin, [len(offsets), K].

        Args:
            logit: what is added at all depths.
            offsets: what is added at each.
        """
        logits = self.centers + (logit + np.array(offsets))[:, None]
        chances: Array = 1.0 / (1.0 + np.exp(-logits))
        return chances

    def hazards(self, acceptance: Array) -> list[float]:
        """Return the chance of acceptance at each depth before any look, given [depths, K]."""
        law, following = self.first(), self.following()
        hazards = []
        for chances in acceptance:
            hazards.append(float(law @ chances))
            law = law @ following
        return hazards
