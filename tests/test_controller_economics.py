"""Closed forms of a round's worth, and the exact value of looking before stopping."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from foredraft.controller import (
    RoundCosts,
    best_fixed_gamma,
    best_gamma,
    expected_tokens,
    objective,
)
from foredraft.controller.stopping import StoppingValues

# Measured on a demo machine: not even monotone.
STAIRS = RoundCosts(
    draft_step=0.007,
    verify=(0.089, 0.142, 0.204, 0.160, 0.152, 0.168, 0.175, 0.171, 0.178),
    plain_overhead=0.001,
    round_overhead=0.002,
)


def test_expected_tokens_equal_the_enumeration_of_all_outcomes() -> None:
    hazards = [0.9, 0.3, 0.6]
    for gamma, expected in enumerate(expected_tokens(hazards)):
        total = 0.0
        for coins in itertools.product([True, False], repeat=gamma):
            chance = np.prod(
                [a if coin else 1 - a for a, coin in zip(hazards, coins, strict=False)]
            )
            total += float(chance) * (1 + len(list(itertools.takewhile(bool, coins))))
        assert expected == pytest.approx(total, abs=1e-12)


def test_seconds_count_every_part() -> None:
    assert STAIRS.seconds(0) == STAIRS.plain == pytest.approx(0.090)
    assert STAIRS.seconds(4) == pytest.approx(4 * 0.007 + 0.152 + 0.002)


def test_best_gamma_looks_past_a_step_of_the_curve() -> None:
    price = 1.0 / STAIRS.plain
    values = objective([0.7] * 8, STAIRS, price)
    assert values[1] > values[2], "the curve must go down before it goes up, or nothing is tested"
    assert best_gamma([0.7] * 8, STAIRS, price) == int(np.argmax(values)) >= 4


def test_best_gamma_is_0_where_nothing_pays() -> None:
    slow = RoundCosts(draft_step=1.0, verify=(1.0,) * 5)
    assert best_gamma([0.99] * 4, slow, 1.0) == 0
    assert best_fixed_gamma([0.9] * 4, slow)[0] == 0


def test_the_price_of_time_at_the_optimum_is_the_optimal_rate() -> None:
    """Dinkelbach: with λ the best rate, the best objective is 0 and is reached by the same γ."""
    hazards = [0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45]
    gamma, rate = best_fixed_gamma(hazards, STAIRS)
    values = objective(hazards, STAIRS, rate)
    assert max(values) == pytest.approx(0.0, abs=1e-12)
    assert best_gamma(hazards, STAIRS, rate) == gamma


def test_the_worst_round_leaves_out_lengths_that_nobody_stops_at() -> None:
    # 3 tokens cost 204 ms, but from there it is quicker to go on to 4 (160 + 7) or 5 (152 + 14).
    assert STAIRS.worst_seconds(4) == pytest.approx(4 * 0.007 + 0.152 + 0.002)
    assert STAIRS.worst_seconds(2) == pytest.approx(2 * 0.007 + 0.204 + 0.002)
    assert STAIRS.largest_cap(0.19, 8) == 4
    assert STAIRS.largest_cap(0.17, 8) == 1
    assert STAIRS.largest_cap(0.1, 8) == 0


def solve(costs: RoundCosts, price: float, cap: int, centers: list[float]) -> StoppingValues:
    bins = len(centers)
    laws = np.random.default_rng(0).dirichlet(np.ones(bins), size=bins + 1)
    acceptance = np.tile(np.array(centers), (cap, 1))
    return StoppingValues(laws[0], laws[1:], acceptance, costs, price, cap)


@pytest.mark.parametrize(
    "costs",
    [
        STAIRS,
        RoundCosts(draft_step=0.1, verify=(1.0,) * 9),
        RoundCosts(draft_step=0.05, verify=tuple(1 + 0.3 * n for n in range(9))),
    ],
)
@pytest.mark.parametrize("cap", [1, 2, 5])
def test_the_value_of_starting_equals_the_whole_tree(costs: RoundCosts, cap: int) -> None:
    """The grid of survivals against a recursion that visits every path of looks."""
    centers = [0.15, 0.55, 0.9]
    price = 1.2 / costs.plain
    laws = np.random.default_rng(0).dirichlet(np.ones(3), size=4)

    @cache
    def looking(drawn: int, survival: float, last: int) -> float:
        """Value of one more step after `drawn` tokens."""
        law = laws[0] if drawn == 0 else laws[1:][last]
        stop = -price * costs.verify[drawn]
        value = -price * costs.draft_step
        for bin_, chance in enumerate(centers):
            after = survival * chance
            value += law[bin_] * max(stop, after + going_on(drawn + 1, after, bin_))
        return float(value)

    def going_on(drawn: int, survival: float, last: int) -> float:
        stop = -price * costs.verify[drawn]
        return stop if drawn == cap else max(stop, looking(drawn, survival, last))

    plainly = -price * (costs.plain - costs.round_overhead)
    expected = looking(0, 1.0, -1) - plainly
    assert solve(costs, price, cap, centers).start == pytest.approx(expected, abs=2e-3)


def test_looking_is_worth_starting_where_drafting_blindly_is_not() -> None:
    """Half of the looks promise 0.95, half 0.05: the mean of 0.5 does not pay, the option does."""
    costs = RoundCosts(draft_step=0.1, verify=(1.0, 1.6, 2.2))
    law = np.array([0.5, 0.5])
    assert best_gamma([0.5, 0.5], costs, 1.0) == 0
    acceptance = np.tile([0.05, 0.95], (2, 1))
    values = StoppingValues(law, np.tile(law, (2, 1)), acceptance, costs, 1.0, 2)
    # One look costs 0.1; half of the time it finds 0.95 tokens for 0.6.
    assert values.start == pytest.approx(-0.1 + 0.5 * 0.35 + 0.5 * 0.95 * 0.0, abs=0.06)
    assert values.start > 0.0
    assert values.wants_token(1, 0.95, 1)
    assert not values.wants_token(1, 0.05, 0)


def test_a_step_of_the_curve_is_crossed_where_the_far_side_pays() -> None:
    """v rises by 1 at two tokens and stays: worth it only if many tokens are expected beyond."""
    costs = RoundCosts(draft_step=0.01, verify=(1.0, *(2.0,) * 8))
    law = np.ones(1)
    one = StoppingValues(law, np.ones((1, 1)), np.full((1, 1), 0.9), costs, 1.0, 1)
    many = StoppingValues(law, np.ones((1, 1)), np.full((8, 1), 0.9), costs, 1.0, 8)
    assert one.start < 0.0 < many.start
    assert not one.wants_token(1, 0.9, 0)
    assert many.wants_token(1, 0.9, 0)
    assert many.wants_step(3, 0.9**3, 0)


def test_the_step_just_run_is_sunk() -> None:
    """With 0.35 tokens expected and a step at 0.3, the draw pays once the step is run, a new look does not."""
    costs = RoundCosts(draft_step=0.3, verify=(1.0, 1.1, 1.2))
    law = np.ones(1)
    values = StoppingValues(law, np.ones((1, 1)), np.full((2, 1), 0.35), costs, 1.0, 2)
    assert values.start < 0.0
    assert values.wants_token(1, 0.35, 0)
    assert not values.wants_step(1, 0.35, 0)


def test_where_more_tokens_verify_faster_drawing_on_is_worth_it_even_without_hope() -> None:
    costs = RoundCosts(draft_step=0.007, verify=STAIRS.verify)
    values = StoppingValues(
        np.ones(1), np.ones((1, 1)), np.full((4, 1), 0.01), costs, 1.0 / costs.plain, 4
    )
    assert values.wants_step(2, 1e-4, 0), "3 tokens take 204 ms, 4 take 160"
    assert values.wants_token(3, 1e-6, 0)
