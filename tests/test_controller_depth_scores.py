"""Calibration by depth: right chances have no excess, wrong ones have theirs, luck has its floor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foredraft.controller.depth_scores import score_rows
from foredraft.controller.trace_rows import TraceRows


def rows(
    count: int, depths: int, *, shift: float = 0.0, seed: int = 0
) -> tuple[TraceRows, np.ndarray]:
    """Return rounds that all draft `depths` tokens, and chances that are off by `shift` logits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.5, 1.2, (count, depths))
    right = rng.random((count, depths)) < 1.0 / (1.0 + np.exp(-logits))
    seen = np.concatenate([np.ones((count, 1), bool), np.cumprod(right, 1)[:, :-1] > 0], axis=1)
    size = count * depths
    made = TraceRows(
        features=np.zeros((size, 1)),
        tested=seen.reshape(-1),
        accepted=(right & seen).reshape(-1),
        soft=np.full(size, np.nan),
        prompt=np.zeros(size, dtype=np.intp),
        request=np.repeat(np.arange(count) // 25, depths),
        round=np.repeat(np.arange(count), depths),
        depth=np.tile(np.arange(1, depths + 1), count),
        raw=np.zeros(size),
        weight=np.ones(size),
        context=np.repeat(20 * np.arange(count), depths),
    )
    return made, (1.0 / (1.0 + np.exp(-logits - shift))).reshape(-1)


def test_right_chances_are_off_by_luck_alone() -> None:
    excess, errors, floors = [], [], []
    for seed in range(6):
        for score in score_rows(*rows(500, 3, seed=seed)):
            errors.append(score.ece)
            floors.append(score.ece_floor)
            assert abs(score.survival - score.observed) < 4.0 * score.survival_error
            excess.append(score.excess)
    assert np.mean(errors) == pytest.approx(np.mean(floors), rel=0.2)
    assert float(np.mean(excess)) < 0.6 * float(
        np.mean(floors)
    )  # a root is above 0 half of the time


def test_wrong_chances_stand_out_from_luck() -> None:
    for score in score_rows(*rows(3000, 2, shift=0.5)):
        assert score.ece > 2.0 * score.ece_floor
        assert 0.06 < score.excess < 0.14  # half a logit is a tenth near the middle
        assert score.survival - score.observed > 5.0 * score.survival_error


def test_the_floor_falls_as_the_root_of_the_tokens() -> None:
    few, many = (score_rows(*rows(count, 1))[0] for count in (200, 3200))
    assert few.ece_floor / many.ece_floor == pytest.approx(4.0, rel=0.25)
    assert (few.tokens, many.tokens) == (200, 3200)


def test_rows_that_test_the_same_token_are_no_more_evidence() -> None:
    once, chances = rows(300, 1)
    twice = TraceRows(
        **{
            name: np.concatenate([getattr(once, name)] * 2)
            for name in TraceRows.__dataclass_fields__
        }
    )
    alone, again = score_rows(once, chances)[0], score_rows(twice, np.tile(chances, 2))[0]
    assert again.ece_floor == pytest.approx(alone.ece_floor, rel=0.1)
    assert again.tokens == alone.tokens == 300


def test_a_depth_that_was_never_tested_is_not_judged() -> None:
    made, chances = rows(40, 2)
    made.accepted[:] = False
    made.tested[made.depth == 2] = False
    deep = score_rows(made, chances)[1]
    assert math.isnan(deep.ece)
    assert deep.tokens == 0
    assert deep.observed == 0.0
