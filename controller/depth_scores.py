"""How well chances of acceptance are calibrated at each depth, beside what luck alone would show.

The mean distance of ten bins from the diagonal is above 0 for perfectly calibrated chances too: with n tokens a
bin is off by about √(p(1 − p)/n) on average. That floor is found by drawing the outcomes from the chances
themselves, and the error is given as it is, with its floor, and as a root mean square
with the square that luck adds taken off: 0 about half of the time where the chances are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .trace_rows import Array, Bools, Ints, TraceRows

BINS = 10
DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthScore:
    """One depth. What is not defined there, for want of tokens, is NaN."""

    depth: int
    tokens: int  # of the texts, different ones, that were tested at this depth
    ece: float  # over bins of equal weight
    ece_floor: float  # mean of the same where outcomes are drawn from the chances
    excess: float  # root mean square distance of bins, without what luck adds
    survival: float  # mean predicted S_depth
    observed: float  # share of rounds in which so many are accepted
    survival_error: float  # standard error of their difference, over texts


def score_rows(rows: TraceRows, chances: Array, *, seed: int = 0) -> list[DepthScore]:
    """Judge chances [N] depth by depth, those of whole rounds, on texts that they were not fitted on."""
    rng = np.random.default_rng(seed)
    token = rows.token
    survivals = _survivals(rows, chances)
    scores = []
    for depth in range(1, int(rows.depth.max()) + 1):
        chosen = rows.tested & (rows.depth == depth)
        ece = floor = excess = math.nan
        if chosen.any():
            ece, floor, excess = _bins(
                chances[chosen],
                rows.accepted[chosen],
                rows.weight[chosen],
                np.unique(token[chosen], return_inverse=True)[1].reshape(-1),
                rng,
            )
        scores.append(
            DepthScore(
                depth=depth,
                tokens=len(np.unique(token[chosen])),
                ece=ece,
                ece_floor=floor,
                excess=excess,
                **survivals[depth],
            )
        )
    return scores


def _bins(
    chances: Array, accepted: Bools, weight: Array, token: Ints, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Return the error, its floor, and the excess; rows of one token share their luck."""
    order = np.argsort(chances, kind="stable")
    share = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    index = np.empty(len(chances), dtype=np.intp)
    index[order] = np.minimum((share * BINS).astype(np.intp), BINS - 1)
    total = np.bincount(index, weight, BINS)

    def gaps(outcome: Array) -> Array:
        off = np.bincount(index, weight * (chances - outcome), BINS)  # [BINS]
        gap: Array = off / np.maximum(total, 1e-12)
        return gap

    part = total / total.sum()
    gap = gaps(accepted.astype(np.float64))
    luck = [
        gaps((rng.random(int(token.max()) + 1)[token] < chances).astype(np.float64))
        for _ in range(DRAWS)
    ]
    floor = float(np.mean([part @ np.abs(one) for one in luck]))
    squared = float(part @ gap**2) - float(np.mean([part @ one**2 for one in luck]))
    return float(part @ np.abs(gap)), floor, math.sqrt(max(0.0, squared))


def _survivals(rows: TraceRows, chances: Array) -> Mapping[int, dict[str, Any]]:
    """Return for each depth the mean predicted and observed S, and the error of their difference."""
    rounds = np.stack([rows.request.astype(np.intp), rows.round.astype(np.intp)], axis=1)
    found, row = np.unique(rounds, axis=0, return_inverse=True)
    row = row.reshape(-1)
    shape = (len(found), int(rows.depth.max()))
    predicted, observed = np.full(shape, np.nan), np.full(shape, np.nan)
    predicted[row, rows.depth - 1] = chances
    observed[row, rows.depth - 1] = rows.accepted
    predicted, observed = np.cumprod(predicted, axis=1), np.cumprod(observed, axis=1)
    weight = np.ones(shape[0])
    weight[row] = rows.weight
    text: npt.NDArray[np.intp] = np.unique(found[:, 0], return_inverse=True)[1].reshape(-1)
    table = {}
    for depth in range(1, shape[1] + 1):
        drafted = ~np.isnan(predicted[:, depth - 1])
        heavy = np.where(drafted, weight, 0.0)
        total = heavy.sum()
        ahead = np.where(drafted, predicted[:, depth - 1], 0.0)
        truly = np.where(drafted, observed[:, depth - 1], 0.0)
        mean = float(heavy @ (ahead - truly)) / total
        each = np.bincount(text, heavy * (ahead - truly - mean))  # of each text
        table[depth] = {
            "survival": float(heavy @ ahead) / total,
            "observed": float(heavy @ truly) / total,
            "survival_error": math.sqrt(float((each**2).sum())) / total,
        }
    return table
