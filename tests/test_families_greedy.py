"""Every family of docs/models.md: our greedy output is that of transformers' `generate`, token for token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from families import (
    FAMILIES,
    VOCABULARY,
    RandomLookahead,
    build,
    make_decoder,
    perturbed,
    random_prompts,
    transformers_greedy,
)
from foredraft.spec import BatchDecoder, CachedModel, FixedLookahead, SamplingParams

ATTENTION = [(name, way) for name, family in FAMILIES.items() for way in family.attention]


ALWAYS_TESTED = (
    "llama", "qwen2", "qwen2-sliding", "qwen3", "mistral", "mistral-sliding", "phi", "phi3", "olmo2",
    "gemma2", "gemma3", "gpt2", "gpt-neox", "gpt-oss", "llama4", "mixtral",
)  # fmt: skip


@pytest.mark.parametrize("name", ALWAYS_TESTED)
def test_greedy_equals_generate(name: str) -> None:
    model = build(name, attention=FAMILIES[name].attention[0])
    prompts = random_prompts(2, 19)
    decoder = make_decoder(model, perturbed(model), FixedLookahead(3))
    outputs = decoder.generate(prompts, SamplingParams(temperature=0.0, max_tokens=20))
    expected = [transformers_greedy(model, prompt, 20) for prompt in prompts]
    assert [output.token_ids for output in outputs] == expected
    assert len(set(expected[0] + expected[1])) >= 4  # a constant output would show nothing
    stats = outputs[0].stats + outputs[1].stats
    assert stats.tested > stats.accepted > 8  # both ways of emitting are there


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        (name, way)
        if way == FAMILIES[name].attention[0] or name in ALWAYS_TESTED
        else pytest.param(name, way, marks=pytest.mark.slow)
        for name, way in ATTENTION
    ],
)
def test_rolled_back_tokens_leave_no_trace(name: str, attention: str) -> None:
    # Sharper than token equality: every logit, after blocks of all lengths and rejected tokens.
    model = build(name, attention=attention)
    [tokens] = random_prompts(40, seed=3)
    [rejected] = random_prompts(40, seed=4)
    with torch.no_grad():
        fresh = model(input_ids=torch.tensor([tokens])).logits[0]  # [40, V]
    cached = CachedModel(model)
    cached.reset(48)
    for begin, end in ((0, 7), (5, 12), (10, 11), (11, 20), (15, 29), (29, 30), (20, 40)):
        cached.roll_back(begin)
        cached.advance(rejected[begin:end])
        cached.roll_back(begin)
        logits = cached.advance(tokens[begin:end], keep=end - begin)
        off = (logits - fresh[begin:end]).abs().max() / fresh.std()
        assert off < 1e-4, f"tokens {begin} to {end}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "attention"), ATTENTION)
def test_greedy_equals_generate_in_every_combination(name: str, attention: str) -> None:
    model = build(name, attention=attention)
    prompts = random_prompts(1, 2, 9, 19, 40, 3, 30, 8)
    params = SamplingParams(temperature=0.0, max_tokens=64)
    expected = [transformers_greedy(model, prompt, 64) for prompt in prompts]
    assert len({token for tokens in expected for token in tokens}) >= 8  # not a constant output
    every_gamma = [FixedLookahead(gamma) for gamma in (0, 1, 3, 8)] + [RandomLookahead(2)]
    pairs: list[tuple[Any, FixedLookahead]] = [(perturbed(model), each) for each in every_gamma]
    pairs += [(model, each) for each in every_gamma[3:]]  # all accepted
    pairs += [(build(name, attention=attention, seed=1), every_gamma[2])]  # nearly all rejected
    for number, (draft, lookahead) in enumerate(pairs):
        decoder = make_decoder(model, draft, lookahead)
        for batch, outputs in (
            (1, decoder.generate(prompts, params)),
            (5, BatchDecoder(decoder, rows=5).generate(prompts, params)),
        ):
            found = [output.token_ids for output in outputs]
            where = f"{name}, {attention}, pair {number}, {lookahead!r}, batch {batch}"
            assert found == expected, where


def check_every_end(name: str, gamma: int, offsets: range) -> None:
    model = build(name, attention=FAMILIES[name].attention[0])
    [prompt] = random_prompts(11)
    plain = transformers_greedy(model, prompt, offsets.stop + gamma + 1)
    decoder = make_decoder(model, model, FixedLookahead(gamma))
    for offset in offsets:
        limited = decoder.generate([prompt], SamplingParams(temperature=0.0, max_tokens=offset + 1))
        assert limited[0].token_ids == plain[: offset + 1]
        assert limited[0].finish_reason == "length"
        end = plain[offset]
        params = SamplingParams(temperature=0.0, max_tokens=len(plain))
        model.generation_config.eos_token_id = [end, VOCABULARY - 1]
        ended = decoder.generate([prompt], params)[0]
        model.generation_config.eos_token_id = None
        assert ended.token_ids == plain[: plain.index(end) + 1]
        assert ended.finish_reason == "stop"


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mistral-sliding"])
def test_an_output_ends_at_every_offset_of_a_block(name: str) -> None:
    check_every_end(name, gamma=3, offsets=range(9))


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1, 3, 8])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_output_of_every_family_ends_at_every_offset_of_a_block(name: str, gamma: int) -> None:
    check_every_end(name, gamma, offsets=range(2 * gamma + 3))
