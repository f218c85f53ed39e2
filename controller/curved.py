"""Logits that are not a sum over features: boosted trees and a small network, as numbers.

They judge a token once its look is known. What later looks will be like is still told by the linear part,
which is a sum, so that a chain of looks can be solved ahead.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .features import DEPTH, DEPTH_BUCKETS, FEATURES

Array = npt.NDArray[np.float64]
LEAF = -1
Nodes = list[tuple[int, float, int, int, float]]  # feature, threshold, left, right, value


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLogit:
    """start + Σ over trees of the value of the leaf that a row falls into.

    A node is (feature, threshold, left, right, value); feature is −1 at a leaf. A row goes left where
    its feature, in float32 as scikit-learn reads it, is at most the threshold. What is unknown counts
    as `mean`.

    Raises:
        ValueError: if a node points to a feature or node that is not there, or backwards.
    """

    mean: tuple[float, ...]
    start: float
    trees: tuple[tuple[tuple[int, float, int, int, float], ...], ...]
    _trees: list[Nodes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_numbers("mean", self.mean, len(FEATURES))
        _check_numbers("start", (self.start,), 1)
        for nodes in self.trees:
            if not nodes:
                raise ValueError("a tree must have a node")
            for index, (feature, threshold, left, right, value) in enumerate(nodes):
                inner = feature != LEAF
                points = inner and not (
                    0 <= feature < len(FEATURES)
                    and index < left < len(nodes)
                    and index < right < len(nodes)
                )
                if points or not math.isfinite(value) or not math.isfinite(threshold):
                    raise ValueError(f"node {index} of a tree is broken: {nodes[index]!r}")
        object.__setattr__(self, "_trees", [list(nodes) for nodes in self.trees])

    def logit(self, row: Sequence[float]) -> float:
        """Return the logit of a row of FEATURES; NaN where not known. About 10 µs for 60 trees."""
        known = [m if x != x else x for x, m in zip(row, self.mean, strict=True)]
        values = array("f", known)
        total = self.start
        for nodes in self._trees:
            feature, threshold, left, right, value = nodes[0]
            while feature >= 0:
                at = left if values[feature] <= threshold else right
                feature, threshold, left, right, value = nodes[at]
            total += value
        return total

    def logits(self, features: Array) -> Array:
        """Return the logits of rows, [N, F] to [N]."""
        filled = np.where(np.isnan(features), self.mean, features).astype(np.float32)
        total = np.full(len(filled), self.start)
        rows = np.arange(len(filled))
        for tree in self.trees:
            feature, threshold, left, right, value = map(np.array, zip(*tree, strict=True))
            at = np.zeros(len(filled), dtype=np.intp)
            for _ in range(len(tree)):
                inner = feature[at] >= 0
                if not inner.any():
                    break
                lower = filled[rows, feature[at]] <= threshold[at]
                at = np.where(inner, np.where(lower, left[at], right[at]), at)
            total += value[at]
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class NetLogit:
    """One hidden layer of tanh on clipped, standardised features; what is unknown counts as the mean.

    Raises:
        ValueError: naming the field of a wrong size, or not finite.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]  # [F, H]
    biases: tuple[float, ...]  # [H]
    output: tuple[float, ...]  # [H]
    start: float
    _arrays: tuple[Array, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size, width = len(FEATURES), len(self.biases)
        for name in ("mean", "scale", "low", "high"):
            _check_numbers(name, getattr(self, name), size)
        for name in ("biases", "output"):
            _check_numbers(name, getattr(self, name), width)
        if len(self.weights) != size:
            raise ValueError(f"weights must have {size} rows, got {len(self.weights)}")
        for row in self.weights:
            _check_numbers("weights", row, width)
        _check_numbers("start", (self.start,), 1)
        if min(self.scale) <= 0.0:
            raise ValueError(f"scale must be positive, got {self.scale!r}")
        names = ("mean", "scale", "low", "high", "weights", "biases", "output")
        arrays = tuple(np.array(getattr(self, name)) for name in names)
        object.__setattr__(self, "_arrays", arrays)

    def logit(self, row: Sequence[float]) -> float:
        """Return the logit of a row of FEATURES; NaN where not known. About 10 µs."""
        return float(self.logits(np.array(row)))

    def logits(self, features: Array) -> Array:
        """Return the logits of rows, [N, F] to [N]."""
        mean, scale, low, high, weights, biases, output = self._arrays
        known = np.where(np.isnan(features), mean, np.minimum(np.maximum(features, low), high))
        hidden = np.tanh((known - mean) / scale @ weights + biases)
        logits: Array = hidden @ output + self.start
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvedLogit:
    """slope · (logit of trees or of a net) + an offset for each bucket of depth: calibrated.

    Raises:
        ValueError: naming the field.
    """

    model: TreeLogit | NetLogit
    slope: float
    offsets: tuple[float, ...]  # DEPTH_BUCKETS

    def __post_init__(self) -> None:
        _check_numbers("slope", (self.slope,), 1)
        _check_numbers("offsets", self.offsets, DEPTH_BUCKETS)

    def logit(self, row: Sequence[float]) -> float:
        """Return the logit of a row of FEATURES; NaN where not known."""
        bucket = row[DEPTH].index(1.0)
        return self.slope * self.model.logit(row) + self.offsets[bucket]

    def logits(self, features: Array) -> Array:
        """Return the logits of rows, [N, F] to [N]. A row without a depth has the offset 0."""
        depths = np.nan_to_num(features[:, DEPTH])  # [N, buckets]
        logits: Array = self.slope * self.model.logits(features) + depths @ np.array(self.offsets)
        return logits

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, ready for JSON."""
        kind = "trees" if isinstance(self.model, TreeLogit) else "net"
        numbers = {
            name: value for name, value in asdict(self.model).items() if not name.startswith("_")
        }
        return {"kind": kind, "model": numbers, "slope": self.slope, "offsets": self.offsets}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> CurvedLogit:
        """Return the logit that was written.

        Raises:
            ValueError: if the kind is unknown, or numbers are missing or broken.
        """
        kinds: dict[str, type[TreeLogit] | type[NetLogit]] = {"trees": TreeLogit, "net": NetLogit}
        if content["kind"] not in kinds:
            raise ValueError(f"kind must be one of {sorted(kinds)}, got {content['kind']!r}")
        numbers = {name: _tuples(value) for name, value in content["model"].items()}
        return cls(
            model=kinds[content["kind"]](**numbers),
            slope=content["slope"],
            offsets=tuple(content["offsets"]),
        )


def _check_numbers(name: str, values: Sequence[float], count: int) -> None:
    if len(values) != count or not all(map(math.isfinite, values)):
        raise ValueError(f"{name} must be {count} finite numbers, got {values!r}")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
