"""Calibration by depth, from left to right: the products S_k of chances are right, not only each chance.

For each depth the offset at which the mean of S_k, over all rounds that drafted k tokens, is the share of them
in which all k were accepted, the depths before it being done.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .features import DEPTH_BUCKETS
from .trace_rows import Array, Bools, Ints, TraceRows

PRIOR = (
    10.0  # pulls an offset to 0, as so many tested tokens of an even chance of each kind do times 4
)
OFFSET_MAX = 3.0  # logits
_BISECTIONS = 40


def depth_offsets(logits: Array, rows: TraceRows, chosen: Bools) -> tuple[float, ...]:
    """Return what to add to the logits at each bucket of depth, DEPTH_BUCKETS numbers.

    Args:
        logits: [N], of chances of acceptance.
        chosen: [N], whole rounds; their untested tokens belong in here.
    """
    place, depth = _places(rows, chosen)
    shape = (int(place.max()) + 1, max(int(depth.max()), 1))
    table = np.full(shape, -np.inf)  # [rounds, deepest]; what was not drafted does not survive
    accepted = np.zeros(shape)
    weight = np.zeros(shape[0])
    table[place, depth - 1] = logits[chosen]
    accepted[place, depth - 1] = rows.accepted[chosen]
    weight[place] = rows.weight[chosen]
    observed = weight @ np.cumprod(accepted, axis=1)  # [deepest]
    reached = weight.copy()  # weight · S of what comes before
    offsets = []
    for bucket in range(DEPTH_BUCKETS):
        stop = bucket + 1 if bucket + 1 < DEPTH_BUCKETS else shape[1]
        columns = table[:, bucket:stop]
        offset = 0.0
        if columns.shape[1]:
            offset = _solve(columns, reached, float(observed[bucket:stop].sum()))
            reached = reached * _sigmoid(columns + offset).prod(1)
        offsets.append(offset)
    return tuple(offsets)


def _solve(columns: Array, reached: Array, observed: float) -> float:
    """Return the offset b at which Σ reached · Π σ(z + b) + PRIOR · b is what was observed."""
    low, high = -OFFSET_MAX, OFFSET_MAX
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        survival = np.cumprod(_sigmoid(columns + middle), axis=1)
        too_many = float((reached @ survival).sum()) + PRIOR * middle > observed
        low, high = (low, middle) if too_many else (middle, high)
    return 0.5 * (low + high)


def _places(rows: TraceRows, chosen: Bools) -> tuple[Ints, Ints]:
    """Return the round, from 0 on, and the depth of each chosen row."""
    rounds = np.stack([rows.request[chosen], rows.round[chosen]], axis=1)
    place: npt.NDArray[np.intp] = np.unique(rounds, axis=0, return_inverse=True)[1].reshape(-1)
    return place, rows.depth[chosen]


def _sigmoid(logits: Array) -> Array:
    with np.errstate(over="ignore"):
        chances: Array = 1.0 / (1.0 + np.exp(-logits))
    return chances
