"""How far predicted chances can be trusted: reliability, calibration error, AUC, log-loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Tokens whose predicted chance lies in [low, high)."""

    low: float
    high: float
    count: float  # the sum of their weights: a number of tokens, where each weighs 1
    predicted: float  # mean predicted chance
    observed: float  # share accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalRow:
    """The product of chances up to a depth against what happened, over rounds that drafted it."""

    depth: int
    rounds: int
    predicted: float  # mean of S_depth
    observed: float  # share of rounds with all tokens up to depth accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Quality of predicted chances on tested tokens."""

    auc: float  # NaN where all outcomes are equal
    log_loss: float  # nats a token
    ece: float


def reliability(
    chances: Array, accepted: npt.NDArray[np.bool_], bins: int, weight: Array | None = None
) -> list[ReliabilityBin]:
    """Return the non-empty bins of equal width, in order.

    Args:
        chances: [N], in [0, 1].
        accepted: [N].
        weight: [N], above 0; None: 1 each.
    """
    weight = np.ones(len(chances)) if weight is None else weight
    index = np.minimum((chances * bins).astype(np.intp), bins - 1)
    table = []
    for bin_ in range(bins):
        members = index == bin_
        if members.any():
            table.append(
                ReliabilityBin(
                    low=bin_ / bins,
                    high=(bin_ + 1) / bins,
                    count=float(weight[members].sum()),
                    predicted=float(np.average(chances[members], weights=weight[members])),
                    observed=float(np.average(accepted[members], weights=weight[members])),
                )
            )
    return table


def expected_calibration_error(table: list[ReliabilityBin]) -> float:
    """Return the mean distance of predicted from observed, weighted by count."""
    total = sum(row.count for row in table)
    if not total:
        return math.nan
    return sum(row.count * abs(row.predicted - row.observed) for row in table) / total


def score(
    chances: Array, accepted: npt.NDArray[np.bool_], bins: int, weight: Array | None = None
) -> Scores:
    """Score predicted chances, [N] each. Imports scikit-learn, so not for the decode loop."""
    from sklearn.metrics import log_loss, roc_auc_score

    both = bool(accepted.any()) and not bool(accepted.all())
    return Scores(
        auc=float(roc_auc_score(accepted, chances, sample_weight=weight)) if both else math.nan,
        log_loss=float(log_loss(accepted, chances, labels=[False, True], sample_weight=weight)),
        ece=expected_calibration_error(reliability(chances, accepted, bins, weight)),
    )


def survival_table(
    request: npt.NDArray[Any],
    round_: npt.NDArray[Any],
    depth: npt.NDArray[Any],
    chances: Array,
    accepted: npt.NDArray[np.bool_],
    weight: Array | None = None,
) -> list[SurvivalRow]:
    """Compare predicted S_k with what happened, depth by depth from the left.

    Takes all drafted tokens, [N] each; a round weighs as its tokens do. Tokens after a rejection
    belong in here: S_k is predicted without knowing that it is lost.
    """
    _, row = np.unique(np.stack([request, round_], axis=1), axis=0, return_inverse=True)
    shape = (int(row.max()) + 1, int(depth.max()))
    predicted = np.full(shape, np.nan)  # [rounds, deepest]
    observed = np.full(shape, np.nan)
    weights = np.ones(shape[0])  # [rounds]
    if weight is not None:
        weights[row] = weight
    predicted[row, depth - 1] = chances
    observed[row, depth - 1] = accepted
    predicted, observed = np.cumprod(predicted, axis=1), np.cumprod(observed, axis=1)
    table = []
    for column in range(shape[1]):
        drafted = ~np.isnan(predicted[:, column])
        if drafted.any():
            table.append(
                SurvivalRow(
                    depth=column + 1,
                    rounds=int(drafted.sum()),
                    predicted=float(
                        np.average(predicted[drafted, column], weights=weights[drafted])
                    ),
                    observed=float(np.average(observed[drafted, column], weights=weights[drafted])),
                )
            )
    return table
