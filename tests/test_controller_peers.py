"""Other people's lookaheads: each does what its source does; that they keep the law is in test_law.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.stopping_criteria import ConfidenceCriteria

from controller_sim import (
    CHEAP,
    GREEDY,
    LOGITS,
    SIGNALS,
    TARGET_LOGITS,
    Machine,
    Text,
    best_fixed,
    predictor,
    simulate,
)
from foredraft.controller import (
    ConfidenceThreshold,
    EntropyBound,
    GammaBandit,
    HeuristicSchedule,
    RoundCosts,
    SurvivalThreshold,
)
from foredraft.spec import LookaheadPolicy, RoundOutcome, RoundStart

pytestmark = pytest.mark.usefixtures("one_thread")
SURE, UNSURE = LOGITS[-1], LOGITS[0]


def outcome(drafted: int, accepted: int, seconds: float = 1.0) -> RoundOutcome:
    return RoundOutcome(
        drafted=drafted,
        accepted=accepted,
        draft_seconds=0.1,
        verify_seconds=0.1,
        round_seconds=seconds,
        draft_steps=drafted,
        target_logits=TARGET_LOGITS[: drafted + 1],
        target_probs=TARGET_LOGITS[: drafted + 1],
        draft_probs=TARGET_LOGITS[:drafted],
    )


def drafted(policy: LookaheadPolicy, looks: list[torch.Tensor], *, limit: int = 20) -> int:
    """Return how many tokens the policy drafts where the draft's laws are `looks`."""
    cap = policy.begin_round(RoundStart(context_length=10, gamma_limit=limit))
    drawn = 0
    while drawn < cap and policy.wants_step(drawn + 1):
        if not policy.wants_token(drawn + 1, looks[drawn]):
            break
        drawn += 1
    return drawn


def test_the_schedule_is_transformers_own() -> None:
    """Against its update rule, on a script of accepted lengths."""
    assert GenerationConfig()._get_default_generation_params()["num_assistant_tokens"] == 20
    theirs: Any = SimpleNamespace(
        assistant_generation_config=SimpleNamespace(
            num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0.0
        ),
        num_assistant_tokens=4,
    )
    ours = HeuristicSchedule(start=4, gamma_max=20)
    for accepted in [4, 3, 5, 0, 0, 0, 0, 0, 0, 0, 1, 3, 5, 2]:
        gamma = ours.begin_round(RoundStart(context_length=9, gamma_limit=20))
        assert gamma == theirs.num_assistant_tokens
        accepted = min(accepted, gamma)
        scores = torch.zeros(1, gamma + 1, 2)
        AssistedCandidateGenerator.update_candidate_strategy(theirs, None, scores, accepted)
        ours.end_round(outcome(gamma, accepted))
    ours.begin_request(GREEDY)
    assert ours.gamma == theirs.num_assistant_tokens


def test_the_schedule_stays_in_its_range() -> None:
    policy = HeuristicSchedule(start=2, gamma_max=3)
    policy.end_round(outcome(2, 2))
    assert policy.gamma == 3
    assert policy.begin_round(RoundStart(context_length=10, gamma_limit=1)) == 1
    for _ in range(5):
        policy.end_round(outcome(1, 0))
    assert policy.gamma == 1


@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.9])
def test_confidence_stops_where_transformers_stops(threshold: float) -> None:
    """Greedy: each drafted token is the likeliest one; its last criterion says when drafting ends."""
    generator = torch.Generator().manual_seed(3)
    criterion = ConfidenceCriteria(threshold)
    seen = set()
    for _ in range(40):
        looks = list(3.0 * torch.randn(6, 5, generator=generator))
        theirs = 0
        for look in looks:
            theirs += 1
            ids = look.argmax(-1)[None, None]
            if criterion(ids, (look[None],)):
                break
        assert drafted(ConfidenceThreshold(threshold, gamma_max=6), looks) == theirs
        seen.add(theirs)
    assert len(seen) > 2 or threshold == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConfidenceThreshold(0.6, gamma_max=5),
        lambda: EntropyBound(1.0, gamma_max=5),
        lambda: SurvivalThreshold(predictor(), 0.3, gamma_max=5),
    ],
    ids=["confidence", "entropy", "survival"],
)
def test_an_unsure_look_is_the_last(make: Callable[[], LookaheadPolicy]) -> None:
    """Its token is drawn, verified, and nothing is drafted after it; the next round starts anew."""
    policy = make()
    policy.begin_request(GREEDY)
    assert drafted(policy, [SURE] * 5) == 5
    assert drafted(policy, [SURE, SURE, UNSURE, SURE, SURE]) == 3
    assert drafted(policy, [UNSURE] * 5) == 1
    assert drafted(policy, [SURE] * 5, limit=2) == 2


def test_survival_is_a_product_of_chances() -> None:
    """Looks of which none would stop drafting alone do so together, at the depth of the formula."""
    look = 38
    chances = []
    policy = SurvivalThreshold(predictor(), 0.4, gamma_max=8)
    policy.begin_request(GREEDY)
    policy.begin_round(RoundStart(context_length=10, gamma_limit=8))
    survival, expected = 1.0, 8
    for depth in range(1, 9):
        logit = predictor().token_logit(SIGNALS[look], depth, policy._known)
        chances.append(1.0 / (1.0 + math.exp(-logit)))
        survival *= chances[-1]
        if 1.0 - survival > 0.4:
            expected = depth
            break
    assert min(chances) > 0.6, "one look alone must not stop it"
    assert 1 < expected < 8
    assert drafted(policy, [LOGITS[look]] * 8) == expected


def test_the_bandit_finds_the_best_fixed_gamma() -> None:
    """Within 6% of it, exploration included, where γ = 3 is twice as quick as plain decoding."""
    text = Text.make(length=3000, mean=1.0, slope=0.0, seed=7)
    bandit = GammaBandit((0, 1, 2, 3, 4, 6, 8))
    run = simulate(bandit, text, Machine(CHEAP))
    gamma, rate = best_fixed(text, CHEAP)
    assert run.rate > 0.94 * rate
    assert rate > 1.3 / CHEAP.plain
    assert abs(max(bandit.rates().items(), key=lambda pair: pair[1])[0] - gamma) <= 2


def test_the_bandit_decodes_plainly_where_drafting_is_dear() -> None:
    costs = RoundCosts(draft_step=1.0, verify=(1.0,) * 9)
    text = Text.make(length=1500, mean=0.0, slope=0.0, seed=7)
    run = simulate(GammaBandit((4, 2, 0)), text, Machine(costs))
    assert run.histogram[0] > 0.8 * len(run.gammas)


def test_the_bandit_forgets() -> None:
    """The other γ becomes the better one; without forgetting 2,000 rounds would outweigh the change."""

    def last_choices(half_life: float) -> list[int]:
        bandit, chosen = GammaBandit((0, 2), exploration=0.05, half_life_rounds=half_life), []
        for number in range(2300):
            gamma = bandit.begin_round(RoundStart(context_length=9, gamma_limit=9))
            good = 2 if number < 2000 else 0
            bandit.end_round(outcome(gamma, 0, seconds=1.0 if gamma == good else 2.0))
            chosen.append(gamma)
        return chosen[-50:]

    assert last_choices(50.0).count(0) > 40
    assert last_choices(1e9).count(0) < 10


def test_the_bandit_does_not_learn_from_rounds_that_were_cut() -> None:
    bandit = GammaBandit((0, 4))
    bandit.begin_request(GREEDY)
    for limit in (9, 9, 9):
        gamma = bandit.begin_round(RoundStart(context_length=9, gamma_limit=limit))
        bandit.end_round(outcome(gamma, gamma))
    before = bandit.rates()
    assert before == {0: 1.0, 4: 5.0}  # the first round with a draft read the prompt: not counted
    assert bandit.begin_round(RoundStart(context_length=9, gamma_limit=1)) == 1
    bandit.end_round(outcome(1, 0))
    assert bandit.rates() == before


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HeuristicSchedule(start=0), "start must be an integer >= 1"),
        (lambda: HeuristicSchedule(start=9, gamma_max=8), "and <= 8, got 9"),
        (lambda: ConfidenceThreshold(1.5), r"threshold must be a number in \[0, 1\], got 1.5"),
        (lambda: ConfidenceThreshold(0.5, gamma_max=0), "gamma_max must be an integer >= 1"),
        (lambda: EntropyBound(-1.0), r"bound must be a number in \[0, inf\], got -1.0"),
        (lambda: SurvivalThreshold(predictor(), math.nan), "threshold must be a number"),
        (lambda: GammaBandit((1,)), r"gammas must be distinct, at least two, got \(1,\)"),
        (lambda: GammaBandit((1, 1)), "gammas must be distinct"),
        (lambda: GammaBandit((1, -1)), "gammas must be an integer >= 0"),
        (lambda: GammaBandit(half_life_rounds=0.0), "half_life_rounds must be a number in"),
        (lambda: GammaBandit(exploration=-0.1), "exploration must be a number in"),
    ],
)
def test_wrong_settings_are_named(make: Callable[[], LookaheadPolicy], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
