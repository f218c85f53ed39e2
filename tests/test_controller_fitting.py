"""Fitting on traces: what is learned, from which rows, and how honestly it is judged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from controller_sim import SIGNALS, STEPS, Text, traces
from foredraft.controller import FitConfig, fit_predictor
from foredraft.controller.calibration import (
    expected_calibration_error,
    reliability,
    survival_table,
)
from foredraft.controller.features import DEPTH, FEATURES, feature_matrix

Columns = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take many times longer than these fits on a busy machine."""
    with threadpool_limits(1):
        yield


@cache
def informative() -> Columns:
    return traces(Text.make(length=2000, mean=0.4, slope=1.7, seed=3))


def first_rows(columns: Columns, count: int) -> Columns:
    return {name: column[:count] for name, column in columns.items()}


def test_the_fit_ranks_as_well_as_the_truth_and_is_calibrated() -> None:
    """AUC of the true chances is 0.82 here; draws of 2,000 tokens move it by 0.01 (one sigma)."""
    report = fit_predictor(informative())
    assert report.rows == int(informative()["tested"].sum())
    assert 0.79 < report.auc < 0.85
    assert report.ece < report.ece_raw
    assert report.ece < 0.05
    assert report.log_loss < report.log_loss_raw
    assert report.survival[0].predicted == pytest.approx(report.survival[0].observed, abs=0.03)
    assert [row.depth for row in report.survival] == [1, 2, 3, 4, 5, 6]
    assert report.predictor.hazards[0] == pytest.approx(report.acceptance, abs=0.06)
    json.dumps(report.to_dict())


def test_only_tested_rows_teach() -> None:
    poisoned = {name: column.copy() for name, column in informative().items()}
    poisoned["accepted"][~poisoned["tested"]] = True
    poisoned["acceptance_prob"][~poisoned["tested"]] = 1.0
    assert fit_predictor(poisoned).predictor.linear == fit_predictor(informative()).predictor.linear


def test_figures_are_of_prompts_not_seen() -> None:
    """Prompts whose rows repeat would look predictable, were they split by row: pure luck has AUC 0.5."""
    rng = np.random.default_rng(0)
    source = first_rows(informative(), 60)
    kinds = []
    for prompt in range(60):
        one = {name: np.repeat(column[prompt : prompt + 1], 20) for name, column in source.items()}
        one["prompt_id"] = np.full(20, f"p{prompt}")
        one["tested"] = np.ones(20, dtype=bool)
        one["accepted"] = np.full(20, rng.random() < 0.5)
        one["margin"] = np.full(20, rng.normal())
        kinds.append(one)
    columns = {name: np.concatenate([one[name] for one in kinds]) for name in source}
    report = fit_predictor(columns)
    # 60 independent outcomes: the standard error of the AUC is about 0.08.
    assert report.auc < 0.75


def test_the_export_equals_scikit_learn() -> None:
    """The folded numbers are those of LogisticRegression, but for the slope and levels of calibration."""
    columns = informative()
    tested, features = columns["tested"], feature_matrix(columns)
    some = np.where(
        np.isnan(features[tested]).all(0), 0.0, features[tested]
    )  # echoes are not known here
    filled = np.where(np.isnan(features), np.nanmean(some, axis=0), features)
    scaler = StandardScaler().fit(filled[tested])
    standard = scaler.transform(filled)
    standard[:, DEPTH] = filled[:, DEPTH]
    report = fit_predictor(columns)
    standard = standard[:, [FEATURES.index(name) for name in report.features]]
    model = LogisticRegression(C=1.0, max_iter=1000)
    expected = model.fit(standard[tested], columns["accepted"][tested]).decision_function(standard)
    logits = report.predictor.linear.logits(features)
    slopes = []
    for depth in np.unique(columns["depth"]):  # each depth has a level of its own
        at = columns["depth"] == depth
        slope, intercept = np.polyfit(expected[at], logits[at], 1)
        assert np.abs(slope * expected[at] + intercept - logits[at]).max() < 1e-6
        slopes.append(slope)
    assert slopes == pytest.approx([slopes[0]] * len(slopes), abs=1e-6)
    assert slopes[0] == pytest.approx(1.0, abs=0.1)


def test_200_rows_are_enough_to_be_useful() -> None:
    report = fit_predictor(first_rows(informative(), 200))
    held_out = feature_matrix(informative())[600:]
    tested, accepted = informative()["tested"][600:], informative()["accepted"][600:]
    auc = roc_auc_score(accepted[tested], report.predictor.predict(held_out)[tested])
    assert auc > 0.78


def test_features_are_used_only_where_they_help() -> None:
    """Here all that matters is in the top-1 probability, until the target's entropy is made to matter."""
    columns = {name: column.copy() for name, column in informative().items()}
    assert fit_predictor(columns).features[0] == "logit_top1"
    assert "prev_target_entropy" not in fit_predictor(columns).features
    rng = np.random.default_rng(0)
    hint = rng.random(len(columns["tested"])) < 0.5
    columns["prev_target_entropy"] = np.where(hint, 3.0, 0.0)
    columns["accepted"] &= hint | (rng.random(len(hint)) < 0.3)
    report = fit_predictor(columns)
    assert "prev_target_entropy" in report.features
    assert report.predictor.linear.coefficients[FEATURES.index("prev_target_entropy")] > 0.2


@pytest.mark.parametrize("outcome", [True, False])
def test_outcomes_of_one_kind_give_a_smoothed_constant_and_say_so(outcome: bool) -> None:
    columns = first_rows(informative(), 100)
    columns["accepted"] = np.full(100, outcome) & columns["tested"]
    report = fit_predictor(columns)
    tested = int(columns["tested"].sum())
    expected = (tested * outcome + 1) / (tested + 2)
    assert np.allclose(report.predictor.predict(feature_matrix(columns)), expected)
    assert math.isnan(report.auc)
    assert any("all outcomes are equal" in note for note in report.notes)


def test_one_prompt_is_fitted_and_the_figures_are_called_in_sample() -> None:
    columns = first_rows(informative(), 150)
    columns["prompt_id"] = np.full(150, "only")
    assert any("in-sample" in note for note in fit_predictor(columns).notes)


def test_features_that_mislead_are_given_up() -> None:
    """Out of fold the logit is anti-correlated with the outcome: then only the mean is kept."""
    columns = {name: column.copy() for name, column in first_rows(informative(), 400).items()}
    columns["prompt_id"] = np.array(["a", "b"])[np.arange(400) // 200]
    tested = np.flatnonzero(columns["tested"])
    truth = columns["top1_logprob"] > np.median(columns["top1_logprob"])
    columns["accepted"][tested] = (truth ^ (np.arange(400) >= 200))[tested]
    report = fit_predictor(columns)
    assert np.ptp(report.predictor.predict(feature_matrix(columns))) < 1e-9
    assert any("do not order" in note for note in report.notes)


def test_soft_labels_of_sampled_tokens_are_used_where_there_are_any() -> None:
    """Coins replaced by their chances: the fit comes closer to the truth than with the coins."""
    text = Text.make(length=900, mean=0.0, slope=1.7, seed=5)
    hard = traces(text)
    soft = {name: column.copy() for name, column in hard.items()}
    slope_of_look = np.vectorize(
        {
            value: chance for value, chance in _truth_by_look(hard, mean=0.0, slope=1.7).items()
        }.__getitem__
    )
    truth = slope_of_look(hard["top1_logprob"])
    hard["temperature"] = soft["temperature"] = np.full(len(truth), 0.7)
    soft["acceptance_prob"] = np.where(soft["tested"], truth, np.nan)
    hard["acceptance_prob"] = np.where(hard["tested"], hard["accepted"].astype(float), np.nan)
    errors = [
        np.abs(fit_predictor(columns).predictor.predict(feature_matrix(columns)) - truth).mean()
        for columns in (soft, hard)
    ]
    assert errors[0] < errors[1]


def _truth_by_look(columns: Columns, *, mean: float, slope: float) -> dict[float, float]:
    """Return the true chance of acceptance by the look's top-1 log-probability."""
    chances: dict[float, float] = {}
    for step, look in enumerate(SIGNALS):
        z = 8.0 * step / STEPS - 4.0
        chances.setdefault(look.top1_logprob, 1.0 / (1.0 + math.exp(-(mean + slope * z))))
    return chances


def test_bad_traces_are_named() -> None:
    with pytest.raises(ValueError, match=r"lack the columns \['margin'\]"):
        fit_predictor({name: c for name, c in informative().items() if name != "margin"})
    with pytest.raises(ValueError, match=r"lack the columns \['tested'\]"):
        fit_predictor({name: c for name, c in informative().items() if name != "tested"})
    untested = informative() | {"tested": np.zeros(len(informative()["tested"]), dtype=bool)}
    with pytest.raises(ValueError, match="at least one tested token"):
        fit_predictor(untested)
    with pytest.raises(ValueError, match="folds must be an integer >= 2, got 1"):
        FitConfig(folds=1)


def test_reliability_and_calibration_error() -> None:
    chances = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    accepted = np.array([False, True, True, True, True])
    table = reliability(chances, accepted, 10)
    assert [(row.low, row.count, row.observed) for row in table] == [(0.0, 2, 0.5), (0.9, 3, 1.0)]
    expected = (2 * 0.45 + 3 * (1.0 - np.mean([0.95, 0.95, 1.0]))) / 5
    assert expected_calibration_error(table) == pytest.approx(expected)


def test_survival_multiplies_along_rounds_and_keeps_lost_ones() -> None:
    """Two rounds of 3 and 1 drafted tokens; in the first the second token is rejected."""
    table = survival_table(
        np.array([0, 0, 0, 0]),
        np.array([0, 0, 0, 1]),
        np.array([1, 2, 3, 1]),
        np.array([0.5, 0.4, 0.5, 1.0]),
        np.array([True, False, False, True]),
    )
    assert [(row.rounds, row.predicted, row.observed) for row in table] == [
        (2, 0.75, 1.0),
        (1, 0.2, 0.0),
        (1, 0.1, 0.0),
    ]
