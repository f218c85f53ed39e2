"""Fits the acceptance predictor on decode traces with scikit-learn, and says how good it is.

Only tested tokens teach (those after a rejection have no outcome). All rows of a prompt stay on one
side of every split, and the figures of the report are out of fold, the calibration included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .calibrating import both_outcomes, calibrate, calibrate_out_of_fold, mean_logit
from .calibration import (
    ReliabilityBin,
    Scores,
    SurvivalRow,
    reliability,
    score,
    survival_table,
)
from .config import FitConfig
from .curved import CurvedLogit
from .depth_scores import DepthScore, score_rows
from .families import fit_family
from .features import DEPTH, FEATURES, LOOK
from .linear import LinearLogit
from .predictor import AcceptancePredictor
from .trace_rows import Array, Bools, TraceRows

STANDARD_ERRORS = 0.5  # 1, as Breiman et al. (1984) have it, threw echoes away on 16 texts
SURVIVAL_TOLERANCE = 0.03  # a gap of S_k beyond this is noted …
SURVIVAL_ROUNDS = 50  # … where so many rounds show it
ECHO = [FEATURES.index("echo_agrees"), FEATURES.index("echo_differs")]
FEATURE_SETS = [  # from few to all; indices into FEATURES
    [0, *range(DEPTH.start, DEPTH.stop)],  # the draft's top-1 probability and the depth
    [0, *ECHO, *range(DEPTH.start, DEPTH.stop)],
    [*range(LOOK.start, LOOK.stop), *range(DEPTH.start, DEPTH.stop)],
    list(range(len(FEATURES))),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """A fitted predictor and its out-of-fold quality on tested tokens.

    "raw" is the draft's own top-1 probability taken for the chance of acceptance.
    """

    predictor: AcceptancePredictor
    rows: int  # tested tokens
    prompts: int
    acceptance: float  # share accepted
    auc: float
    auc_raw: float
    log_loss: float
    log_loss_raw: float
    ece: float
    ece_raw: float
    reliability: list[ReliabilityBin]
    reliability_raw: list[ReliabilityBin]
    survival: list[SurvivalRow]
    depths: list[DepthScore]  # calibration at each depth, beside what luck alone would show
    features: list[str]  # those with a weight
    notes: list[str]  # what limits the trust in these figures

    def to_dict(self) -> dict[str, Any]:
        """Return all but the predictor, ready for JSON but for NaN."""
        content = {name: getattr(self, name) for name in self.__slots__ if name != "predictor"}
        for name in ("reliability", "reliability_raw", "survival", "depths"):
            content[name] = [asdict(row) for row in content[name]]
        return content


def fit_predictor(
    traces: Mapping[str, npt.NDArray[Any]],
    *,
    target: str = "",
    draft: str = "",
    config: FitConfig | None = None,
) -> FitReport:
    """Fit, calibrate and judge a predictor.

    Args:
        traces: columns as `foredraft.data.read_traces` gives them, one entry a drafted token.
        target, draft: fingerprints of the models that the traces came from; kept in the file.

    Raises:
        ValueError: if a column is missing or no token was tested.
    """
    config = config or FitConfig()
    rows = TraceRows.read(traces)
    notes: list[str] = []
    folds = list(_folds(rows, config, notes))
    used, outside = _choose_features(rows, folds, config)  # [N] logits
    everything = np.ones(len(outside), dtype=bool)
    scale = calibrate(outside, everything, rows, notes)
    linear = _fit_linear(rows, rows.tested, used, config, notes)
    linear = linear.rescale(scale.slope, scale.intercept).at_depths(scale.offsets)
    curved = None
    if config.family != "linear" and both_outcomes(rows, rows.tested):
        used = list(range(len(FEATURES)))
        outside = _family_out_of_fold(rows, folds, config)
        scale = calibrate(outside, everything, rows, notes)
        model = fit_family(config.family, rows, rows.tested)
        curved = CurvedLogit(model=model, slope=scale.slope, offsets=scale.levels)
    calibrated = calibrate_out_of_fold(outside, rows, folds)  # [N] logits

    chances = 1.0 / (1.0 + np.exp(-calibrated))
    tested, accepted = chances[rows.tested], rows.accepted[rows.tested]
    raw, weight = rows.raw[rows.tested], rows.weight[rows.tested]
    now, before = (score(c, accepted, config.reliability_bins, weight) for c in (tested, raw))
    survival = survival_table(
        rows.request, rows.round, rows.depth, chances, rows.accepted, rows.weight
    )
    notes += _survival_notes(survival)
    features = [FEATURES[index] for index in used]
    training = _training(rows, now, before, notes) | {"features": features}
    predictor = AcceptancePredictor(
        linear=linear,
        forecast=rows.forecast(linear, config.forecast_bins),
        hazards=rows.hazards(),
        curved=curved,
        target=target,
        draft=draft,
        training=training,
    )
    return FitReport(
        predictor=predictor,
        rows=training["rows"],
        prompts=training["prompts"],
        acceptance=training["acceptance"],
        auc=now.auc,
        auc_raw=before.auc,
        log_loss=now.log_loss,
        log_loss_raw=before.log_loss,
        ece=now.ece,
        ece_raw=before.ece,
        reliability=reliability(tested, accepted, config.reliability_bins, weight),
        reliability_raw=reliability(raw, accepted, config.reliability_bins, weight),
        survival=survival,
        depths=score_rows(rows, chances),
        features=features,
        notes=notes,
    )


def _folds(rows: TraceRows, config: FitConfig, notes: list[str]) -> Iterator[tuple[Bools, Bools]]:
    """Yield masks [N] of the rows to fit on and the rows to judge; no prompt is in both."""
    from sklearn.model_selection import GroupKFold

    everything = np.ones(len(rows.prompt), dtype=bool)
    count = min(config.folds, len(np.unique(rows.prompt)))
    if count < 2:
        notes.append("all rows are of one prompt: the figures are in-sample, so too good")
        yield everything, everything
        return
    for _, judged in GroupKFold(count).split(rows.features, groups=rows.prompt):
        outside = np.zeros_like(everything)
        outside[judged] = True
        yield ~outside, outside


def _choose_features(
    rows: TraceRows, folds: list[tuple[Bools, Bools]], config: FitConfig
) -> tuple[list[int], Array]:
    """Return the features to use, and out-of-fold logits [N] of the fit on them.

    The smallest set whose log-loss is within STANDARD_ERRORS of the best: a few hundred tokens pin down the
    meaning of the top-1 probability, not of fourteen numbers. The error is over tokens of the texts: rows
    that test the same one from other positions agree.
    """
    logits = [_out_of_fold(rows, folds, used, config) for used in FEATURE_SETS]
    losses = [_losses(rows, one) for one in logits]
    best = min(losses, key=lambda loss: float(loss.sum()))
    token = np.unique(rows.token[rows.tested], return_inverse=True)[1]
    for used, one, loss in zip(FEATURE_SETS, logits, losses, strict=True):
        gap = np.bincount(token, loss - best)  # of each token
        if gap.mean() <= STANDARD_ERRORS * gap.std() / math.sqrt(len(gap)):
            return used, one
    raise AssertionError("the best set is within its own standard error")


def _losses(rows: TraceRows, logits: Array) -> Array:
    """Return the log-loss of each tested row, times its weight."""
    labels = np.where(np.isnan(rows.soft), rows.accepted, rows.soft)[rows.tested]
    losses: Array = np.logaddexp(0.0, logits[rows.tested]) - labels * logits[rows.tested]
    return losses * rows.weight[rows.tested]


def _out_of_fold(
    rows: TraceRows, folds: list[tuple[Bools, Bools]], used: list[int], config: FitConfig
) -> Array:
    """Return logits [N], each from a fit that has not seen its prompt."""
    logits = np.empty(len(rows.prompt))
    for inside, outside in folds:
        model = _fit_linear(rows, inside & rows.tested, used, config, [])
        logits[outside] = model.logits(rows.features[outside])
    return logits


def _family_out_of_fold(
    rows: TraceRows, folds: list[tuple[Bools, Bools]], config: FitConfig
) -> Array:
    """Return logits [N] of trees or a net that have not seen the prompt."""
    logits = np.empty(len(rows.prompt))
    for inside, outside in folds:
        chosen = inside & rows.tested
        if both_outcomes(rows, chosen):
            model = fit_family(config.family, rows, chosen)
            logits[outside] = model.logits(rows.features[outside])
        else:
            _, label, weight = rows.labels(chosen)
            logits[outside] = mean_logit(label, weight)
    return logits


def _fit_linear(
    rows: TraceRows, chosen: Bools, used: list[int], config: FitConfig, notes: list[str]
) -> LinearLogit:
    """Fit one logistic regression on standardised features; a constant where it cannot be."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    row, label, weight = rows.labels(chosen)
    if label.all() or not label.any():
        notes.append("all outcomes are equal: the predictor is a smoothed constant")
        return LinearLogit.constant(mean_logit(label, weight))
    features = rows.features[chosen]
    unknown = np.isnan(features).all(0)
    features = np.where(unknown, 0.0, features)
    scaler = StandardScaler().fit(features)  # skips NaN
    mean, scale = scaler.mean_.copy(), scaler.scale_.copy()
    mean[DEPTH], scale[DEPTH] = 0.0, 1.0  # a rare depth must feel the penalty like any other
    low, high = np.nanmin(features, axis=0), np.nanmax(features, axis=0)
    low[DEPTH], high[DEPTH] = 0.0, 1.0
    filled = np.where(np.isnan(rows.features), mean, rows.features)[row]
    model = LogisticRegression(C=config.inverse_regularization, max_iter=1000)
    model.fit(((filled - mean) / scale)[:, used], label, sample_weight=weight)
    coefficients = np.zeros(len(FEATURES))
    coefficients[used] = model.coef_[0]
    return LinearLogit(
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        coefficients=tuple(coefficients.tolist()),
        intercept=float(model.intercept_[0]),
    )


def _survival_notes(survival: list[SurvivalRow]) -> list[str]:
    return [
        f"depth {row.depth}: predicted survival {row.predicted:.3f}, observed {row.observed:.3f}"
        for row in survival
        if row.rounds >= SURVIVAL_ROUNDS and abs(row.predicted - row.observed) > SURVIVAL_TOLERANCE
    ]


def _training(rows: TraceRows, now: Scores, before: Scores, notes: list[str]) -> dict[str, Any]:
    """Return what the predictor's file keeps of its origin."""
    import sklearn

    return {
        "rows": int(rows.tested.sum()),
        "prompts": len(np.unique(rows.prompt[rows.tested])),
        "acceptance": float(
            np.average(rows.accepted[rows.tested], weights=rows.weight[rows.tested])
        ),
        **asdict(now),
        **{f"{name}_raw": value for name, value in asdict(before).items()},
        "scikit_learn": sklearn.__version__,
        "notes": list(notes),
    }
