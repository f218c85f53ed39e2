"""Which family of predictors decodes fastest: judged by replays of prompts it was not fitted on.

A better AUC need not be a better speed, and what judges the looks costs time of its own. The sum over features
is kept unless another is quicker by more than it costs, and by more than one standard error over the folds.
"""

from __future__ import annotations

import math
import statistics
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
    fold_speedups: tuple[float, ...]  # of each fold, the geometric mean over the cost models

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
        families: the first is kept unless another is clearly quicker; see `quickest`.
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
        runs = {
            name: [informed_bound(outside, each, predictor) for predictor, outside in parts]
            for name, each in costs.items()
        }
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
    """Return the quickest family; one before it is kept unless the gain is worth it, and no luck."""
    names = list(figures)
    family = names[0]
    for other in names[1:]:
        pairs = zip(figures[other].fold_speedups, figures[family].fold_speedups, strict=True)
        gains = [math.log(theirs / ours) for theirs, ours in pairs]
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        if statistics.mean(gains) > max(math.log1p(WORTH), error):
            family = other
    return family


def _figures(
    report: FitReport,
    runs: Mapping[str, Sequence[Replay]],
    texts: Sequence[DenseText],
    costs: Mapping[str, RoundCosts],
) -> FamilyFigures:
    totals = {name: _sum(each) for name, each in runs.items()}
    folds = zip(*(runs[name] for name in costs), strict=True)
    return FamilyFigures(
        auc=report.auc,
        log_loss=report.log_loss,
        ece=report.ece,
        ece_raw=report.ece_raw,
        speedups={name: run.tokens_per_second * costs[name].plain for name, run in totals.items()},
        gain_shares={name: _share(run, texts, costs[name]) for name, run in totals.items()},
        fold_speedups=tuple(
            math.prod(
                run.tokens_per_second * each.plain
                for run, each in zip(fold, costs.values(), strict=True)
            )
            ** (1.0 / len(costs))
            for fold in folds
        ),
    )


def _sum(runs: Sequence[Replay]) -> Replay:
    total = Replay()
    for run in runs:
        total = add(total, run)
    return total


def _share(run: Replay, texts: Sequence[DenseText], costs: RoundCosts) -> float | None:
    base = best_fixed(texts, costs)[1]
    return share_of_gain(run, base=base, oracle=replay_oracle(texts, costs))
