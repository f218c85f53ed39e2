"""Prompt lookup: the index against a search by force, the loop with drafts short or missing, the batch."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from controller_sim import predictor
from controller_sim import table as latency_table
from families import FAMILIES, VOCABULARY, build, random_prompts, transformers_greedy
from foredraft.controller import AdaptiveLookahead, RoundCosts
from foredraft.spec import (
    BatchDecoder,
    DecodeStats,
    FixedLookahead,
    GeneratorDraws,
    Match,
    PromptLookupDrafter,
    Proposal,
    RequestOutput,
    SamplingParams,
    SpeculativeDecoder,
    TokenLaw,
    foredraft_generate,
)
from foredraft.spec.ngrams import NgramIndex
from toys import ForcedTokens, byte_tokenizer, greedy, tiny_llama

EAGER = PromptLookupDrafter(max_ngram=4, min_ngram=1)  # one token is a match: tests draft often


def total(outputs: list[RequestOutput]) -> DecodeStats:
    return sum((output.stats for output in outputs), DecodeStats())


def repeating_prompts() -> list[list[int]]:
    a, b, c = random_prompts(7, 5, 9)
    return [a * 3, b * 4 + c + b * 2]


def propose(
    drafter: PromptLookupDrafter, tokens: list[int], gamma: int = 4, width: int = 9
) -> Proposal:
    law = TokenLaw(SamplingParams(), [0], width=width, eos_token_ids=[], device=torch.device("cpu"))
    return drafter.propose(tokens, gamma, FixedLookahead(gamma), law, GeneratorDraws(0))


def match_by_force(tokens: list[int], max_ngram: int, min_ngram: int) -> Match | None:
    for size in range(min(max_ngram, len(tokens) - 1), min_ngram - 1, -1):
        ends = [
            end for end in range(size, len(tokens)) if tokens[end - size : end] == tokens[-size:]
        ]
        if ends:
            followed = [tokens[end] for end in ends]
            same = itertools.takewhile(followed[-1].__eq__, followed[-2::-1])
            return Match(size, len(ends), ends[-1], len(list(same)))
    return None


@pytest.mark.parametrize(("max_ngram", "min_ngram"), [(1, 1), (3, 1), (5, 2), (4, 4)])
@pytest.mark.parametrize("alphabet", [1, 2, 3, 7])
def test_the_index_finds_what_a_search_by_force_finds(
    alphabet: int, max_ngram: int, min_ngram: int
) -> None:
    choice = random.Random(10 * alphabet + max_ngram)
    for _ in range(10):
        index = NgramIndex(max_ngram, min_ngram)
        tokens: list[int] = []
        while len(tokens) < 60:
            new = [choice.randrange(alphabet) for _ in range(choice.randint(1, 5))]
            tokens += new
            index.extend(new)
            assert index.match == match_by_force(tokens, max_ngram, min_ngram)
        assert index.tokens == tokens


def test_the_latest_of_the_longest_is_followed_and_what_repeats_goes_on() -> None:
    drafter = PromptLookupDrafter(max_ngram=2, min_ngram=1)
    # 1 2 stood twice; 3 followed it first and last, 4 between: the latest occurrence is copied.
    proposal = propose(drafter, [1, 2, 3, 1, 2, 4, 5, 1, 2], gamma=3)
    assert proposal.tokens == [4, 5, 1]
    assert proposal.match == Match(length=2, count=2, follows=5)
    assert (proposal.steps, proposal.probs.shape) == (0, (3, 9))
    drafter.reset(20)
    assert propose(drafter, [5, 7, 8, 7, 8], gamma=5).tokens == [7, 8, 7, 8, 7]


def test_no_match_no_draft_and_a_token_that_cannot_be_said_ends_one() -> None:
    drafter = PromptLookupDrafter(max_ngram=3, min_ngram=2)
    nothing = propose(drafter, [1, 2, 3, 4, 2])
    assert (nothing.tokens, nothing.match) == ([], None)
    assert nothing.probs.shape == (0, 9)
    drafter.reset(20)
    assert propose(drafter, [1, 2, 3, 8, 4, 1, 2], width=8).tokens == [3]


def test_what_is_taken_back_is_forgotten() -> None:
    drafter = PromptLookupDrafter(max_ngram=2, min_ngram=1)
    propose(drafter, [1, 2, 3, 4, 1])
    drafter.roll_back(5)  # drafted tokens only: nothing was read of them
    assert propose(drafter, [1, 2, 3, 4, 1, 2]).tokens == [3, 4, 1, 2]
    drafter.roll_back(2)
    assert propose(drafter, [1, 2, 5, 3], gamma=2).tokens == []
    assert propose(drafter, [1, 2, 5, 3, 2], gamma=2).tokens == [5, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_ngram": 0}, "max_ngram must be an integer >= 1, got 0"),
        ({"min_ngram": 0}, r"min_ngram must be an integer in \[1, 5\], got 0"),
        ({"max_ngram": 3, "min_ngram": 4}, r"min_ngram must be an integer in \[1, 3\], got 4"),
        ({"max_ngram": 2.5}, "max_ngram must be an integer >= 1, got 2.5"),
    ],
)
def test_bad_sizes_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PromptLookupDrafter(**settings)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_greedy_equals_generate_alone_and_in_a_batch(name: str) -> None:
    model = build(name, attention=FAMILIES[name].attention[0])
    prompts = [*repeating_prompts(), *random_prompts(1, 6)]
    expected = [transformers_greedy(model, prompt, 40) for prompt in prompts]
    decoder = SpeculativeDecoder(model, None, EAGER, FixedLookahead(4))
    batch = BatchDecoder(decoder, rows=3)
    assert batch.obstacle is None
    for outputs in (
        decoder.generate(prompts, greedy(max_tokens=40)),
        batch.generate(prompts, greedy(max_tokens=40)),
    ):
        assert [output.token_ids for output in outputs] == expected
        stats = total(outputs)
        assert stats.tested > stats.accepted > 3  # both ways of emitting are there
        assert stats.draft_steps == 0
        assert {0, 4} <= stats.gammas.keys()  # rounds without a draft among those with one
        assert stats.emitted == 40 * len(prompts)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_a_row_of_a_batch_draws_what_it_draws_alone(temperature: float) -> None:
    model = build("llama")
    prompts = [*repeating_prompts(), *random_prompts(2, 9, 30), [3, 4] * 10]
    decoder = SpeculativeDecoder(model, None, EAGER, FixedLookahead(5))
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=4)
    alone = decoder.generate(prompts, params)
    batch = BatchDecoder(decoder, rows=3).generate(prompts, params)
    assert [output.token_ids for output in batch] == [output.token_ids for output in alone]
    assert [output.stats.gammas for output in batch] == [output.stats.gammas for output in alone]
    stats = total(batch)
    assert stats.tested > stats.accepted > 3


def test_the_policy_cuts_a_draft_short() -> None:
    class TwoSteps(FixedLookahead):
        asked: list[int] = []  # noqa: RUF012

        def wants_step(self, depth: int) -> bool:
            self.asked.append(depth)
            return depth <= 2

    policy = TwoSteps(6)
    decoder = SpeculativeDecoder(build("llama"), None, EAGER, policy)
    [output] = decoder.generate([[1, 2, 3] * 5], greedy(max_tokens=20))
    assert max(output.stats.gammas) == 2
    assert max(policy.asked) == 3
    assert output.token_ids == transformers_greedy(decoder.target.model, [1, 2, 3] * 5, 20)


def test_where_nothing_repeats_all_rounds_are_plain() -> None:
    decoder = SpeculativeDecoder(
        build("llama"), None, PromptLookupDrafter(max_ngram=30, min_ngram=30)
    )
    stats = decoder.generate(random_prompts(9), greedy(max_tokens=12))[0].stats
    assert (stats.rounds, stats.drafted, stats.gammas) == (12, 0, {0: 12})
    assert stats.acceptance_rate is None
    assert stats.accepted_lengths == {}


def looped(script: list[int], tokenizer: Any = None, gamma: int = 6) -> SpeculativeDecoder:
    """A decoder whose target says the script over and over."""
    model = ForcedTokens(tiny_llama(), script)
    return SpeculativeDecoder(model, tokenizer, PromptLookupDrafter(), FixedLookahead(gamma))


@pytest.mark.parametrize("offset", range(10))
def test_b01_eos_ends_the_output_inside_an_accepted_block(offset: int) -> None:
    script = list(range(40, 50))
    decoder = looped(script)
    decoder.target.model.generation_config.eos_token_id = script[offset]
    [output] = decoder.generate([[1, *script, *script[:-1]]], greedy(max_tokens=40))
    # The prompt ends before the script's last token.
    assert output.token_ids == [49, *script][: 1 + (offset + 1) % 10]
    assert output.finish_reason == "stop"
    assert output.stats.accepted > 0


@pytest.mark.parametrize("gamma", [1, 2, 5, 12])
@pytest.mark.parametrize("stop", ["c", "cat", "t sat o", "本", "日本 m", "s."])
def test_b02_stop_strings_inside_an_accepted_block_and_over_its_edges(
    stop: str, gamma: int
) -> None:
    text = "the cat sat on 日本 mats."
    script = byte_tokenizer().encode(text)
    decoder = looped(script, byte_tokenizer(), gamma)
    params = greedy(max_tokens=len(script), stop=(stop,))
    [output] = decoder.generate([[1, *script]], params)
    assert output.text == text[: text.index(stop)]
    assert output.finish_reason == "stop"
    assert output.stats.accepted > 0
    assert "".join(decoder.stream([1, *script], params)) == output.text


def test_b09_nothing_is_drafted_beyond_the_limit() -> None:
    script = list(range(40, 50))
    for max_tokens in range(1, 16):
        [output] = looped(script).generate([[1, *script]], greedy(max_tokens=max_tokens))
        assert output.token_ids == (script * 2)[:max_tokens]
        assert output.stats.emitted == max_tokens
        assert output.finish_reason == "length"


def test_a_policy_that_reads_logits_is_refused() -> None:
    costs = RoundCosts(draft_step=0.1, verify=(1.0, 1.05, 1.1))
    adaptive = AdaptiveLookahead(predictor(), latency_table(costs), gamma_max=2)
    message = (
        r"AdaptiveLookahead\(gamma_max=2\) decides by a draft model's logits, and PromptLookup"
    )
    model = tiny_llama()
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(model, None, EAGER, adaptive)
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(model, None, EAGER).with_lookahead(adaptive)
    with pytest.raises(ValueError, match=message):
        model.generate(
            torch.tensor([[1, 2]]), max_new_tokens=2,
            custom_generate=foredraft_generate(EAGER, adaptive),
        )  # fmt: skip
    SpeculativeDecoder(model, None, None, adaptive)  # plain decoding: it never asks


def test_a_decoder_and_the_drop_in_take_it_by_name_or_as_an_object(tmp_path: Path) -> None:
    model = build("llama")
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    [prompt, _] = repeating_prompts()
    expected = transformers_greedy(model, prompt, 30)
    for draft in ("prompt-lookup", PromptLookupDrafter(max_ngram=3, min_ngram=1)):
        decoder = SpeculativeDecoder.from_pretrained(str(tmp_path), draft=draft, lookahead=5)
        assert isinstance(decoder.drafter, PromptLookupDrafter)
        [output] = decoder.generate([prompt], greedy(max_tokens=30))
        assert output.token_ids == expected
        assert output.stats.drafted > 0
        ours = foredraft_generate(draft, 5)
        whole = model.generate(
            torch.tensor([prompt]), max_new_tokens=30, do_sample=False, custom_generate=ours
        )
        assert whole[0, len(prompt) :].tolist() == expected
        assert ours.stats[0].drafted > 0
    assert max(expected) < VOCABULARY
