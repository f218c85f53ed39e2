"""Which family of predictors decodes fastest: judged by replays of prompts it was not fitted on.

A better AUC need not be a better speed, and what judges the looks costs time of its own. The sum over features
is kept unless another is quicker by more than that could be luck or cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..data import DenseText
from .config import FitConfig
from .dense_rows import Columns, fit_predictor_from_dense
from .economics import RoundCosts
from .families import FAMILIES
from .fitting import FitReport
from .informed import informed_bound
from .judging import add
from .oracle import best_fixed, replay_oracle, share_of_gain
from .predictor import AcceptancePredictor
from .replay import Replay

WORTH = 0.002  # a gain in speed below this does not pay for more numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFigures:
    """A family on prompts that it was not fitted on."""

    auc: float
    log_loss: float
    ece: float
    ece_raw: float  # of the draft's own top-1 probability
    speedups: dict[str, float]  # by cost model, over plain decoding
    gain_shares: dict[str, float | None]  # of the oracle's gain over the best fixed γ of all texts

    @property
    def speedup(self) -> float:
        """The geometric mean over the cost models."""
        return math.exp(sum(map(math.log, self.speedups.values())) / len(self.speedups))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The family chosen, fitted on all texts."""

    family: str
    report: FitReport
    figures: dict[str, FamilyFigures]
    informed: dict[str, float | None]  # share of the oracle's gain at the informed bound

    @property
    def predictor(self) -> AcceptancePredictor:
        return self.report.predictor


def choose_predictor(
    texts: Sequence[DenseText],
    costs: Mapping[str, RoundCosts],
    *,
    families: Sequence[str] = FAMILIES,
    folds: int = 3,
    sampled: Columns | None = None,
    target: str = "",
    draft: str = "",
    config: FitConfig | None = None,
) -> Choice:
    """Fit each family on all but a fold of the texts, replay it on that fold, and keep the quickest.

    A replay stops by the rule of AdaptiveLookahead at known costs and its own best price, without
    what it learns online, so that what differs is the predictor.

    Args:
        costs: cost models by name; the geometric mean of the speeds decides.
        families: the first is kept unless another is quicker by 0.2 %.
        sampled, target, draft, config: see `fit_predictor_from_dense`.

    Raises:
        ValueError: if there are fewer than two texts, no costs or no families.
    """
    count = min(folds, len(texts))
    if count < 2 or not costs or not families:
        raise ValueError(
            f"texts must be two or more, costs and families one or more, got {len(texts)} texts, "
            f"{len(costs)} costs and {list(families)}"
        )
    config = config or FitConfig()
    reports = {}
    figures = {}
    for family in families:
        of_family = replace(config, family=family)
        parts = []
        for fold in range(count):
            inside = [text for index, text in enumerate(texts) if index % count != fold]
            outside = [text for index, text in enumerate(texts) if index % count == fold]
            fit = fit_predictor_from_dense(inside, sampled=sampled, config=of_family)
            parts.append((fit.predictor, outside))
        reports[family] = fit_predictor_from_dense(
            texts, sampled=sampled, target=target, draft=draft, config=of_family
        )
        runs = {name: _held_out(parts, each) for name, each in costs.items()}
        figures[family] = _figures(reports[family], runs, texts, costs)
    family = quickest(figures)
    predictor = reports[family].predictor
    bounds = {name: informed_bound(texts, each, predictor) for name, each in costs.items()}
    return Choice(
        family=family,
        report=reports[family],
        figures=figures,
        informed={name: _share(run, texts, costs[name]) for name, run in bounds.items()},
    )


def quickest(figures: Mapping[str, FamilyFigures]) -> str:
    """Return the quickest family; the ones before it are kept unless it is worth the change."""
    names = list(figures)
    family = names[0]
    for other in names[1:]:
        if figures[other].speedup > (1.0 + WORTH) * figures[family].speedup:
            family = other
    return family


def _held_out(
    parts: Sequence[tuple[AcceptancePredictor, Sequence[DenseText]]], costs: RoundCosts
) -> Replay:
    total = Replay()
    for predictor, outside in parts:
        total = add(total, informed_bound(outside, costs, predictor))
    return total


def _figures(
    report: FitReport,
    runs: Mapping[str, Replay],
    texts: Sequence[DenseText],
    costs: Mapping[str, RoundCosts],
) -> FamilyFigures:
    return FamilyFigures(
        auc=report.auc,
        log_loss=report.log_loss,
        ece=report.ece,
        ece_raw=report.ece_raw,
        speedups={name: run.tokens_per_second * costs[name].plain for name, run in runs.items()},
        gain_shares={name: _share(run, texts, costs[name]) for name, run in runs.items()},
    )


def _share(run: Replay, texts: Sequence[DenseText], costs: RoundCosts) -> float | None:
    base = best_fixed(texts, costs)[1]
    return share_of_gain(run, base=base, oracle=replay_oracle(texts, costs))
