"""ChainLookahead: each source is used where it gains most, on simulated scripts and in the real loop."""

from __future__ import annotations

import random
from functools import cache

import pytest
from lookup_sim import simulate_lookup

from controller_sim import Machine, Run, Text, predictor, simulate, table
from families import FAMILIES, build, random_prompts, transformers_greedy
from foredraft.controller import (
    AdaptiveConfig,
    AdaptiveLookahead,
    ChainLookahead,
    LookupLookahead,
    RoundCosts,
)
from foredraft.spec import (
    BatchDecoder,
    ChainDrafter,
    ModelDrafter,
    PromptLookupDrafter,
    RoundStart,
    SpeculativeDecoder,
)
from toys import greedy, noisy_copy

pytestmark = pytest.mark.usefixtures("one_thread")
COSTS = RoundCosts(
    draft_step=0.12,
    verify=(1.0, 1.05, 1.05, 1.05, 1.06, 1.26, *(1.36 + 0.04 * n for n in range(34))),
)
TABLE = table(RoundCosts(draft_step=0.12, verify=COSTS.verify[:9]))


def passage(length: int, *, of: int = 50_000, seed: int) -> list[int]:
    choice = random.Random(seed)
    return [choice.randrange(of) for _ in range(length)]


PAGE = passage(300, seed=1)
NEW, NOISE = passage(300, seed=2), passage(300, of=5, seed=3)


def believed(length: int) -> Text:
    """A text where the draft model is right about three times in four."""
    return Text.make(length=length, mean=1.2, slope=1.7, seed=3)


def strange(length: int) -> Text:
    return Text.make(length=length, mean=-5.0, slope=0.3, seed=4)


def chain(config: AdaptiveConfig | None = None) -> ChainLookahead:
    return ChainLookahead(predictor(), TABLE, config=config)


def share(run: Run, source: str) -> float:
    """The share of rounds that a source drafted."""
    return run.sources.count(source) / len(run.sources)


@pytest.mark.parametrize(
    ("prompt", "script", "text", "source", "least"),
    [
        (PAGE, PAGE, strange(300), "lookup", 0.8),
        (PAGE, PAGE, believed(300), "lookup", 0.8),
        (PAGE, NEW, believed(300), "model", 0.95),
        (PAGE + NOISE, passage(300, of=5, seed=9), believed(300), "model", 0.85),
        (PAGE, NEW, strange(300), "plain", 0.85),
    ],
    ids=["copy", "copy, both good", "new", "wrong matches", "neither"],
)
def test_the_source_that_gains_is_used(
    prompt: list[int], script: list[int], text: Text, source: str, least: float
) -> None:
    run = simulate_lookup(chain(), prompt, script, Machine(COSTS), text=text)
    assert share(run, source) > least


@cache
def mixed() -> tuple[list[int], Text]:
    """A copy, text that the model knows, the copy again, text that nobody knows."""
    script = PAGE + NEW + PAGE + passage(300, seed=5)
    return script, strange(300) + believed(300) + strange(300) + strange(300)


def test_a_mixed_text_is_faster_than_with_either_source() -> None:
    script, text = mixed()
    both = simulate_lookup(chain(), PAGE, script, Machine(COSTS), text=text)
    lookup = simulate_lookup(LookupLookahead(TABLE), PAGE, script, Machine(COSTS))
    model = simulate(AdaptiveLookahead(predictor(), TABLE), text, Machine(COSTS))
    assert both.rate > 1.1 * max(lookup.rate, model.rate)
    assert {"lookup", "model", "plain"} == set(both.sources)


def test_where_both_sources_are_wrong_one_guard_holds() -> None:
    policy = chain()
    run = simulate_lookup(
        policy, NOISE, passage(400, of=50, seed=7), Machine(COSTS), text=strange(400)
    )
    assert run.seconds / COSTS.plain <= 1.03 * run.tokens + 3.5
    assert policy._pacing.accounts.guard is policy._model._guard


def test_what_the_model_did_not_read_is_in_its_price() -> None:
    """Where reading a token costs some plain steps, a model that is far behind is not asked."""
    asked = {}
    for dear in (False, True):
        policy = chain()
        if dear:
            policy._model._costs._catch_up = 5.0
        text = strange(300) + believed(300)
        run = simulate_lookup(policy, PAGE, PAGE + NEW, Machine(COSTS), text=text)
        asked[dear] = run.sources.count("model")
        assert policy.kinds["lookup"] >= 10
    assert asked[False] > 50
    assert asked[True] == 0


def test_rounds_of_the_lookup_are_no_evidence_on_the_model() -> None:
    policy = chain()
    simulate_lookup(policy, PAGE, PAGE, Machine(COSTS), text=strange(300))
    asked = policy.kinds["speculate"] + policy.kinds["probe"]
    assert asked < 4
    assert policy._model._history.recent_acceptance > 0.3


def test_rows_share_costs_and_what_is_learned_and_have_their_own_guard() -> None:
    policy = chain()
    one, two = policy.for_rows(2)
    assert isinstance(one, ChainLookahead)
    assert isinstance(two, ChainLookahead)
    assert one._model._costs is one._costs.online is two._model._costs
    assert one._model._throughput is two._pacing.accounts.throughput
    assert one._model._guard is one._pacing.accounts.guard is not two._model._guard
    simulate_lookup(one, PAGE, PAGE, Machine(COSTS), text=strange(300))
    assert one._pacing.matches.weights == two._pacing.matches.weights
    assert policy._pacing.matches.weights != one._pacing.matches.weights
    assert policy.kinds.total() == 0


def test_a_plain_step_is_taken_now_and_then() -> None:
    policy = chain(AdaptiveConfig(refresh_rounds=10))
    run = simulate_lookup(policy, PAGE, PAGE * 2, Machine(COSTS), text=strange(600))
    assert policy.kinds["refresh"] >= 2
    assert run.sources.count("plain") >= 2


def test_limits_and_drafters_that_look_nothing_up() -> None:
    policy = chain()
    assert policy.gamma_max == 32
    assert policy.begin_round(RoundStart(context_length=9, gamma_limit=0)) == 0
    with pytest.raises(ValueError, match="paces a chain of prompt lookup and draft model"):
        policy.begin_round(RoundStart(context_length=9, gamma_limit=4))
    with pytest.raises(ValueError, match="lookup_gamma_max must be an integer >= 1, got 0"):
        ChainLookahead(predictor(), TABLE, lookup_gamma_max=0)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_greedy_equals_generate_alone_and_in_a_batch(name: str) -> None:
    model = build(name, attention=FAMILIES[name].attention[0])
    a, b = random_prompts(7, 5)
    prompts = [a * 3, b * 4 + a + b * 2]
    expected = [transformers_greedy(model, prompt, 24) for prompt in prompts]
    draft = ModelDrafter(noisy_copy(model, scale=0.03), width=model.config.vocab_size)
    drafter = ChainDrafter(draft, PromptLookupDrafter(max_ngram=4, min_ngram=1))
    policy = ChainLookahead(predictor(), table(RoundCosts(draft_step=0.02, verify=(1.0,) * 9)))
    decoder = SpeculativeDecoder(model, None, drafter, policy)
    batch = BatchDecoder(decoder, rows=2)
    for outputs in (
        decoder.generate(prompts, greedy(max_tokens=24)),
        batch.generate(prompts, greedy(max_tokens=24)),
    ):
        assert [output.token_ids for output in outputs] == expected
    assert policy.kinds["speculate"] + policy.kinds["lookup"] > 0
