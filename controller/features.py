"""What the predictor looks at, known before the token is drawn. Traces and the loop agree here.

Three groups: the draft's distribution (a look), the depth, and what is known when the round starts.
The logit is a sum over the groups, which lets the policy add up only what changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data import History, Signals
from ..data.echoes import NO_ECHO, Echo

Array = npt.NDArray[np.float64]
LOGIT_MAX = 12.0
DEPTH_BUCKETS = 5  # 1, 2, 3, 4 and "5 or more": deep tokens are too few for a number each

LOOK_FEATURES = ("logit_top1", "margin", "entropy", "echo_agrees", "echo_differs")
DEPTH_FEATURES = tuple(f"depth_{depth}" for depth in range(1, DEPTH_BUCKETS + 1))
ROUND_FEATURES = (
    "recent_acceptance",
    "prev_target_top1_logprob",
    "prev_target_entropy",
    "prev_target_missing",
    "log_context",
    "sampled",
)
FEATURES = LOOK_FEATURES + DEPTH_FEATURES + ROUND_FEATURES
LOOK = slice(0, len(LOOK_FEATURES))
DEPTH = slice(LOOK.stop, LOOK.stop + DEPTH_BUCKETS)
ROUND = slice(DEPTH.stop, len(FEATURES))

TRACE_COLUMNS = (
    "depth",
    "context_length",
    "temperature",
    "top1_logprob",
    "margin",
    "entropy",
    "prev_target_top1_logprob",
    "prev_target_entropy",
    "recent_acceptance",
)
ECHO_COLUMNS = ("echo_agrees", "echo_differs")  # not known where the traces lack them


def logit_of_logprob(logprob: float) -> float:
    """Return log p − log(1 − p), within ±12."""
    if logprob >= -1e-9:
        return LOGIT_MAX
    return max(-LOGIT_MAX, min(LOGIT_MAX, logprob - math.log(-math.expm1(logprob))))


def look_features(look: Signals, echo: Echo = NO_ECHO) -> tuple[float, ...]:
    """Return the features of a draft distribution, in the order of LOOK_FEATURES; NaN where not known."""
    return logit_of_logprob(look.top1_logprob), look.margin, look.entropy, *echo


def depth_bucket(depth: int) -> int:
    """Return the index in DEPTH_FEATURES of a depth (from 1)."""
    return min(depth, DEPTH_BUCKETS) - 1


def round_features(
    *, recent_acceptance: float, prev_target: Signals, context_length: int, temperature: float
) -> tuple[float, ...]:
    """Return what is known when a round starts, as in ROUND_FEATURES; NaN where not known."""
    return (
        recent_acceptance,
        prev_target.top1_logprob,
        prev_target.entropy,
        float(math.isnan(prev_target.top1_logprob)),
        math.log(max(context_length, 1)),
        float(temperature > 0.0),
    )


def known_before(history: History, context_length: int, temperature: float) -> tuple[float, ...]:
    """Return `round_features` of a request with that history."""
    return round_features(
        recent_acceptance=history.recent_acceptance,
        prev_target=history.prev_target,
        context_length=context_length,
        temperature=temperature,
    )


def feature_matrix(traces: Mapping[str, npt.NDArray[Any]]) -> Array:
    """Return the features of traced tokens, [rows, len(FEATURES)]; NaN where not known.

    Raises:
        ValueError: naming a column that the traces lack.
    """
    missing = [name for name in TRACE_COLUMNS if name not in traces]
    if missing:
        raise ValueError(f"traces lack the columns {missing}; they have {sorted(traces)}")
    column = {name: np.asarray(traces[name], dtype=np.float64) for name in TRACE_COLUMNS}
    buckets = np.minimum(column["depth"], DEPTH_BUCKETS).astype(np.intp) - 1
    logits = [logit_of_logprob(value) for value in column["top1_logprob"].tolist()]
    echoes = [column_or_unknown(traces, name, len(logits)) for name in ECHO_COLUMNS]
    look = np.stack([np.array(logits), column["margin"], column["entropy"], *echoes], axis=1)
    known = np.stack(
        [
            column["recent_acceptance"],
            column["prev_target_top1_logprob"],
            column["prev_target_entropy"],
            np.isnan(column["prev_target_top1_logprob"]).astype(np.float64),
            np.log(np.maximum(column["context_length"], 1.0)),
            (column["temperature"] > 0.0).astype(np.float64),
        ],
        axis=1,
    )
    return np.concatenate([look, np.eye(DEPTH_BUCKETS)[buckets], known], axis=1)


def column_or_unknown(traces: Mapping[str, npt.NDArray[Any]], name: str, rows: int) -> Array:
    """Return a column of traces, NaN (not known) in each row where they lack it."""
    return np.asarray(traces.get(name, np.full(rows, math.nan)), dtype=np.float64)
