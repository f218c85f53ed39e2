"""Trees and nets as numbers: equal to scikit-learn, quick, saved and refused like the linear logit."""

from __future__ import annotations

import json
import math
import statistics
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from controller_dense_sim import GAMMA, dense
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.neural_network import MLPClassifier

from controller_sim import SIGNALS, STEPS, table
from foredraft.controller import (
    AcceptancePredictor,
    AdaptiveConfig,
    AdaptiveLookahead,
    FitConfig,
    FitReport,
    RoundCosts,
    fit_predictor,
    fit_predictor_from_dense,
)
from foredraft.controller.calibration import survival_table
from foredraft.controller.curved import LEAF, CurvedLogit, NetLogit, TreeLogit
from foredraft.controller.dense_rows import dense_columns
from foredraft.controller.depth_calibration import depth_offsets
from foredraft.controller.families import export_net, export_trees, fit_family, scaling
from foredraft.controller.features import DEPTH, FEATURES, feature_matrix
from foredraft.controller.informed import InformedLookahead
from foredraft.controller.replay import replay
from foredraft.controller.trace_rows import TraceRows
from foredraft.data import Signals
from foredraft.spec import LookaheadPolicy

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = ("trees", "net")


@cache
def columns() -> dict[str, np.ndarray[Any, Any]]:
    return dense_columns([dense(60, seed=seed, id=str(seed)) for seed in range(4)])


@cache
def rows() -> TraceRows:
    return TraceRows.read(columns())


@cache
def fitted(family: str) -> FitReport:
    return fit_predictor(columns(), config=FitConfig(family=family, folds=2))


def test_exported_trees_are_scikit_learns() -> None:
    mean = scaling(rows(), rows().tested)[0]
    filled = np.where(np.isnan(rows().features), mean, rows().features)
    model = GradientBoostingClassifier(n_estimators=12, random_state=0)
    model.fit(filled[rows().tested], rows().accepted[rows().tested])
    expected = model.decision_function(filled)
    exported = export_trees(model, mean)
    np.testing.assert_allclose(exported.logits(rows().features), expected, atol=1e-6)
    one_by_one = [exported.logit(row) for row in rows().features[:200].tolist()]
    np.testing.assert_allclose(one_by_one, expected[:200], atol=1e-6)


def test_an_exported_net_is_scikit_learns() -> None:
    scales = scaling(rows(), rows().tested)
    mean, scale, low, high = scales
    filled = np.where(np.isnan(rows().features), mean, rows().features.clip(low, high))
    standard = (filled - mean) / scale
    model = MLPClassifier((5,), activation="tanh", solver="lbfgs", max_iter=1000, random_state=0)
    model.fit(standard[rows().tested], rows().accepted[rows().tested])
    chances = model.predict_proba(standard)[:, 1]
    exported = export_net(model, scales)
    logits = exported.logits(rows().features)
    np.testing.assert_allclose(1.0 / (1.0 + np.exp(-logits)), chances, atol=1e-6)
    one_by_one = [exported.logit(row) for row in rows().features[:50].tolist()]
    np.testing.assert_allclose(one_by_one, logits[:50], atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_in_the_loop_is_a_row_of_the_fit(family: str) -> None:
    predictor = fitted(family).predictor
    assert predictor.curved is not None
    features = rows().features[:60]
    expected = np.log(predictor.predict(features) / (1.0 - predictor.predict(features)))
    for index in range(60):
        look = Signals(*(columns()[name][index] for name in ("top1_logprob", "margin", "entropy")))
        depth = int(columns()["depth"][index])
        known = tuple(features[index, DEPTH.stop :].tolist())
        assert predictor.token_logit(look, depth, known) == pytest.approx(expected[index], abs=1e-6)


def test_the_linear_token_is_the_sum() -> None:
    predictor = fitted("linear").predictor
    look, known = Signals(-0.3, 2.0, 0.9), (0.4, -0.5, 0.7, 0.0, 4.0, 0.0)
    total = predictor.round_logit(known) + predictor.look_logit(look) + predictor.depth_logit(3)
    assert predictor.token_logit(look, 3, known) == total


@pytest.mark.parametrize("family", FAMILIES)
def test_what_only_a_curve_can_say_is_learned(family: str) -> None:
    """Acceptance here is an either-or of two features, of which a sum says nothing."""
    rng = np.random.default_rng(0)
    changed = {name: column.copy() for name, column in columns().items()}
    one, other = rng.random((2, len(changed["depth"]))) < 0.5
    changed["prev_target_entropy"] = np.where(one, 2.0, 0.5)
    changed["recent_acceptance"] = np.where(other, 0.8, 0.3)
    changed["accepted"] = (one ^ other) & changed["tested"]
    config = FitConfig(family=family, folds=2)
    assert fit_predictor(changed, config=config).auc > 0.75
    assert fit_predictor(changed).auc < 0.65


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_curve_predicts_the_same(family: str, tmp_path: Path) -> None:
    predictor, path = fitted(family).predictor, tmp_path / "predictor.json"
    predictor.save(path)
    loaded = AcceptancePredictor.load(path)
    assert loaded.curved == predictor.curved
    assert np.array_equal(loaded.predict(rows().features), predictor.predict(rows().features))


@pytest.mark.parametrize(
    ("family", "damage", "words"),
    [
        ("trees", lambda c: c.update(kind="forest"), "kind must be one of"),
        ("trees", lambda c: c["model"]["trees"][0][0].__setitem__(2, 0), "node 0 of a tree is broken"),
        ("trees", lambda c: c["model"]["trees"][0][0].__setitem__(3, 99), "node 0 of a tree is broken"),
        ("trees", lambda c: c["model"]["trees"].pop(), "golden outputs are off"),
        ("trees", lambda c: c.update(offsets=[0.0]), "offsets must be"),
        ("net", lambda c: c["model"]["weights"].pop(), "weights must have"),
        ("net", lambda c: c["model"]["biases"].append(0.0), "must be"),
        ("net", lambda c: c.pop("slope"), "lacks 'slope'"),
    ],
)  # fmt: skip
def test_a_changed_curve_is_refused(family: str, damage: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "predictor.json"
    fitted(family).predictor.save(path)
    content = json.loads(path.read_text())
    damage(content["curved"])
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="not a usable acceptance predictor") as error:
        AcceptancePredictor.load(path)
    assert words in str(error.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_curve_costs_tens_of_microseconds(family: str) -> None:
    """A draft step takes milliseconds; best of five medians, so that a busy machine does not fail it."""
    predictor = fitted(family).predictor
    look, known = Signals(-0.3, 2.0, 0.9), (0.4, math.nan, math.nan, 1.0, 4.0, 0.0)
    medians = []
    for _ in range(5):
        seconds = []
        for _ in range(40):
            begun = time.perf_counter()
            predictor.token_logit(look, 2, known)
            seconds.append(time.perf_counter() - begun)
        medians.append(statistics.median(seconds))
    assert min(medians) < 150e-6


def test_a_policy_judges_the_look_at_hand_by_the_curve() -> None:
    """The curve refuses all tokens, the linear part takes them for good: looks, but no draws."""
    linear = fitted("linear").predictor
    never = TreeLogit(
        mean=(0.0,) * len(FEATURES), start=-9.0, trees=(((LEAF, 0.0, LEAF, LEAF, 0.0),),)
    )
    curved = CurvedLogit(model=never, slope=1.0, offsets=(0.0,) * 5)
    predictor = AcceptancePredictor(
        linear=linear.linear, forecast=linear.forecast, hazards=linear.hazards, curved=curved
    )
    costs = RoundCosts(draft_step=0.05, verify=tuple(1.0 + 0.1 * n for n in range(GAMMA + 1)))
    policies: list[LookaheadPolicy] = [
        InformedLookahead(predictor, costs, 1.2, gamma_max=GAMMA),
        AdaptiveLookahead(
            predictor, table(costs), gamma_max=GAMMA, config=AdaptiveConfig(probe_share=0.0)
        ),
    ]
    for policy in policies:
        run = replay(policy, [dense(40)], costs)
        assert set(run.gammas) == {0}
        assert run.draft_steps > 10


def test_settings_and_families_are_checked() -> None:
    with pytest.raises(ValueError, match="family must be linear, trees or net, got 'forest'"):
        FitConfig(family="forest")
    with pytest.raises(ValueError, match="family must be one of"):
        fit_family("linear", rows(), rows().tested)
    with pytest.raises(ValueError, match="scale must be positive"):
        NetLogit(
            mean=(0.0,) * len(FEATURES), scale=(0.0,) * len(FEATURES), low=(0.0,) * len(FEATURES),
            high=(1.0,) * len(FEATURES), weights=((0.0,),) * len(FEATURES), biases=(0.0,),
            output=(0.0,), start=0.0,
        )  # fmt: skip


@pytest.mark.parametrize("family", ["linear", *FAMILIES])
def test_products_of_chances_are_calibrated(family: str) -> None:
    """On prompts not seen. What 1,200 tokens to fit on and 1,500 to judge leave to luck is 0.02 (one sigma)."""
    config = FitConfig(family=family, folds=2)
    fit_on = [dense(200, seed=seed, id=str(seed)) for seed in range(6)]
    predictor = fit_predictor_from_dense(fit_on, config=config).predictor
    others = [dense(500, seed=seed, id=str(seed)) for seed in (20, 21, 22)]
    held_out = dense_columns(others)
    chances = predictor.predict(feature_matrix(held_out))
    table = survival_table(
        held_out["request"], held_out["round"], held_out["depth"], chances,
        held_out["accepted"], held_out["weight"],
    )  # fmt: skip
    assert len(table) == GAMMA
    for row in table:
        assert row.predicted == pytest.approx(row.observed, abs=0.05)


def test_an_offset_of_a_depth_is_found_from_left_to_right() -> None:
    """Logits that are right but for 0.8 too much at depth 2 and 0.5 too little at depth 4."""
    text = dense_columns([dense(3000, seed=3)])
    held = TraceRows.read(text)
    logits = held_out_truth(text)
    wrong = logits + 0.8 * (held.depth == 2) - 0.5 * (held.depth == 4)
    everything = np.ones(len(logits), dtype=bool)
    right, offsets = (depth_offsets(each, held, everything) for each in (logits, wrong))
    np.testing.assert_allclose(np.subtract(offsets, right)[:4], [0.0, -0.8, 0.0, 0.5], atol=0.12)


def held_out_truth(text: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return the logits that the simulation accepts by; see controller_sim."""
    place = {look.top1_logprob: 8.0 * step / STEPS - 4.0 for step, look in enumerate(SIGNALS)}
    return np.array([0.4 + 1.7 * place[value] for value in text["top1_logprob"].tolist()])
