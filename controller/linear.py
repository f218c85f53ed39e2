"""A linear logit over features: plain numbers, no library needed to evaluate it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .features import DEPTH, FEATURES

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLogit:
    """intercept + Σ_f coefficients_f · (clip(x_f, low_f, high_f) − mean_f) / scale_f.

    An unknown x_f counts as its mean. Clipping to the range seen in fitting keeps a longer context
    or an odd distribution from extrapolating.

    Raises:
        ValueError: naming the field that is not one finite number per feature.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    coefficients: tuple[float, ...]
    intercept: float

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "low", "high", "coefficients"):
            values = getattr(self, name)
            if len(values) != len(FEATURES) or not all(map(math.isfinite, values)):
                raise ValueError(f"{name} must be {len(FEATURES)} finite numbers, got {values!r}")
        if min(self.scale) <= 0.0:
            raise ValueError(f"scale must be positive, got {self.scale!r}")
        if not math.isfinite(self.intercept):
            raise ValueError(f"intercept must be finite, got {self.intercept!r}")

    @classmethod
    def constant(cls, logit: float) -> LinearLogit:
        """Return a predictor that says the same of every token."""
        zeros, ones = (0.0,) * len(FEATURES), (1.0,) * len(FEATURES)
        return cls(
            mean=zeros, scale=ones, low=zeros, high=ones, coefficients=zeros, intercept=logit
        )

    def rescale(self, slope: float, intercept: float) -> LinearLogit:
        """Return slope · logit + intercept as one of the same kind (Platt scaling, folded in)."""
        return replace(
            self,
            coefficients=tuple(slope * value for value in self.coefficients),
            intercept=slope * self.intercept + intercept,
        )

    def at_depths(self, offsets: Sequence[float]) -> LinearLogit:
        """Return one with an offset added for each bucket of depth; the depths are not scaled."""
        coefficients = list(self.coefficients)
        for index, offset in enumerate(offsets):
            coefficients[DEPTH.start + index] += offset
        return replace(self, coefficients=tuple(coefficients))

    def terms(self, features: Array) -> Array:
        """Return each feature's part of the logit, [N, F] to [N, F]; the intercept is not in it."""
        mean, scale = np.array(self.mean), np.array(self.scale)
        clipped = np.clip(features, self.low, self.high)
        parts = (np.where(np.isnan(features), mean, clipped) - mean) / scale
        scaled: Array = parts * np.array(self.coefficients)
        return scaled

    def logits(self, features: Array) -> Array:
        """Return the logits of rows, [N, F] to [N]."""
        logits: Array = self.terms(features).sum(1) + self.intercept
        return logits
