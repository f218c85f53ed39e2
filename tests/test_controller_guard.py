"""Never slower: the bound holds on every path, whatever rounds take and give."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.controller import RoundCosts
from foredraft.controller.guard import STALL, SlowdownGuard

COSTS = RoundCosts(draft_step=0.6, verify=(1.0, 1.3, 1.9, 1.4, 2.2))


def play(guard: SlowdownGuard, rng: np.random.Generator, *, rounds: int, luck: float) -> float:
    """Speculate whenever the guard lets us; return the most that elapsed − (1 + ε)·P came to.

    The machine's speed moves. Each speculative round takes its declared worst and emits 1 token, or
    all of them with chance `luck`.
    """
    elapsed = plain = 0.0
    worst = -np.inf
    guard.begin_request()
    for _ in range(rounds):
        t0 = float(rng.uniform(0.5, 1.5))
        costs = RoundCosts(
            draft_step=COSTS.draft_step * t0, verify=tuple(t0 * v for v in COSTS.verify)
        )
        limit = int(rng.integers(0, 5))
        cap = costs.largest_cap(guard.room(costs.plain), limit)
        if cap == 0:
            seconds, emitted = costs.plain, 1
            guard.observe_plain(seconds)
        else:
            seconds = costs.worst_seconds(cap)
            emitted = cap + 1 if rng.random() < luck else 1
            guard.observe_speculation(
                seconds, emitted=emitted, plain_step=costs.plain, predicted=costs.seconds(cap)
            )
        elapsed += seconds
        plain += emitted * costs.plain
        worst = max(worst, elapsed - 1.01 * plain)
    return worst


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("luck", [0.0, 0.3])
def test_the_bound_holds_after_every_round(seed: int, luck: float) -> None:
    """B₀ is two plain steps, which take 1.5 seconds at most here."""
    rng = np.random.default_rng(seed)
    guard = SlowdownGuard(tolerance=0.01, budget=2.0, credit_max=0.0)
    assert play(guard, rng, rounds=400, luck=luck) <= 2.0 * 1.5 + 1e-9


def test_the_bound_is_exact_where_the_plain_step_is_constant() -> None:
    guard = SlowdownGuard(tolerance=0.01, budget=2.0, credit_max=0.0)
    guard.begin_request()
    elapsed = plain = 0.0
    speculated = 0
    for _ in range(2000):
        cap = COSTS.largest_cap(guard.room(1.0), 4)
        seconds = COSTS.worst_seconds(cap)
        speculated += cap > 0
        if cap:
            guard.observe_speculation(seconds, emitted=1, plain_step=1.0, predicted=seconds)
        else:
            guard.observe_plain(seconds)
        elapsed, plain = elapsed + seconds, plain + 1.0
        assert elapsed <= 1.01 * plain + 2.0 + 1e-9
    assert speculated >= 15, "the budget is there to be used"


def test_an_overrun_is_paid_back_before_the_next_speculation() -> None:
    guard = SlowdownGuard(tolerance=0.01, budget=2.0, credit_max=0.0)
    guard.begin_request()
    guard.observe_speculation(2.9, emitted=1, plain_step=1.0, predicted=1.9)
    assert COSTS.largest_cap(guard.room(1.0), 4) == 0
    waited = 0
    while COSTS.largest_cap(guard.room(1.0), 4) == 0:
        guard.observe_plain(1.0)
        waited += 1
    assert 60 < waited < 120


def test_a_lone_stall_is_the_machines_but_slowness_is_not() -> None:
    guard = SlowdownGuard(tolerance=0.01, budget=2.0, credit_max=0.0)
    guard.begin_request()
    before = guard.room(1.0)
    guard.observe_speculation(20.0, emitted=2, plain_step=1.0, predicted=2.0)
    assert guard.room(1.0) == pytest.approx(before - STALL * 2.0 + 2.0 * 1.01 + 14.0 * 0.01)
    guard.observe_speculation(20.0, emitted=2, plain_step=1.0, predicted=2.0)
    assert guard.room(1.0) < before - 15.0


def test_savings_of_earlier_requests_may_be_risked_and_no_more() -> None:
    guard = SlowdownGuard(tolerance=0.01, budget=2.0, credit_max=6.0)
    guard.begin_request()
    fresh = guard.room(1.0)
    for _ in range(3):
        guard.observe_speculation(1.5, emitted=3, plain_step=1.0, predicted=1.5)
    guard.begin_request()
    assert guard.room(1.0) == pytest.approx(fresh + 4.5)
    for _ in range(50):
        guard.observe_speculation(1.5, emitted=3, plain_step=1.0, predicted=1.5)
    guard.begin_request()
    assert guard.room(1.0) == pytest.approx(fresh + 6.0)
    guard.observe_speculation(7.0, emitted=1, plain_step=1.0, predicted=7.0)
    guard.begin_request()
    assert guard.room(1.0) == pytest.approx(fresh), "what was lost is gone from the credit"


def test_what_requests_lost_is_owed_until_the_tolerance_has_paid_it() -> None:
    guard = SlowdownGuard(tolerance=0.01, budget=2.0, credit_max=6.0)
    guard.begin_request()
    fresh = guard.room(1.0)
    guard.observe_speculation(2.5, emitted=1, plain_step=1.0, predicted=2.5)
    guard.begin_request()
    assert guard.room(1.0) == pytest.approx(fresh - 1.5 + 0.01)
    for _ in range(149):
        guard.observe_plain(1.0)
    guard.begin_request()
    assert guard.room(1.0) == pytest.approx(fresh), "paid back by 1% of 150 steps"
    for _ in range(500):
        guard.observe_plain(1.0)
    guard.begin_request()
    assert guard.room(1.0) == pytest.approx(fresh), "the tolerance pays debts, and saves nothing up"


@pytest.mark.parametrize("length", [3, 30])
def test_over_all_requests_nothing_is_lost_beyond_one_bound(length: int) -> None:
    rng = np.random.default_rng(0)
    guard = SlowdownGuard(tolerance=0.01, budget=2.0, credit_max=6.0)
    elapsed = plain = 0.0
    for _ in range(60):
        guard.begin_request()
        luck = float(rng.choice([0.0, 0.5]))
        for _ in range(length):
            cap = COSTS.largest_cap(guard.room(1.0), 4)
            emitted = cap + 1 if rng.random() < luck else 1
            seconds = COSTS.worst_seconds(cap)
            if cap:
                guard.observe_speculation(
                    seconds, emitted=emitted, plain_step=1.0, predicted=seconds
                )
            else:
                guard.observe_plain(seconds)
            elapsed, plain = elapsed + seconds, plain + emitted
            assert elapsed <= 1.01 * plain + 2.0 + 1e-9
