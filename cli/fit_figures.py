"""What a fitted lookahead would have done on recorded texts: the figures of its report, by replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..controller import AdaptiveLookahead, RoundCosts
from ..controller.calibration import ReliabilityBin, reliability
from ..controller.dense_rows import dense_columns
from ..controller.depth_scores import DepthScore, score_rows
from ..controller.judging import Logged, judge, judge_fixed
from ..controller.oracle import replay_oracle
from ..controller.replay import Replay, replay
from ..controller.trace_rows import TraceRows
from ..data import DenseText

DEPTHS = (1, 2, 3, 4)  # whose reliability is drawn
BINS = 10
SHOWN_TOKENS = 64  # of the text whose rounds are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainFigures:
    """Speeds over plain decoding of the same texts."""

    name: str
    tokens: int
    adaptive: float
    best_fixed: float  # the best γ of this domain, in hindsight
    gamma: int
    oracle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRound:
    """One round of a text."""

    position: int  # tokens of the text before it
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Plain steps lost to the oracle after so many tokens."""

    tokens: list[int]  # at the end of each text
    adaptive: list[float]
    best_fixed: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFigures:
    """Speeds are over plain decoding."""

    texts: int
    tokens: int
    fixed: list[float]  # γ = 0, 1, …
    adaptive: float
    oracle: float
    share: float | None  # of the oracle's gain over the best fixed γ
    gammas: dict[int, int]  # tokens drafted -> rounds
    domains: list[DomainFigures]
    depths: list[DepthScore]
    reliability: dict[int, list[ReliabilityBin]]  # depth -> bins
    regret: Regret
    text: str  # id of the text that is shown
    rounds: list[ShownRound]

    @property
    def gamma(self) -> int:
        """The best fixed γ."""
        return max(range(len(self.fixed)), key=self.fixed.__getitem__)


def fit_figures(
    policy: AdaptiveLookahead, texts: Sequence[DenseText], costs: RoundCosts
) -> FitFigures:
    """Replay the texts one after the other under a policy that has learned nothing yet; it is left as it is.

    Raises:
        ValueError: if there is no text.
    """
    if not texts:
        raise ValueError("texts must not be empty")

    def fresh() -> AdaptiveLookahead:
        return AdaptiveLookahead(
            policy.predictor, policy.latency, gamma_max=costs.gamma_max, config=policy.config
        )

    ours = judge(fresh, texts, costs)
    fixed = [judge_fixed(gamma, texts, costs) for gamma in range(costs.gamma_max + 1)]
    plain = fixed[0].total.tokens_per_second
    speeds = [run.total.tokens_per_second / plain for run in fixed]
    adaptive = ours.total.tokens_per_second / plain
    oracle = replay_oracle(texts, costs).tokens_per_second / plain
    rows = TraceRows.read(dense_columns(texts))
    chances = policy.predictor.predict(rows.features)
    best = max(speeds)
    shown = max(texts, key=lambda text: len(text.tokens))
    return FitFigures(
        texts=len(texts),
        tokens=sum(len(text.tokens) for text in texts),
        fixed=speeds,
        adaptive=adaptive,
        oracle=oracle,
        share=(adaptive - best) / (oracle - best) if oracle > best else None,
        gammas=dict(sorted(ours.total.gammas.items())),
        domains=[
            _domain(name, [text for text in texts if text.domain == name], run, costs)
            for name, run in ours.domains.items()
        ],
        depths=score_rows(rows, chances),
        reliability={
            depth: reliability(chances[at], rows.accepted[at], BINS, rows.weight[at])
            for depth in DEPTHS
            if (at := rows.tested & (rows.depth == depth)).any()
        },
        regret=_regret(fresh(), texts, costs, int(np.argmax(speeds))),
        text=shown.id,
        rounds=_rounds(fresh(), shown, costs),
    )


def _domain(
    name: str, texts: Sequence[DenseText], ours: Replay, costs: RoundCosts
) -> DomainFigures:
    fixed = [
        judge_fixed(gamma, texts, costs).total.tokens_per_second
        for gamma in range(costs.gamma_max + 1)
    ]
    gamma = int(np.argmax(fixed))
    return DomainFigures(
        name=name,
        tokens=sum(len(text.tokens) for text in texts),
        adaptive=ours.tokens_per_second / fixed[0],
        best_fixed=fixed[gamma] / fixed[0],
        gamma=gamma,
        oracle=replay_oracle(texts, costs).tokens_per_second / fixed[0],
    )


def _regret(
    policy: AdaptiveLookahead, texts: Sequence[DenseText], costs: RoundCosts, gamma: int
) -> Regret:
    seconds = np.array(
        [
            [
                replay(policy, [text], costs).seconds,
                judge_fixed(gamma, [text], costs).total.seconds,
                replay_oracle([text], costs).seconds,
            ]
            for text in texts
        ]
    )  # [texts, 3]
    ours, fixed, oracle = np.cumsum(seconds, axis=0).T / costs.plain
    return Regret(
        tokens=np.cumsum([len(text.tokens) for text in texts]).tolist(),
        adaptive=(ours - oracle).tolist(),
        best_fixed=(fixed - oracle).tolist(),
    )


def _rounds(policy: AdaptiveLookahead, text: DenseText, costs: RoundCosts) -> list[ShownRound]:
    logged = Logged(policy)
    replay(logged, [text], costs)
    shown: list[ShownRound] = []
    position = 0
    for emitted, _, drafted in logged.rounds:
        if position >= SHOWN_TOKENS:
            break
        shown.append(ShownRound(position=position, drafted=drafted, accepted=emitted - 1))
        position += emitted
    return shown
