"""The predictor as arithmetic and as a file: equal in both forms, refused when it is not what it says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.controller import AcceptancePredictor
from foredraft.controller.features import (
    DEPTH_BUCKETS,
    FEATURES,
    LOGIT_MAX,
    feature_matrix,
    logit_of_logprob,
    look_features,
    round_features,
)
from foredraft.controller.forecast import ForecastPrior
from foredraft.controller.linear import LinearLogit
from foredraft.data import History, Signals, signals
from foredraft.data.echoes import Echo


def make_predictor(*, seed: int = 0, **changes: Any) -> AcceptancePredictor:
    rng = np.random.default_rng(seed)
    size = len(FEATURES)
    linear = LinearLogit(
        mean=tuple(rng.normal(size=size)),
        scale=tuple(rng.uniform(0.5, 2.0, size)),
        low=(-4.0,) * size,
        high=(6.0,) * size,
        coefficients=tuple(rng.normal(size=size)),
        intercept=0.3,
    )
    fields: dict[str, Any] = {
        "linear": linear,
        "forecast": ForecastPrior(
            edges=(0.0,), centers=(-1.0, 1.0), first=(0.4, 0.6), following=((0.7, 0.3), (0.2, 0.8))
        ),
        "hazards": (0.6, 0.5),
        "target": "t1",
        "draft": "d1",
        "training": {"auc": 0.8, "nothing": math.nan},
    }
    return AcceptancePredictor(**(fields | changes))


def random_columns(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    known = rng.random(rows) > 0.3
    return {
        "depth": rng.integers(1, 9, rows),
        "context_length": rng.integers(1, 2000, rows),
        "temperature": rng.choice([0.0, 0.7], rows),
        "top1_logprob": -rng.exponential(1.0, rows),
        "margin": rng.exponential(2.0, rows),
        "entropy": rng.exponential(2.0, rows),
        "prev_target_top1_logprob": np.where(known, -rng.exponential(1.0, rows), np.nan),
        "prev_target_entropy": np.where(known, rng.exponential(1.0, rows), np.nan),
        "recent_acceptance": rng.random(rows),
    }


def test_the_sum_over_groups_equals_the_matrix_form() -> None:
    predictor, columns = make_predictor(), random_columns(300)
    expected = predictor.linear.logits(feature_matrix(columns))
    for index, logit in enumerate(expected):
        row = {name: column[index].item() for name, column in columns.items()}
        look = Signals(row["top1_logprob"], row["margin"], row["entropy"])
        target = Signals(row["prev_target_top1_logprob"], 0.0, row["prev_target_entropy"])
        known = round_features(
            recent_acceptance=row["recent_acceptance"],
            prev_target=target,
            context_length=row["context_length"],
            temperature=row["temperature"],
        )
        total = predictor.round_logit(known) + predictor.look_logit(look)
        assert total + predictor.depth_logit(row["depth"]) == pytest.approx(logit, abs=1e-9)


@pytest.mark.parametrize("p", [1e-9, 1e-3, 0.3, 0.5, 0.999, 1.0 - 1e-12, 1.0])
def test_logit_of_logprob(p: float) -> None:
    exact = math.inf if p == 1.0 else math.log(p / (1.0 - p))
    expected = max(-LOGIT_MAX, min(LOGIT_MAX, exact))
    assert logit_of_logprob(math.log(p)) == pytest.approx(expected, abs=1e-6)


def test_features_of_extreme_looks_are_finite() -> None:
    for row in (torch.zeros(50), torch.tensor([40.0] + [-40.0] * 49), torch.tensor([3.0])):
        assert all(map(math.isfinite, look_features(signals(row), Echo(0.0, 0.0))))


def test_what_is_not_known_counts_as_the_mean_and_is_flagged() -> None:
    predictor = make_predictor()
    first = round_features(
        recent_acceptance=0.5,
        prev_target=History().prev_target,
        context_length=10,
        temperature=0.0,
    )
    assert first[3] == 1.0
    assert math.isfinite(predictor.round_logit(first))


def test_deep_tokens_share_a_number() -> None:
    predictor = make_predictor()
    deep = {predictor.depth_logit(depth) for depth in range(DEPTH_BUCKETS, 20)}
    assert len(deep) == 1
    assert len({predictor.depth_logit(depth) for depth in range(1, 6)}) == DEPTH_BUCKETS


def test_a_saved_predictor_predicts_the_same(tmp_path: Path) -> None:
    predictor, path = make_predictor(), tmp_path / "predictor.json"
    predictor.save(path)
    loaded = AcceptancePredictor.load(path, target="t1", draft="d1")
    features = feature_matrix(random_columns(1000))
    assert np.array_equal(loaded.predict(features), predictor.predict(features))
    assert loaded.linear == predictor.linear
    assert loaded.forecast == predictor.forecast
    assert loaded.training == {"auc": 0.8, "nothing": None}


def _drop(name: str) -> Any:
    return lambda content: content.pop(name)


def _put(name: str, value: Any) -> Any:
    return lambda content: content.update({name: value})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_put("schema", 9), "schema is 9, expected 2"),
        (_put("features", list(FEATURES[1:])), "features are"),
        (_drop("forecast"), "lacks 'forecast'"),
        (_drop("golden"), "lacks 'golden'"),
        (_put("golden", []), "golden must not be empty"),
        (_put("hazards", [1.5]), "hazards must be"),
        (lambda content: content["linear"].update(intercept=0.31), "golden outputs are off"),
        (lambda content: content["linear"]["coefficients"].pop(), "coefficients must be"),
        (lambda content: content["linear"].update(extra=1), "extra"),
        (lambda content: content["forecast"].update(first=[0.5, 0.6]), "forecast must be"),
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, damage: Any, words: str) -> None:
    path = tmp_path / "predictor.json"
    make_predictor().save(path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="not a usable acceptance predictor") as error:
        AcceptancePredictor.load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{", b"\x80\x04\x95pickled", b"null"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "predictor.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a usable acceptance predictor"):
        AcceptancePredictor.load(path)
    with pytest.raises(ValueError, match="not a usable acceptance predictor"):
        AcceptancePredictor.load(tmp_path / "absent.json")


def test_a_predictor_of_other_models_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "predictor.json"
    make_predictor().save(path)
    with pytest.raises(ValueError, match="draft is 'd1', but the draft in use is 'd2'"):
        AcceptancePredictor.load(path, draft="d2")
    with pytest.raises(ValueError, match="target is 't1', but the target in use is 't2'"):
        AcceptancePredictor.load(path, target="t2", draft="d1")
