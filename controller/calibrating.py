"""From logits of any model to calibrated ones: a slope, a level, and an offset at each depth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .depth_calibration import depth_offsets
from .features import DEPTH_BUCKETS
from .trace_rows import Array, Bools, Ints, TraceRows

FLAT = (0.0,) * DEPTH_BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """slope · logit + intercept + the offset of the depth's bucket."""

    slope: float
    intercept: float
    offsets: tuple[float, ...]

    @property
    def levels(self) -> tuple[float, ...]:
        """What is added at each bucket of depth."""
        return tuple(self.intercept + offset for offset in self.offsets)

    def logits(self, logits: Array, depth: Ints) -> Array:
        """Return the calibrated logits, [N] each; depths from 1."""
        buckets = np.minimum(depth, DEPTH_BUCKETS) - 1
        calibrated: Array = self.slope * logits + np.array(self.levels)[buckets]
        return calibrated


def calibrate(logits: Array, chosen: Bools, rows: TraceRows, notes: list[str]) -> Calibration:
    """Return what the chosen rounds teach: slope and level by Platt scaling, then depth by depth.

    Args:
        logits: [N], out of fold.
        chosen: [N], whole rounds.
        notes: takes what limits the trust in it.
    """
    slope, intercept = _platt(logits, chosen & rows.tested, rows, notes)
    if slope == 0.0 or not both_outcomes(rows, chosen & rows.tested):
        return Calibration(slope=slope, intercept=intercept, offsets=FLAT)
    offsets = depth_offsets(slope * logits + intercept, rows, chosen)
    return Calibration(slope=slope, intercept=intercept, offsets=offsets)


def calibrate_out_of_fold(
    logits: Array, rows: TraceRows, folds: list[tuple[Bools, Bools]]
) -> Array:
    """Return calibrated logits [N], each by what the other folds teach."""
    calibrated = np.empty_like(logits)
    for inside, outside in folds:
        scale = calibrate(logits, inside, rows, [])
        calibrated[outside] = scale.logits(logits[outside], rows.depth[outside])
    return calibrated


def both_outcomes(rows: TraceRows, chosen: Bools) -> bool:
    """Is something accepted and something rejected among the chosen rows?"""
    label = rows.labels(chosen)[1]
    return bool(label.any()) and not bool(label.all())


def mean_logit(label: Bools, weight: Array) -> float:
    """Return the logit of the share accepted, one of each kind added."""
    return math.log((float(weight[label].sum()) + 1.0) / (float(weight[~label].sum()) + 1.0))


def _platt(logits: Array, chosen: Bools, rows: TraceRows, notes: list[str]) -> tuple[float, float]:
    """Return slope and intercept that make out-of-fold logits calibrated (Platt 1999).

    A slope below 0 says that the features order tokens worse than chance: only the mean is kept.
    """
    from sklearn.linear_model import LogisticRegression

    row, label, weight = rows.labels(chosen)
    if label.all() or not label.any():
        return 1.0, 0.0
    model = LogisticRegression(C=100.0, max_iter=1000)
    model.fit(logits[row][:, None], label, sample_weight=weight)
    slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
    if slope > 0.0:
        return slope, intercept
    notes.append("the features do not order tokens by acceptance: the predictor is a constant")
    return 0.0, mean_logit(label, weight)
