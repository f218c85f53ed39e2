"""Policies against each other on dense traces: the same texts, the same seconds, no machine in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from ..data import DenseText
from ..spec import (
    LookaheadPolicy,
    ReadsTokens,
    RoundOutcome,
    RoundStart,
    Said,
    SamplingParams,
    show_tokens,
)
from .bandit import GammaBandit
from .economics import RoundCosts
from .peers import ConfidenceThreshold, EntropyBound, HeuristicSchedule, SurvivalThreshold
from .predictor import AcceptancePredictor
from .replay import Replay, replay, replay_fixed

Make = Callable[[], LookaheadPolicy]
Ends = npt.NDArray[np.float64]
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BOUNDS = (0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.6, 2.0)
SWITCH_ROUNDS = 30
OURS_AT_A_THRESHOLD = "our chances, SpecDec++'s rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a policy came to on some texts, in their order."""

    setting: str  # of what was tuned; empty where nothing was
    total: Replay
    domains: dict[str, Replay]


def flat_costs(cost_ratio: float, gamma_max: int) -> RoundCosts:
    """Return costs in target steps: a draft step takes `cost_ratio` of one, verifying takes one."""
    return RoundCosts(draft_step=cost_ratio, verify=(1.0,) * (gamma_max + 1))


def judge(
    make: Make, texts: Iterable[DenseText], costs: RoundCosts, *, setting: str = ""
) -> Judged:
    """Replay a new policy over the texts in their order; what it learns it keeps across domains."""
    policy = make()
    domains: dict[str, Replay] = {}
    for text in texts:
        run = replay(policy, [text], costs)
        domains[text.domain] = add(domains.get(text.domain, Replay()), run)
    return Judged(setting=setting, total=_sum(domains.values()), domains=domains)


def judge_fixed(gamma: int, texts: Sequence[DenseText], costs: RoundCosts) -> Judged:
    """Judge a fixed γ, quickly."""
    names = list(dict.fromkeys(text.domain for text in texts))
    domains = {
        name: replay_fixed([text for text in texts if text.domain == name], costs, gamma)
        for name in names
    }
    return Judged(setting=f"γ = {gamma}", total=_sum(domains.values()), domains=domains)


def quickest(runs: Iterable[Judged]) -> Judged:
    """Return the run of most tokens per second; where settings are tried, that is generous to them."""
    return max(runs, key=lambda run: run.total.tokens_per_second)


def peers(
    predictor: AcceptancePredictor,
    gamma_max: int,
    *,
    echoing: AcceptancePredictor | None = None,
) -> dict[str, dict[str, Make]]:
    """Return other people's policies that know no costs, each with its settings, its default first.

    Args:
        predictor: of SpecDec++; fit it on the draft's looks alone, as its head reads nothing else.
        echoing: ours, for its rule on our chances: no peer, but what our rule is worth beside them.
    """
    most = {"gamma_max": gamma_max}
    starts = sorted({gamma_max, max(1, gamma_max // 2), 1}, reverse=True)
    ours: dict[str, dict[str, Make]] = {}
    if echoing is not None:
        ours[OURS_AT_A_THRESHOLD] = {
            f"1 − S > {each}": partial(SurvivalThreshold, echoing, each, **most)
            for each in _from(0.7)
        }
    return {
        "transformers heuristic": {
            f"start {start}": partial(HeuristicSchedule, start=start, **most) for start in starts
        },
        "confidence threshold": {
            f"p < {each}": partial(ConfidenceThreshold, each, **most) for each in _from(0.4)
        },
        "SpecDec++": {
            f"1 − S > {each}": partial(SurvivalThreshold, predictor, each, **most)
            for each in _from(0.7)
        },
        "SVIP": {f"√H > {each}": partial(EntropyBound, each, **most) for each in BOUNDS},
        **ours,
    }


def bandit(gamma_max: int) -> Make:
    """Return the bandit over the usual γ."""
    return partial(GammaBandit, [gamma for gamma in (0, 1, 2, 3, 4, 6, 8) if gamma <= gamma_max])


def _from(default: float) -> list[float]:
    """Return the thresholds, the default first."""
    return sorted(THRESHOLDS, key=lambda each: abs(each - default))


def join(texts: Sequence[DenseText]) -> DenseText:
    """Return the texts as one of one request, the domains one after the other, all prompts before them.

    Near the end of each part as few tokens may be drafted as before.
    """
    return replace(
        texts[0],
        id="+".join(text.id for text in texts),
        tokens=np.concatenate([text.tokens for text in texts]),
        gamma_limit=np.concatenate([text.gamma_limit for text in texts]),
        accepted_length=np.concatenate([text.accepted_length for text in texts]),
        drafts=np.concatenate([text.drafts for text in texts]),
        looks=np.concatenate([text.looks for text in texts]),
        acceptance_prob=np.concatenate([text.acceptance_prob for text in texts]),
        target_looks=np.concatenate([text.target_looks for text in texts]),
        prompt=tuple(token for text in texts for token in text.prompt),
        prompt_length=sum(text.prompt_length for text in texts),
    )


def after_switch(
    make: Make, before: Sequence[DenseText], after: Sequence[DenseText], costs: RoundCosts
) -> tuple[float, float]:
    """Return the speed after another domain over the speed of one that had been on this all along.

    Both decode `after`; one has decoded `before` in the same request, one `after` itself. The first
    figure is of the tokens of the first 30 rounds after the switch, the second of the rest; 1 is no loss.
    """
    switched = _progress(make(), before, after, costs)
    settled = _progress(make(), after, after, costs)
    marks = [0.0, switched[0][min(SWITCH_ROUNDS, len(switched[0]) - 2)], switched[0][-1]]
    ours, theirs = (np.diff(np.interp(marks, *each)) for each in (switched, settled))
    first, rest = theirs / ours
    return float(first), float(rest)


def _progress(
    policy: LookaheadPolicy,
    before: Sequence[DenseText],
    after: Sequence[DenseText],
    costs: RoundCosts,
) -> tuple[Ends, Ends]:
    """Return the tokens and the seconds at the end of each round of `after`, from its beginning."""
    logged = Logged(policy)
    replay(logged, [join([*before, *after])], costs)
    tokens, seconds, _ = np.cumsum(logged.rounds, axis=0).T
    begin = float(sum(len(text.tokens) for text in before))
    at = float(np.interp(begin, tokens, seconds))
    later = tokens > begin
    return np.append(0.0, tokens[later] - begin), np.append(0.0, seconds[later] - at)


class Logged(ReadsTokens):
    """Decides as another policy and keeps (tokens emitted, seconds, tokens drafted) of each round."""

    def __init__(self, inner: LookaheadPolicy) -> None:
        self.inner = inner
        self.gamma_max, self.reads_logits = inner.gamma_max, inner.reads_logits
        self.rounds: list[tuple[int, float, int]] = []

    def begin_request(self, params: SamplingParams) -> None:
        self.inner.begin_request(params)

    def begin_round(self, start: RoundStart) -> int:
        return self.inner.begin_round(start)

    def wants_step(self, depth: int) -> bool:
        return self.inner.wants_step(depth)

    def read(self, said: Said) -> None:
        show_tokens(self.inner, said)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return self.inner.wants_token(depth, draft_logits)

    def end_round(self, outcome: RoundOutcome) -> None:
        self.rounds.append((outcome.accepted + 1, outcome.round_seconds, outcome.drafted))
        self.inner.end_round(outcome)

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        raise ValueError("rounds are logged one request at a time, not in a batch")


def priced(run: Judged, costs: RoundCosts) -> Judged:
    """Return what a policy that does not know the costs comes to at others.

    Raises:
        ValueError: if it looked without drawing, so that its rounds do not say its steps.
    """
    domains = {name: _priced(each, costs) for name, each in run.domains.items()}
    return Judged(setting=run.setting, total=_sum(domains.values()), domains=domains)


def _priced(run: Replay, costs: RoundCosts) -> Replay:
    if run.draft_steps != run.drafted:
        raise ValueError(
            f"a run of {run.draft_steps} draft steps for {run.drafted} tokens cannot be priced"
        )
    seconds = sum(count * costs.seconds(gamma) for gamma, count in run.gammas.items())
    return replace(run, seconds=seconds)


def add(one: Replay, other: Replay) -> Replay:
    """Return the sum of two replays."""
    return Replay(
        tokens=one.tokens + other.tokens,
        seconds=one.seconds + other.seconds,
        draft_steps=one.draft_steps + other.draft_steps,
        drafted=one.drafted + other.drafted,
        accepted=one.accepted + other.accepted,
        gammas=one.gammas + other.gammas,
    )


def _sum(runs: Iterable[Replay]) -> Replay:
    total = Replay()
    for run in runs:
        total = add(total, run)
    return total
