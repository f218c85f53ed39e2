"""The decoder on tiny transformers: greedy equality, stops and limits at every place of a block."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
)
from toys import (
    ForcedTokens,
    byte_tokenizer,
    greedy,
    make_decoder,
    tiny_gpt2,
    tiny_llama,
)

PROMPTS = ["a", "Hello there", "日本語", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"]


class RandomLookahead(FixedLookahead):
    def __init__(self, seed: int) -> None:
        super().__init__(6)
        self.random = random.Random(seed)

    def begin_round(self, start: RoundStart) -> int:
        return self.random.randint(0, min(6, start.gamma_limit))

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return self.random.random() < 0.8


LOOKAHEADS = {
    "0": FixedLookahead(0),
    "1": FixedLookahead(1),
    "3": FixedLookahead(3),
    "8": FixedLookahead(8),
    "random": RandomLookahead(3),
}


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("lookahead", LOOKAHEADS.values(), ids=LOOKAHEADS)
def test_greedy_equals_transformers_generate(make_model: Any, lookahead: Any) -> None:
    model = make_model()
    decoder = make_decoder(model, lookahead)
    outputs = decoder.generate(PROMPTS, greedy(max_tokens=40))
    for output in outputs:
        prompt = torch.tensor([output.prompt_token_ids])
        expected = model.generate(prompt, max_new_tokens=40, do_sample=False)[0]
        assert output.token_ids == expected[prompt.shape[1] :].tolist()
        assert output.finish_reason == "length"
    if lookahead.gamma_max >= 3:  # else the test would not have tested acceptance and rejection
        stats = sum((output.stats for output in outputs[1:]), outputs[0].stats)
        assert 0.2 < (stats.acceptance_prob or 0.0) < 0.98


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    # Also at temperatures other than 1, where transformers applies the draft's temperature twice.
    model = tiny_llama()
    for temperature in (0.0, 0.5, 1.5):
        decoder = make_decoder(model, FixedLookahead(4), draft=model)
        params = SamplingParams(temperature=temperature, top_k=20, max_tokens=40, seed=1)
        stats = decoder.generate("Hello", params)[0].stats
        assert stats.accepted == stats.drafted > 0
        assert (stats.block_efficiency or 0.0) > 4.5


@pytest.mark.parametrize("gamma", [1, 3, 8])
@pytest.mark.parametrize("offset", range(1, 12))
def test_b01_eos_ends_the_output_at_every_offset_of_a_block(gamma: int, offset: int) -> None:
    model = tiny_llama()
    plain = make_decoder(model, FixedLookahead(0)).generate("Hello", greedy(max_tokens=20))[0]
    end = plain.token_ids[offset]
    expected = plain.token_ids[: plain.token_ids.index(end) + 1]
    model.generation_config.eos_token_id = [end, 259]
    decoder = make_decoder(model, FixedLookahead(gamma), draft=model)
    output = decoder.generate("Hello", greedy(max_tokens=20))[0]
    assert output.token_ids == expected
    assert output.finish_reason == "stop"
    stream = decoder.stream("Hello", greedy(max_tokens=20))
    assert "".join(stream) == output.text
    assert stream.output.token_ids == expected
    ignoring = decoder.generate("Hello", greedy(max_tokens=20, ignore_eos=True))[0]
    assert ignoring.token_ids == plain.token_ids


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_b09_max_tokens_at_every_offset_of_a_block(max_tokens: int) -> None:
    model = tiny_llama()
    plain = make_decoder(model, FixedLookahead(0)).generate("Hello", greedy(max_tokens=12))[0]
    decoder = make_decoder(model, FixedLookahead(4), draft=model)
    output = decoder.generate("Hello", greedy(max_tokens=max_tokens))[0]
    assert output.token_ids == plain.token_ids[:max_tokens]
    assert output.finish_reason == "length"
    assert output.stats.emitted == max_tokens  # nothing was drafted beyond the limit
    assert output.stats.draft_steps == output.stats.drafted < max_tokens


def test_b02_stop_strings_over_token_and_block_edges() -> None:
    model = tiny_llama()
    tokenizer = byte_tokenizer()
    text = "the cat sat on 日本 mats"
    script = tokenizer.encode(text)
    forced = ForcedTokens(model, script)
    for stop in ("c", "cat", "t sat o", "本", "日本 m", "s"):
        for gamma in (0, 1, 2, 5, 12):
            decoder = make_decoder(forced, FixedLookahead(gamma), draft=forced)
            params = greedy(max_tokens=len(script), stop=(stop,))
            output = decoder.generate([[1]], params)[0]
            assert output.text == text[: text.index(stop)]
            assert output.finish_reason == "stop"
            completing = len((text[: text.index(stop)] + stop).encode())  # one token a byte
            assert output.token_ids == script[:completing]
            assert "".join(decoder.stream([1], params)) == output.text
            if gamma == 12 and completing > 10:  # full blocks, or the test would show nothing
                assert output.stats.accepted / output.stats.rounds > 4


@pytest.mark.parametrize("gamma", range(7))
def test_b86_streamed_characters_are_never_cut(gamma: int) -> None:
    text = "ゴ髙👩‍👩‍👧 é wordswithoutanyspaces http://a.b/c"
    script = byte_tokenizer().encode(text)
    model = ForcedTokens(tiny_llama(), script)
    decoder = make_decoder(model, FixedLookahead(gamma), draft=model)
    pieces = list(decoder.stream([1], greedy(max_tokens=len(script))))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(pieces) > 20  # nothing waits for a space
    cut = decoder.generate([[1]], greedy(max_tokens=2))[0]
    assert cut.text == byte_tokenizer().decode(
        script[:2]
    )  # half a character at the very end is kept


def test_draft_context_ends_drafting_not_decoding() -> None:
    model = tiny_llama(context=128)
    draft = tiny_llama(context=32, layers=1)
    plain = make_decoder(model, FixedLookahead(0))
    for prompt in ("x" * 20, "x" * 31, "x" * 32, "x" * 60):
        decoder = make_decoder(model, FixedLookahead(4), draft=draft)
        output = decoder.generate(prompt, greedy(max_tokens=30))[0]
        assert output.token_ids == plain.generate(prompt, greedy(max_tokens=30))[0].token_ids
        if len(prompt) >= 32:
            assert output.stats.drafted == 0
            assert output.stats.acceptance_rate is None


def test_target_context_is_never_overrun() -> None:
    model = tiny_llama(context=64)
    decoder = make_decoder(model, FixedLookahead(5), draft=model)
    output = decoder.generate("y" * 58, greedy(max_tokens=50))[0]
    assert len(output.token_ids) == 6
    assert output.finish_reason == "length"
    with pytest.raises(ValueError, match=r"prompt has 64 tokens; the target's context is 64"):
        decoder.generate("y" * 64, greedy())


def test_padded_vocabularies_are_cut_to_the_tokenizer() -> None:
    target, draft = tiny_llama(vocabulary=320), tiny_llama(vocabulary=264, layers=1)
    for t, d in ((target, draft), (draft, target)):
        decoder = SpeculativeDecoder(
            t, byte_tokenizer(), ModelDrafter(d, width=260), FixedLookahead(3)
        )
        params = SamplingParams(temperature=2.0, max_tokens=60, seed=0)
        output = decoder.generate("Hello", params)[0]
        assert max(output.token_ids) < 260


def test_b33_seed_reproduces_and_leaves_the_global_generator_alone() -> None:
    decoder = make_decoder(tiny_llama(), FixedLookahead(3))

    def say(seed: int | None) -> list[int]:
        return decoder.generate("Hi", SamplingParams(max_tokens=12, seed=seed))[0].token_ids

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = say(7)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    assert say(7) == first
    assert len({tuple(say(seed)) for seed in range(10)}) >= 9
    assert say(None) != say(None)
    assert say(7) != say(7 + 2**32)  # a generator of torch's reads 32 bits


def test_b13_repetition_penalty_of_the_generation_config_is_honoured() -> None:
    model = tiny_llama()
    model.generation_config.repetition_penalty = 1.4
    decoder = make_decoder(model, FixedLookahead(4))
    params = decoder.default_params()
    assert params.greedy
    assert params.repetition_penalty == 1.4
    output = decoder.generate("Hello", greedy(max_tokens=40, repetition_penalty=1.4))[0]
    without = decoder.generate("Hello", greedy(max_tokens=40))[0]
    assert output.token_ids != without.token_ids
    model.generation_config.max_new_tokens = 40
    assert decoder.generate("Hello")[0].token_ids == output.token_ids
    prompt = torch.tensor([output.prompt_token_ids])
    expected = model.generate(prompt, max_new_tokens=40, do_sample=False)[0, prompt.shape[1] :]
    assert output.token_ids == expected.tolist()


def test_the_models_are_left_as_they_were() -> None:
    model, draft = tiny_llama(), tiny_llama(seed=1)
    before = [w.clone() for m in (model, draft) for w in m.parameters()]
    configs = [m.config.to_json_string() for m in (model, draft)]
    make_decoder(model, FixedLookahead(3), draft=draft).generate(PROMPTS, greedy(max_tokens=5))
    assert configs == [m.config.to_json_string() for m in (model, draft)]
    after = [w for m in (model, draft) for w in m.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_stats_count_only_what_was_tested() -> None:
    wrong = ForcedTokens(tiny_llama(), [3])
    right = ForcedTokens(tiny_llama(), [5])
    stats = (
        make_decoder(right, FixedLookahead(4), draft=wrong)
        .generate([[1]], greedy(max_tokens=9))[0]
        .stats
    )
    assert stats.accepted == 0
    assert stats.rounds == 9
    assert stats.drafted == sum(gamma * n for gamma, n in stats.gammas.items())
    assert stats.tested == sum(n for gamma, n in stats.gammas.items() if gamma)
    assert stats.emitted == stats.accepted + stats.rounds
