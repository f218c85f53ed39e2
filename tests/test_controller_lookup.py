"""LookupLookahead on simulated scripts and machines, and in the real loop."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from lookup_sim import simulate_lookup

from controller_sim import GREEDY, STAIRS, Machine, Run, predictor, table
from families import FAMILIES, build, random_prompts, transformers_greedy
from foredraft.controller import AdaptiveConfig, AdaptiveLookahead, LookupLookahead, RoundCosts
from foredraft.controller.matches import MatchPredictor
from foredraft.spec import (
    BatchDecoder,
    FixedLookahead,
    Look,
    LookaheadPolicy,
    Match,
    PromptLookupDrafter,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
)
from toys import greedy

pytestmark = pytest.mark.usefixtures("one_thread")
MEASURED = (1.0, 1.05, 1.05, 1.05, 1.06, 1.26, 1.36, 1.36, 1.4)  # of a demo machine


def curve(*verify: float, slope: float) -> RoundCosts:
    """A verify curve that goes on by `slope` a token."""
    rest = (verify[-1] + slope * (n + 1) for n in range(40 - len(verify)))
    return RoundCosts(draft_step=0.1, verify=(*verify, *rest))


FLAT, CPU = curve(1.0, slope=0.01), curve(*MEASURED, slope=0.05)
LINEAR, STEEP = curve(1.0, slope=0.3), curve(1.0, slope=0.9)
MACHINES = {"flat": FLAT, "cpu": CPU, "linear": LINEAR, "steep": STEEP}


def measured(costs: RoundCosts) -> LookupLookahead:
    """A policy with the table that `foredraft fit` would have made: up to 8 drafted tokens."""
    return LookupLookahead(table(RoundCosts(draft_step=0.1, verify=costs.verify[:9])))


def passage(length: int, *, of: int, seed: int) -> list[int]:
    choice = random.Random(seed)
    return [choice.randrange(of) for _ in range(length)]


def edited(tokens: list[int], every: int) -> list[int]:
    """The tokens with a new one after every so many."""
    return [
        token
        for start in range(0, len(tokens), every)
        for token in [*tokens[start : start + every], 1000 + start]
    ]


PAGE = passage(400, of=500, seed=1)


def rates(costs: RoundCosts, script: list[int], policy: LookaheadPolicy) -> tuple[float, Run]:
    run = simulate_lookup(policy, PAGE, script, Machine(costs))
    return run.rate * costs.plain, run


@pytest.mark.parametrize("known", [True, False], ids=["table", "no table"])
@pytest.mark.parametrize(
    ("name", "least"), [("flat", 13.0), ("cpu", 8.5), ("linear", 2.4), ("steep", 1.03)]
)
def test_a_copy_is_followed_as_far_as_the_machine_verifies_cheaply(
    name: str, least: float, known: bool
) -> None:
    policy = measured(MACHINES[name]) if known else LookupLookahead()
    speedup, run = rates(MACHINES[name], PAGE * 2, policy)
    assert speedup > least
    assert max(run.gammas) == 32 if name in ("flat", "cpu") else max(run.gammas) <= 24


@pytest.mark.parametrize("every", [4, 20])
@pytest.mark.parametrize("name", ["flat", "cpu", "linear"])
def test_an_edit_is_as_fast_as_under_a_good_fixed_length(name: str, every: int) -> None:
    script = edited(PAGE * 2, every)
    ours, _ = rates(MACHINES[name], script, measured(MACHINES[name]))
    fixed = [rates(MACHINES[name], script, FixedLookahead(gamma))[0] for gamma in (2, 4, 8, 16)]
    assert ours > 0.85 * max(fixed)
    assert ours > 1.25


@pytest.mark.parametrize("known", [True, False], ids=["table", "no table"])
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("symbols", [5, 500])
def test_wrong_matches_do_not_cost_more_than_the_guard_allows(
    symbols: int, name: str, known: bool
) -> None:
    """Everything has stood before, and what followed says nothing."""
    costs = MACHINES[name]
    policy = measured(costs) if known else LookupLookahead()
    prompt = passage(600, of=symbols, seed=2)
    run = simulate_lookup(policy, prompt, passage(500, of=symbols, seed=3), Machine(costs))
    guard, config = policy._pacing.accounts.guard, policy.config
    steps = run.seconds / costs.plain
    share = config.slowdown_tolerance + config.probe_share
    allowed = config.slowdown_budget + config.slowdown_credit + share * steps
    luck = config.slowdown_deviations * math.sqrt(guard._variance)
    surprise = 0.0 if known else 2.0  # a first round of unknown cost
    assert steps - run.tokens <= allowed + luck + surprise
    assert steps <= 1.03 * run.tokens
    if symbols == 500:
        assert run.gammas.count(0) > 0.98 * len(run.gammas)


@pytest.mark.parametrize("name", ["flat", "cpu"])
def test_a_copy_after_wrong_matches_is_followed_within_a_few_rounds(name: str) -> None:
    """What was not followed is judged too, so nothing has to be probed."""
    noise = passage(500, of=5, seed=2)
    policy = measured(MACHINES[name])
    simulate_lookup(policy, PAGE + noise, passage(500, of=5, seed=3), Machine(MACHINES[name]))
    speedup, run = rates(MACHINES[name], PAGE, policy)
    assert speedup > 6.0
    assert next(n for n, gamma in enumerate(run.gammas) if gamma >= 8) < 8


def test_the_prior_says_what_matches_are_worth() -> None:
    def chance(run: int, count: int = 1, agreed: int = 0) -> float:
        look = Look(Match(min(run, 5), count, follows=9, agreed=agreed), run)
        return MatchPredictor().chances(look, 1)[0]

    assert 0.3 < chance(2) < 0.5 < chance(5) < 0.75
    assert chance(30) > 0.93
    assert chance(3, count=4, agreed=0) < 0.3 < chance(3) < chance(3, count=4, agreed=3)
    whole = MatchPredictor().chances(Look(Match(2, 1, follows=9), 2), 30)
    assert whole == sorted(whole), "each candidate that was right makes the next more likely"
    assert MatchPredictor().chances(Look(None), 3) == []


def test_what_came_of_looks_moves_the_kind_that_was_looked_at() -> None:
    short, long = Look(Match(2, 1, 9), 2), Look(Match(5, 1, 9), 20)
    matches = MatchPredictor()
    before = [matches.chances(look, 1)[0] for look in (short, long)]
    for _ in range(400):
        matches.see(short)
        matches.see(Look(Match(5, 1, 9), 20, came=(False,)))
        matches.see(Look(None, came=(True,)))
    after = [matches.chances(look, 1)[0] for look in (short, long)]
    assert after[0] < 0.5 * before[0]
    assert after[1] > 0.85
    assert after[1] > after[0] + 0.5


def test_a_request_starts_with_what_matches_mean_and_without_the_others_text() -> None:
    matches = MatchPredictor()
    look = Look(Match(3, 1, 9), 3)
    fresh = matches.chances(look, 1)[0]
    for _ in range(60):
        matches.see(Look(Match(3, 1, 9), 3, came=(False,)))
    within = matches.chances(look, 1)[0]
    matches.begin_request()
    across = matches.chances(look, 1)[0]
    assert within < across < fresh
    matches.see(Look(None, came=(True,)))  # of a look that is not this request's
    assert matches.chances(look, 1)[0] == across


@pytest.mark.parametrize("known", [True, False], ids=["table", "no table"])
def test_a_limit_of_the_request_is_kept_and_a_fresh_plain_step_is_taken(known: bool) -> None:
    latency = table(RoundCosts(draft_step=0.1, verify=LINEAR.verify[:9])) if known else None
    policy = LookupLookahead(latency, config=AdaptiveConfig(refresh_rounds=20))
    simulate_lookup(policy, PAGE, PAGE * 2, Machine(LINEAR))  # asserts the cap
    assert policy.kinds["refresh"] >= 1
    assert policy.kinds["measure"] == (0 if known else 3)
    assert policy.snapshot()["tokens_per_plain_step"] > 1.8


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_greedy_equals_generate_alone_and_in_a_batch(name: str) -> None:
    model = build(name, attention=FAMILIES[name].attention[0])
    a, b = random_prompts(7, 5)
    prompts = [a * 3, b * 4 + a + b * 2]
    expected = [transformers_greedy(model, prompt, 24) for prompt in prompts]
    lookup = PromptLookupDrafter(max_ngram=4, min_ngram=1)
    policy = measured(FLAT)
    decoder = SpeculativeDecoder(model, None, lookup, policy)
    batch = BatchDecoder(decoder, rows=2)
    assert batch.obstacle is None
    for outputs in (
        decoder.generate(prompts, greedy(max_tokens=24)),
        batch.generate(prompts, greedy(max_tokens=24)),
    ):
        assert [output.token_ids for output in outputs] == expected
        assert sum(output.stats.accepted for output in outputs) > 2
        assert sum(output.stats.draft_steps for output in outputs) == 0
    assert policy.kinds["speculate"] > 0


def test_rows_learn_together_and_leave_their_model_as_it_is() -> None:
    policy = measured(FLAT)
    one, two = policy.for_rows(2)
    assert isinstance(one, LookupLookahead)
    assert isinstance(two, LookupLookahead)
    simulate_lookup(one, PAGE, PAGE, Machine(FLAT))
    assert one._pacing.matches.weights == two._pacing.matches.weights
    assert one._pacing.matches.weights != policy._pacing.matches.weights
    assert two._pacing.matches.shift == 0.0
    assert two._pacing.accounts.throughput.rate == one._pacing.accounts.throughput.rate > 1.5
    assert two._pacing.accounts.guard.balance == 0.0 < one._pacing.accounts.guard.balance
    assert policy.kinds == {}


def test_it_takes_table_and_settings_of_a_saved_lookahead(tmp_path: Path) -> None:
    AdaptiveLookahead(predictor(), table(STAIRS), gamma_max=4).save(tmp_path)
    policy = LookupLookahead.load(tmp_path)
    found = policy.snapshot()["verify_seconds"]
    assert found[:9] == list(STAIRS.verify)
    assert len(found) == 33
    assert policy.config == AdaptiveLookahead(predictor(), table(STAIRS)).config
    with pytest.raises(ValueError, match=r"lookahead\.json: not a usable lookahead"):
        LookupLookahead.load(tmp_path / "nothing")


def test_a_drafter_that_looks_nothing_up_is_refused_and_none_decodes_plainly() -> None:
    policy = LookupLookahead()
    with pytest.raises(ValueError, match=r"paces prompt lookup, and this drafter looks nothing up"):
        policy.begin_round(RoundStart(context_length=9, gamma_limit=4))
    with pytest.raises(ValueError, match="gamma_max must be an integer >= 1, got 0"):
        LookupLookahead(gamma_max=0)
    decoder = SpeculativeDecoder(build("llama"), None, None, policy)
    [output] = decoder.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=5))
    assert output.stats.gammas == {0: 5}
    policy.begin_request(GREEDY)
