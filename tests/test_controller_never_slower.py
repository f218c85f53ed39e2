"""Never slower than plain decoding by more than 2 % of 400 tokens, probes included, whatever is believed."""

from __future__ import annotations

from statistics import mean

import pytest

from controller_sim import Machine, Text, predictor, simulate, table
from foredraft.controller import AdaptiveLookahead, RoundCosts

TOKENS = 400
VERIFY = {  # of 1 … 9 tokens, in plain steps
    "flat": (1.0,) * 9,
    "stepped": (1.0, 1.05, 1.05, 1.05, 1.06, 1.26, 1.36, 1.36, 1.4),  # a demo machine's, packed
    "stairs": (1.0, 1.6, 2.3, 1.8, 1.7, 1.9, 2.0, 1.9, 2.0),  # another's: not even monotone
    "steep": tuple(1.0 + 0.5 * more for more in range(9)),
}
NEVER, RANDOM, HALF = -20.0, -2.2, 0.0  # logit of true acceptance; 0.1 is what a random draft gets
WARY, TRUSTING, SEEING = (0.4, 0.0), (1.7, 0.0), (0.4, 1.7)  # what the predictor was fitted on

pytestmark = pytest.mark.usefixtures("one_thread")


def lost(
    verify: str, c: float, believed: tuple[float, float], true: float, seed: int,
    *, request_tokens: int = 10**9,
) -> float:  # fmt: skip
    """Return the plain steps that 400 tokens took too many."""
    costs = RoundCosts(draft_step=c, verify=VERIFY[verify])
    text = Text.make(length=TOKENS, mean=true, slope=0.0, seed=seed)
    policy = AdaptiveLookahead(predictor(*believed), table(costs))
    run = simulate(policy, text, Machine(costs), request_tokens=request_tokens)
    return run.seconds / costs.plain - run.tokens


@pytest.mark.parametrize(
    ("verify", "c", "believed"),
    [
        ("flat", 0.05, WARY), ("flat", 0.6, TRUSTING), ("flat", 1.0, TRUSTING),
        ("stepped", 0.05, SEEING), ("stepped", 0.3, SEEING), ("stairs", 0.05, SEEING),
        ("steep", 0.05, TRUSTING), ("steep", 0.05, SEEING), ("steep", 1.0, TRUSTING),
    ],
)  # fmt: skip
def test_a_draft_that_is_never_right_costs_less_than_2_percent_always(
    verify: str, c: float, believed: tuple[float, float]
) -> None:
    """There is no chance in it: the draft is wrong at every position. It was up to 2.4 %."""
    assert lost(verify, c, believed, NEVER, seed=0) < 0.018 * TOKENS


@pytest.mark.parametrize(
    ("verify", "c", "believed", "true"),
    [
        ("stepped", 0.05, TRUSTING, RANDOM), ("stairs", 0.05, SEEING, RANDOM),
        ("steep", 0.05, TRUSTING, HALF),
    ],
)  # fmt: skip
def test_a_draft_that_is_seldom_right_costs_less_than_2_percent_on_average(
    verify: str, c: float, believed: tuple[float, float], true: float
) -> None:
    assert mean(lost(verify, c, believed, true, seed) for seed in range(2)) < 0.02 * TOKENS


@pytest.mark.parametrize(("verify", "c"), [("stepped", 0.05), ("steep", 0.05)])
def test_many_short_answers_share_one_budget(verify: str, c: float) -> None:
    """Twenty answers of 20 tokens may lose what one of 400 may, and the prompts that the draft reads."""
    short = lost(verify, c, TRUSTING, NEVER, seed=0, request_tokens=20)
    assert short < 0.02 * TOKENS
