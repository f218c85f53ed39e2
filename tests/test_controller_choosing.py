"""The family is chosen by replayed speed on prompts it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from controller_dense_sim import GAMMA, dense

from foredraft.controller import FitConfig
from foredraft.controller.choosing import Choice, FamilyFigures, choose_predictor, quickest
from foredraft.controller.judging import flat_costs
from foredraft.data import DenseText

pytestmark = pytest.mark.usefixtures("one_thread")
COSTS = {"cheap": flat_costs(0.05, GAMMA), "dear": flat_costs(0.3, GAMMA)}
CONFIG = FitConfig(folds=2)


def texts() -> list[DenseText]:
    return [dense(50, seed=seed, id=str(seed)) for seed in range(4)]


def chosen(families: Sequence[str]) -> Choice:
    return choose_predictor(texts(), COSTS, families=families, folds=2, draft="d", config=CONFIG)


def test_the_choice_comes_with_its_figures() -> None:
    """Here acceptance is a sum over features, so trees have nothing to add to it."""
    choice = chosen(["linear", "trees"])
    assert choice.family == "linear"
    assert choice.predictor.curved is None
    assert choice.predictor.draft == "d"
    for figures in choice.figures.values():
        assert 0.6 < figures.auc < 0.95
        assert set(figures.speedups) == set(COSTS) == set(figures.gain_shares)
        assert figures.speedups["cheap"] > figures.speedups["dear"] > 0.95
        assert figures.speedups["dear"] < figures.speedup < figures.speedups["cheap"]
        shares = [share for share in figures.gain_shares.values() if share is not None]
        assert max(shares) < 1.0
    assert all(share is not None and share < 1.0 for share in choice.informed.values())


@pytest.mark.parametrize(("speedup", "family"), [(1.6, "net"), (1.501, "linear"), (1.4, "linear")])
def test_speed_decides_not_auc(speedup: float, family: str) -> None:
    """A family of a better AUC that is slower is not taken, a quicker one of a worse AUC is."""
    linear = FamilyFigures(
        auc=0.75, log_loss=0.5, ece=0.02, ece_raw=0.1, speedups={"a": 1.5, "b": 1.5}, gain_shares={}
    )
    auc = 0.7 if family == "net" else 0.9
    net = replace(linear, auc=auc, speedups={"a": 1.5, "b": speedup**2 / 1.5})
    assert net.speedup == pytest.approx(speedup)
    assert quickest({"linear": linear, "net": net}) == family


def test_what_cannot_be_chosen_from_is_named() -> None:
    for few, costs in ((texts()[:1], COSTS), (texts(), {})):
        with pytest.raises(ValueError, match="texts must be two or more, costs and families one"):
            choose_predictor(few, costs)
