"""Public bugs of other controllers, each for its whole kind. Rows of the list that have a test elsewhere:

B38, B41, B48 in test_controller_adaptive.py; B43, B44 in test_drop_in_refusals.py; B46, B47 in
test_batch_requests.py and test_batch_equality.py; B51 in test_controller_saved.py and
test_controller_fallback.py.

B36 asks for a dwell time between changes of γ. That does not apply as it is worded: γ is where the look at
hand said stop, nothing is rebuilt when it changes, and looks differ from round to round. What applies
is here: a round counts for the γ it was played at, and sitting at the switching point costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from controller_dense_sim import GAMMA, dense

from controller_sim import (
    CHEAP,
    GREEDY,
    LOGITS,
    TARGET_LOGITS,
    Machine,
    Text,
    fixed_rate,
    predictor,
    simulate,
    table,
)
from foredraft.controller import (
    AdaptiveConfig,
    AdaptiveLookahead,
    ConfidenceThreshold,
    GammaBandit,
    RoundCosts,
)
from foredraft.controller.dense_rows import dense_columns
from foredraft.controller.hazards import HazardTracker
from foredraft.controller.judging import flat_costs, judge
from foredraft.controller.replay import replay
from foredraft.data import DenseText
from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    RoundOutcome,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
)
from toys import noisy_copy, tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")
SLOW = RoundCosts(draft_step=1.5, verify=(1.0,) * 9)  # a draft slower than the target
COSTS = flat_costs(0.1, GAMMA)


def outcome(drafted: int, accepted: int, seconds: float) -> RoundOutcome:
    return RoundOutcome(
        drafted=drafted,
        accepted=accepted,
        draft_seconds=0.1 * drafted,
        verify_seconds=seconds - 0.1 * drafted,
        round_seconds=seconds,
        draft_steps=drafted,
        target_logits=TARGET_LOGITS[: drafted + 1],
        target_probs=TARGET_LOGITS[: drafted + 1],
        draft_probs=TARGET_LOGITS[:drafted],
    )


def test_b36_a_round_counts_for_the_gamma_it_was_played_at() -> None:
    """Acceptance 2.0 ± 0.5 a round, as the report has it; each γ has a time of its own."""
    bandit = GammaBandit((1, 3), exploration=3.0)
    rng = np.random.default_rng(0)
    played: dict[int, list[tuple[int, float]]] = {1: [], 3: []}
    for number in range(100):
        if number == 0:
            bandit.begin_request(GREEDY)
        gamma = bandit.begin_round(RoundStart(context_length=10 + number, gamma_limit=8))
        accepted = min(gamma, int(rng.choice([1, 2, 3])))
        seconds = 1.0 + 0.1 * gamma
        bandit.end_round(outcome(gamma, accepted, seconds))
        if number:  # the first round reads the prompt
            played[gamma].append((accepted + 1, seconds))
    assert min(len(rounds) for rounds in played.values()) > 10
    for gamma, rounds in played.items():
        tokens = np.array([count for count, _ in rounds])
        assert tokens.min() / rounds[0][1] <= bandit.rates()[gamma] <= tokens.max() / rounds[0][1]
    assert bandit.rates()[3] == pytest.approx(3.0 / 1.3, rel=0.15)  # min(3, 1 … 3) + 1 in 1.3
    assert bandit.rates()[1] == pytest.approx(2.0 / 1.1, rel=0.01)


def test_b36_sitting_at_the_switching_point_costs_little() -> None:
    """Plain decoding and γ = 1 are equally quick here: whichever is taken, 3 % is all it may cost."""
    costs = RoundCosts(draft_step=0.5, verify=(1.0,) * 9)
    text = Text.make(length=900, mean=0.0, slope=0.0, seed=1)  # half of the tokens are accepted
    assert fixed_rate(text, costs, 1) == pytest.approx(1.0, abs=0.04)
    policy = AdaptiveLookahead(predictor(0.4, 0.0), table(costs))
    run = simulate(policy, text, Machine(costs))
    assert run.rate >= 0.97 * max(1.0, fixed_rate(text, costs, 1))


def test_b39_a_controller_that_stays_at_0_runs_no_draft() -> None:
    """No draft forward, one target forward of one token for each token; probes are switched off."""
    target = tiny_llama(seed=1)
    draft = noisy_copy(target, scale=0.04)
    decoder = SpeculativeDecoder(target, None, ModelDrafter(draft, width=260))
    calls = []
    draft.register_forward_hook(lambda *_: calls.append(1))
    config = AdaptiveConfig(probe_share=0.0)
    policy = AdaptiveLookahead(predictor(), table(SLOW), config=config)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    plain = decoder.with_lookahead(FixedLookahead(0)).generate([[1, 2, 3]], params)[0]
    ours = decoder.with_lookahead(policy).generate([[1, 2, 3]], params)[0]
    assert not calls
    assert ours.token_ids == plain.token_ids
    assert (ours.stats.rounds, ours.stats.draft_steps) == (plain.stats.rounds, 0)
    assert not {"speculate", "probe"} & set(policy.kinds)


def test_b45_a_high_acceptance_rate_is_not_speed() -> None:
    """A floor under the draft's confidence: acceptance rises with it, speed does not; both are told."""
    texts = [dense(120, mean=1.0, slope=0.8, seed=seed, id=str(seed)) for seed in range(2)]
    runs = [
        judge(partial(ConfidenceThreshold, floor, gamma_max=GAMMA), texts, COSTS).total
        for floor in (0.0, 0.5, 0.95)
    ]
    accepted = [run.accepted / run.drafted for run in runs]
    lengths = [run.drafted / run.rounds for run in runs]
    assert accepted == sorted(accepted)
    assert accepted[-1] > accepted[0] + 0.03
    assert lengths == sorted(lengths, reverse=True)
    assert runs[-1].tokens_per_second < max(run.tokens_per_second for run in runs)
    for run in runs:
        assert run.tokens_per_second == run.tokens / run.seconds


@pytest.mark.parametrize(
    ("mask", "gamma", "accepted", "emitted"),
    [([1, 0, 1, 1], 4, 1, 2), ([1, 1, 1], 3, 3, 4), ([0, 1, 1], 3, 0, 1)],
)
def test_b49_matches_after_a_rejection_do_not_count(
    mask: list[int], gamma: int, accepted: int, emitted: int
) -> None:
    """In replays, in what is fitted, in hazards and in the policy's own learning."""
    text = dense(12)
    length = next((index for index, hit in enumerate(mask) if not hit), len(mask))
    lengths = text.accepted_length.copy()
    lengths[0] = length
    changed = replace(text, accepted_length=lengths)
    run = replay(FixedLookahead(gamma), [first_round(changed, emitted)], COSTS)
    assert (run.accepted, run.tokens, run.rounds) == (accepted, emitted, 1)
    assert run.tokens == run.accepted + run.rounds
    columns = dense_columns([changed])
    first = columns["round"] == 0
    assert columns["accepted"][first].sum() == accepted
    assert columns["tested"][first].sum() == min(accepted + 1, int((columns["depth"][first]).max()))
    hazards = HazardTracker([0.5] * 4)
    tested = min(accepted + 1, gamma)
    hazards.observe([0.5] * tested, accepted)
    untouched = [index for index in range(4) if index >= tested]
    assert all(hazards.hazards[index] == 0.5 for index in untouched)
    assert all(hazards.hazards[index] > 0.5 for index in range(accepted))


def first_round(text: DenseText, emitted: int) -> DenseText:
    """Return the text cut behind its first round; what may be drafted in it stays."""
    return replace(
        text,
        tokens=text.tokens[:emitted],
        gamma_limit=text.gamma_limit[:emitted],
        accepted_length=text.accepted_length[:emitted],
        drafts=text.drafts[:emitted],
        looks=text.looks[:emitted],
        acceptance_prob=text.acceptance_prob[:emitted],
        target_looks=text.target_looks[:emitted],
    )


def test_b49_a_block_that_the_limit_cuts_counts_what_was_verified() -> None:
    text = dense(5)
    run = replay(FixedLookahead(GAMMA), [text], COSTS)
    assert run.tokens == 5
    assert run.drafted == sum(gamma * count for gamma, count in run.gammas.items())
    assert max(run.gammas) <= 4, "one token is always the target's"
    assert 0 <= run.accepted <= run.drafted


class Script(FixedLookahead):
    """Drafts as it is told, then nothing."""

    def __init__(self, gammas: Sequence[int]) -> None:
        super().__init__(max(gammas))
        self._gammas = iter(gammas)

    def begin_round(self, start: RoundStart) -> int:
        return min(next(self._gammas, 0), start.gamma_limit)


def test_b50_totals_are_counted_not_rebuilt_from_a_gamma() -> None:
    """γ = 1, 5, 0, 3: the total drafted is their sum, each depth has the rounds that reached it."""
    run = replay(Script([1, 5, 0, 3]), [dense(60, mean=0.0)], COSTS)
    assert run.drafted == 9
    assert {gamma: run.gammas[gamma] for gamma in (1, 3, 5)} == {1: 1, 3: 1, 5: 1}
    assert run.gammas[0] == run.rounds - 3
    assert run.tokens <= run.accepted + run.rounds
    hazards = HazardTracker([0.5] * 5)
    for gamma, accepted in ((1, 1), (5, 2), (0, 0), (3, 3)):
        hazards.observe([0.5] * min(accepted + 1, gamma), accepted)
    assert hazards.hazards[4] == 0.5, "depth 5 was drafted once and never tested"
    assert (
        hazards.hazards[0] > hazards.hazards[2] == pytest.approx((0.5 * 20 + 1) / 22, abs=0.01)
    )  # tested twice there, accepted once


def test_b50_a_policy_takes_rounds_of_any_length_and_learns_of_each_depth() -> None:
    policy = AdaptiveLookahead(predictor(), table(CHEAP), gamma_max=5)
    policy.begin_request(GREEDY)
    before = policy.snapshot()["hazards"]
    for gamma, accepted in ((1, 1), (5, 5), (0, 0), (3, 3)):
        policy.begin_round(RoundStart(context_length=20, gamma_limit=gamma))
        drawn = 0
        while drawn < gamma and policy.wants_step(drawn + 1):
            if not policy.wants_token(drawn + 1, LOGITS[-1]):
                break
            drawn += 1
        policy.end_round(outcome(drawn, min(accepted, drawn), 1.0 + 0.1 * drawn))
    after = policy.snapshot()["hazards"]
    assert after[0] > before[0]
    assert torch.isfinite(torch.tensor(after)).all()
