"""Decode traces as arrays for fitting: features, outcomes, and what they teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .features import LOOK, feature_matrix
from .forecast import ForecastPrior
from .linear import LinearLogit

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]
OUTCOME_COLUMNS = ("request", "round", "prompt_id", "tested", "accepted", "acceptance_prob")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceRows:
    """One row per drafted token, N of them. Only tested ones have an outcome."""

    features: Array  # [N, F]
    tested: Bools
    accepted: Bools
    soft: Array  # Σ min(p, q), NaN where the outcome itself is the label
    prompt: Ints
    request: npt.NDArray[Any]
    round: npt.NDArray[Any]
    depth: Ints
    raw: Array  # the draft's top-1 probability
    weight: Array  # how often a decoding meets the row; 1 where it was met in one
    context: Ints  # tokens committed before the round

    @classmethod
    def read(cls, traces: Mapping[str, npt.NDArray[Any]]) -> TraceRows:
        """Return the rows of trace columns; a column `weight` is read where there is one.

        Raises:
            ValueError: if a column is missing or no token was tested.
        """
        features = feature_matrix(traces)
        missing = [name for name in OUTCOME_COLUMNS if name not in traces]
        if missing:
            raise ValueError(f"traces lack the columns {missing}; they have {sorted(traces)}")
        tested = np.asarray(traces["tested"]).astype(bool)
        if not tested.any():
            raise ValueError(f"traces must hold at least one tested token, got {len(tested)} rows")
        sampled = np.asarray(traces["temperature"]).astype(np.float64) > 0.0
        soft = np.asarray(traces["acceptance_prob"]).astype(np.float64)
        return cls(
            features=features,
            tested=tested,
            accepted=np.asarray(traces["accepted"]).astype(bool) & tested,
            soft=np.where(sampled, soft, np.nan),
            prompt=np.unique(np.asarray(traces["prompt_id"]), return_inverse=True)[1],
            request=np.asarray(traces["request"]),
            round=np.asarray(traces["round"]),
            depth=np.asarray(traces["depth"]).astype(np.intp),
            raw=np.exp(np.asarray(traces["top1_logprob"]).astype(np.float64)),
            weight=np.asarray(traces.get("weight", np.ones(len(tested)))).astype(np.float64),
            context=np.asarray(traces["context_length"]).astype(np.intp),
        )

    @property
    def token(self) -> Ints:
        """A number for each token of a text, [N]: dense traces test one from several positions."""
        where = np.stack([self.request.astype(np.intp), self.context + self.depth], axis=1)
        token: Ints = np.unique(where, axis=0, return_inverse=True)[1].reshape(-1)
        return token

    def labels(self, chosen: Bools) -> tuple[Ints, Bools, Array]:
        """Return (row, label, weight) of what the chosen rows teach.

        A sampled token teaches its acceptance probability, as an accepted and a rejected copy
        weighted by it: the same mean as the outcome, far less variance.
        """
        index = np.flatnonzero(chosen)
        chance = np.where(np.isnan(self.soft), self.accepted, self.soft)[index].clip(0.0, 1.0)
        row = np.concatenate([index, index])
        label = np.repeat([True, False], len(index))
        weight = np.concatenate([chance, 1.0 - chance]) * np.tile(self.weight[index], 2)
        kept = weight > 0.0
        return row[kept], label[kept], weight[kept]

    def hazards(self) -> tuple[float, ...]:
        """Return smoothed shares of accepted among tested tokens, by depth from 1."""
        depth, weight = self.depth[self.tested], self.weight[self.tested]
        tested = np.bincount(depth, weight, minlength=2)[1:]
        hits = np.bincount(depth, weight * self.accepted[self.tested])[1:]
        return tuple(((hits + 1.0) / (tested + 2.0)).tolist())

    def forecast(self, linear: LinearLogit, bins: int) -> ForecastPrior:
        """Return the chain of looks, over at most `bins` bins of equal count.

        Args:
            linear: gives the logit that a look is summed up by.
        """
        looks = linear.terms(self.features)[:, LOOK].sum(1)  # [N]
        edges = np.unique(np.quantile(looks, np.linspace(0.0, 1.0, bins + 1)[1:-1]))
        edges = edges[edges > looks.min()]  # so that no bin is empty
        index = np.searchsorted(edges, looks, side="right")
        everywhere: Array = np.bincount(index, self.weight).astype(np.float64)  # [K]
        centers = np.bincount(index, self.weight * looks) / everywhere
        everywhere /= everywhere.sum()
        begins = self.depth == 1
        first = np.bincount(index[begins], self.weight[begins], len(everywhere)) + everywhere
        following: Array = np.tile(everywhere, (len(everywhere), 1))
        before, after = self._successive()
        np.add.at(following, (index[before], index[after]), self.weight[after])
        following /= following.sum(1, keepdims=True)
        return ForecastPrior(
            edges=tuple(edges.tolist()),
            centers=tuple(centers.tolist()),
            first=tuple((first / first.sum()).tolist()),
            following=tuple(tuple(law) for law in following.tolist()),
        )

    def _successive(self) -> tuple[Ints, Ints]:
        """Return the rows of tokens that follow each other in a round."""
        order = np.lexsort((self.depth, self.round, self.request))
        before, after = order[:-1], order[1:]
        linked = self.depth[after] == self.depth[before] + 1
        linked &= self.round[after] == self.round[before]
        linked &= self.request[after] == self.request[before]
        return before[linked], after[linked]
