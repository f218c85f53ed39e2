"""What is followed while decoding: hazards, the intercept, costs, the price of time, the next look."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from foredraft.controller import RoundCosts
from foredraft.controller.costs import OnlineCosts
from foredraft.controller.forecast import ForecastPrior, LookForecast
from foredraft.controller.hazards import HazardTracker
from foredraft.controller.probing import CREDIT_STEPS, ProbeBudget
from foredraft.controller.recentring import Recentring, sigmoid
from foredraft.controller.throughput import Throughput
from foredraft.spec import RoundOutcome

COSTS = RoundCosts(draft_step=0.01, verify=(0.1, 0.12, 0.15, 0.15), plain_overhead=0.002)
NOTHING = torch.empty(0, 2)


def outcome(
    drafted: int, accepted: int, costs: RoundCosts, *, slow: float = 1.0, steps: int | None = None
) -> RoundOutcome:
    steps = drafted if steps is None else steps
    draft, verify = steps * costs.draft_step * slow, costs.verify[drafted] * slow
    rest = costs.round_overhead if steps else costs.plain_overhead
    return RoundOutcome(
        drafted=drafted,
        accepted=accepted,
        draft_seconds=draft,
        verify_seconds=verify,
        round_seconds=draft + verify + rest,
        draft_steps=steps,
        target_logits=NOTHING,
        target_probs=NOTHING,
        draft_probs=NOTHING,
    )


def test_hazards_count_only_what_was_tested() -> None:
    tracker = HazardTracker([0.5, 0.5, 0.5])
    for _ in range(2000):
        tracker.observe([0.5, 0.5], 1)  # the first accepted, the second rejected, the third unseen
    first, second, third = tracker.hazards
    assert first > 0.94
    assert second < 0.06
    assert third == 0.5


def test_a_depth_that_is_predicted_too_high_is_lowered_and_a_right_one_is_left() -> None:
    rng = np.random.default_rng(0)
    tracker = HazardTracker([0.7, 0.7])
    for _ in range(600):
        first = rng.random() < 0.7
        second = first and rng.random() < 0.5
        tracker.observe([0.7] * (1 + first), int(first) + int(second))
    # About 100 rounds weigh in and the prior shrinks: one sigma of the first offset is 0.05.
    assert abs(tracker.offset(1)) < 0.2
    assert -1.0 <= tracker.offset(2) < -0.2


def test_the_intercept_follows_a_domain_within_tens_of_tokens() -> None:
    rng = np.random.default_rng(1)
    recentring = Recentring()
    recentring.begin_request(shared=True)
    for _ in range(60):
        recentring.age(unseen=False)
        recentring.observe(1.0, bool(rng.random() < sigmoid(-0.5)))
    assert recentring.shift == pytest.approx(-1.5, abs=0.6)


def test_a_request_starts_from_what_the_others_taught() -> None:
    recentring = Recentring()
    for _ in range(30):
        recentring.begin_request(shared=True)
        for _ in range(10):
            recentring.age(unseen=False)
            recentring.observe(0.0, True)
    recentring.begin_request(shared=True)
    learned = recentring.shift
    assert learned > 1.0
    recentring.begin_request(shared=False)
    for _ in range(100):
        recentring.age(unseen=False)
        recentring.observe(0.0, False)
    assert recentring.shift < 0.0
    recentring.begin_request(shared=True)
    assert recentring.shift == learned, "what an unshared request teaches must end with it"


def test_a_single_token_moves_the_intercept_little() -> None:
    recentring = Recentring()
    for _ in range(500):
        recentring.age(unseen=True)
    recentring.observe(8.0, False)
    assert -0.5 <= recentring.shift < 0.0


def test_a_slow_machine_seen_in_one_kind_of_round_slows_all_estimates() -> None:
    costs = OnlineCosts(COSTS)
    for _ in range(40):
        costs.observe(outcome(2, 1, COSTS, slow=2.0), behind=1)
    assert costs.current.seconds(2) == pytest.approx(COSTS.seconds(2) * 2.0, rel=0.05)
    assert costs.current.verify[0] == pytest.approx(0.2, rel=0.15), "plain was never run"
    for _ in range(60):
        costs.observe(outcome(2, 1, COSTS), behind=1)
    assert costs.current.verify[0] == pytest.approx(0.1, rel=0.15)


def test_a_part_that_differs_from_the_table_is_told_from_a_slow_machine() -> None:
    costs = OnlineCosts(COSTS)
    dearer = RoundCosts(draft_step=0.02, verify=COSTS.verify, plain_overhead=0.002)
    for number in range(300):
        costs.observe(outcome(number % 4, 0, dearer), behind=1)
    assert costs.current.draft_step == pytest.approx(0.02, rel=0.1)
    assert costs.current.verify == pytest.approx(COSTS.verify, rel=0.1)


def test_a_length_that_is_not_played_follows_those_that_are() -> None:
    """Verify became faster, the draft did not: γ = 1, never played, stayed dear for good."""
    costs = OnlineCosts(COSTS)
    faster = replace(COSTS, verify=tuple(0.85 * seconds for seconds in COSTS.verify))
    for _ in range(60):
        costs.observe(outcome(0, 0, faster), behind=1)
        costs.observe(outcome(2, 1, faster), behind=1)
    now = costs.current
    assert now.verify[1] == pytest.approx(faster.verify[1], rel=0.04)
    assert now.draft_step == pytest.approx(faster.draft_step, rel=0.04)


def test_a_spike_and_a_catch_up_barely_move_the_costs() -> None:
    costs = OnlineCosts(COSTS)
    for _ in range(50):
        costs.observe(outcome(2, 1, COSTS), behind=1)
    costs.observe(outcome(2, 1, COSTS, slow=50.0), behind=1)
    assert costs.current.verify[0] < 0.12
    before = costs.current.draft_step
    slow_draft = RoundCosts(draft_step=0.5, verify=COSTS.verify)
    late = outcome(0, 0, slow_draft, steps=1)
    costs.observe(late, behind=80)
    assert costs.current.draft_step == pytest.approx(before, rel=0.05)
    assert costs.catch_up(80) > 0.1, "but what it takes to catch up is learned"
    assert costs.catch_up(2) == 0.0


def test_the_overhead_of_rounds_is_learned_apart_for_plain_ones() -> None:
    costs = OnlineCosts(COSTS)
    heavy = RoundCosts(
        draft_step=0.01, verify=COSTS.verify, plain_overhead=0.0, round_overhead=0.01
    )
    for number in range(400):
        costs.observe(outcome(number % 2, 0, heavy), behind=1)
    assert costs.current.round_overhead == pytest.approx(0.01, rel=0.05)
    assert costs.current.plain_overhead < 0.0005


def test_the_price_of_time_is_the_policys_own_rate_and_at_least_plain() -> None:
    throughput = Throughput(100.0)
    assert throughput.rate == 1.0
    for _ in range(2000):
        throughput.observe(3, 2.0)
    assert throughput.rate == pytest.approx(1.5, rel=0.01)
    for _ in range(2000):
        throughput.observe(1, 2.0)
    assert throughput.rate == 1.0


def test_half_of_the_weight_is_gone_after_the_half_life() -> None:
    throughput = Throughput(50.0)
    for _ in range(1000):
        throughput.observe(2, 1.0)
    for _ in range(50):
        throughput.observe(4, 1.0)
    assert throughput.rate == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("cost", [0.1, 0.7, 2.0])
def test_probes_that_fail_cost_at_most_their_share(cost: float) -> None:
    budget = ProbeBudget(share=0.01)
    time = spent = 0.0
    waits, since = [], 0
    for _ in range(20_000):
        since += 1
        probing = budget.is_due(cost)
        steps = 1.0 + cost * probing
        budget.observe(steps)
        time += steps
        if probing:
            budget.charge(cost)
            spent += cost
            waits.append(since)
            since = 0
    assert spent <= 0.01 * time + cost
    assert spent >= 0.009 * time, "what may be spent must be spent, or nothing is noticed"
    assert max(waits) <= math.ceil(cost / 0.01) + 2


def test_a_probe_that_pays_is_followed_by_the_next_at_once() -> None:
    budget = ProbeBudget(share=0.01)
    while not budget.is_due(0.7):
        budget.observe(1.0)
    for _ in range(20):
        budget.observe(1.7)
        budget.charge(1.7 - 2.0)
        assert budget.is_due(0.7)
    for _ in range(100_000):
        budget.observe(1.0)
    assert not budget.is_due(CREDIT_STEPS + 0.01), "credit must not grow without bound"


def test_no_share_means_no_probe() -> None:
    budget = ProbeBudget(share=0.0)
    budget.observe(1e9)
    assert not budget.is_due(0.0)


def test_the_forecast_follows_what_is_seen() -> None:
    prior = ForecastPrior(
        edges=(0.0,), centers=(-1.0, 1.0), first=(0.5, 0.5), following=((0.5, 0.5), (0.5, 0.5))
    )
    forecast = LookForecast(prior)
    assert forecast.bin(-0.1) == 0
    assert forecast.bin(0.0) == 1
    for _ in range(500):
        forecast.observe(1, None)
        forecast.observe(0, 1)
    assert forecast.first()[1] > 0.85
    assert forecast.following()[1, 0] > 0.9
    assert forecast.following()[0].tolist() == [0.5, 0.5], "never seen after bin 0"
    acceptance = forecast.acceptance(0.5, [0.0, -1.0])
    assert acceptance.tolist() == [
        [pytest.approx(sigmoid(-0.5)), pytest.approx(sigmoid(1.5))],
        [pytest.approx(sigmoid(-1.5)), pytest.approx(sigmoid(0.5))],
    ]
    first, second = forecast.hazards(acceptance)
    assert first == pytest.approx(float(forecast.first() @ acceptance[0]))
    assert second == pytest.approx(float(forecast.first() @ forecast.following() @ acceptance[1]))
