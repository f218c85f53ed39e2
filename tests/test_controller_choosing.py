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
    choice = chosen(["linear", "trees"])
    assert choice.family == quickest(choice.figures)
    assert (choice.predictor.curved is None) == (choice.family == "linear")
    assert choice.predictor.draft == "d"
    for figures in choice.figures.values():
        assert 0.6 < figures.auc < 0.95
        assert set(figures.speedups) == set(COSTS) == set(figures.gain_shares)
        assert figures.speedups["cheap"] > figures.speedups["dear"] > 0.95
        assert figures.speedups["dear"] < figures.speedup < figures.speedups["cheap"]
        shares = [share for share in figures.gain_shares.values() if share is not None]
        assert max(shares) < 1.0
    assert all(share is not None and share < 1.0 for share in choice.informed.values())


@pytest.mark.parametrize(
    ("net", "family"),
    [
        ((1.60, 1.59, 1.62), "net"),
        ((1.501, 1.501, 1.501), "linear"),  # not worth more numbers
        ((1.9, 1.3, 1.4), "linear"),  # luck of a fold
        ((1.4, 1.4, 1.4), "linear"),
    ],
)
def test_speed_decides_not_auc(net: tuple[float, ...], family: str) -> None:
    """A family of a better AUC that is not quicker is not taken, a quicker one of a worse AUC is."""
    linear = FamilyFigures(
        auc=0.75, log_loss=0.5, ece=0.02, ece_raw=0.1, speedups={"a": 1.5}, gain_shares={},
        fold_speedups=(1.5, 1.5, 1.5),
    )  # fmt: skip
    other = replace(linear, auc=0.7 if family == "net" else 0.9, fold_speedups=net)
    assert quickest({"linear": linear, "net": other}) == family


def test_what_cannot_be_chosen_from_is_named() -> None:
    for few, costs in ((texts()[:1], COSTS), (texts(), {})):
        with pytest.raises(ValueError, match="texts must be two or more, costs and families one"):
            choose_predictor(few, costs)
