"""What a request asks for, on tiny transformers: penalties, bad words, limits, n, log-probabilities, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
    default_params,
    with_token_ids,
)
from toys import ForcedTokens, byte_tokenizer, noisy_copy, tiny_llama

MODEL = tiny_llama()
DRAFT = noisy_copy(MODEL, scale=0.03)


def decoder_of(gamma: int, *, model: Any = MODEL, draft: Any = DRAFT) -> SpeculativeDecoder:
    drafter = ModelDrafter(draft, width=260)
    return SpeculativeDecoder(model, byte_tokenizer(), drafter, FixedLookahead(gamma))


def generated(prompt: list[int], **settings: Any) -> list[int]:
    """What transformers' greedy `generate` adds to a prompt."""
    ids = torch.tensor([prompt])
    config = GenerationConfig(do_sample=False, pad_token_id=256, **settings)
    whole = MODEL.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return whole[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


PLAIN = {text: generated(list(text.encode()), max_new_tokens=24) for text in ("Hello", "a")}
END = PLAIN["Hello"][3]
SETTINGS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "bad_words": {"bad_words_ids": [PLAIN["Hello"][1:3], PLAIN["Hello"][5:8], [PLAIN["a"][2]]]},
    "min_new_tokens": {"eos_token_id": [END, 259], "min_new_tokens": 9},
    "min_length": {"eos_token_id": END, "min_length": 11},
    "suppress_tokens": {"suppress_tokens": PLAIN["Hello"][:3]},
    "sequence_bias": {"sequence_bias": [[[PLAIN["Hello"][0]], -30.0], [[7], 2.0]]},
    "all": {
        "repetition_penalty": 1.2, "bad_words_ids": [PLAIN["a"][:2], [END]], "eos_token_id": END,
        "min_new_tokens": 5, "suppress_tokens": [9],
    },
}  # fmt: skip


@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_b13_greedy_equals_generate_under_its_generation_config(name: str, gamma: int) -> None:
    config = GenerationConfig(max_new_tokens=24, **SETTINGS[name])
    decoder = decoder_of(gamma)
    before, MODEL.generation_config = MODEL.generation_config, config
    try:
        outputs = decoder.generate(list(PLAIN))
    finally:
        MODEL.generation_config = before
    changed = 0
    for output, (text, plain) in zip(outputs, PLAIN.items(), strict=True):
        expected = generated(output.prompt_token_ids, max_new_tokens=24, **SETTINGS[name])
        assert output.token_ids == expected, text
        changed += expected != plain
    assert changed  # else the setting did nothing here


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_beams", 4), ("no_repeat_ngram_size", 3), ("typical_p", 0.9), ("max_time", 2.0),
        ("begin_suppress_tokens", [5]), ("forced_eos_token_id", 7), ("guidance_scale", 1.5),
        ("exponential_decay_length_penalty", (5, 1.1)), ("sequence_bias", [[[1, 2], 3.0]]),
    ],
)  # fmt: skip
def test_b13_what_a_generation_config_asks_in_vain_is_an_error(field: str, value: Any) -> None:
    config = GenerationConfig(do_sample=True)
    setattr(config, field, value)
    with pytest.raises(ValueError, match=f"generation_config: {field}"):
        default_params(config)


def test_a_generation_config_that_asks_for_nothing_gives_the_default_params() -> None:
    assert default_params(GenerationConfig()) == SamplingParams(temperature=0.0)
    defaults = GenerationConfig(**GenerationConfig._get_default_generation_params())
    assert default_params(defaults, 3) == SamplingParams(temperature=0.0, max_tokens=17)
    config = GenerationConfig(
        do_sample=True, temperature=0.6, top_k=20, top_p=0.95, min_p=0.05, max_length=30,
        min_length=12, stop_strings="\n\n", num_return_sequences=2, typical_p=1.0, use_cache=False,
    )  # fmt: skip
    assert default_params(config, prompt_length=10) == SamplingParams(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.05, max_tokens=20, min_tokens=2,
        stop=("\n\n",), n=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="max_length must be above the prompt's 30 tokens"):
        default_params(config, prompt_length=30)


def test_bad_words_are_forbidden_with_and_without_a_space_and_half_of_one_is_not() -> None:
    tokenizer = byte_tokenizer()
    params = SamplingParams(bad_words=("cat", (7, 8), " dog"))
    assert with_token_ids(params, tokenizer).bad_words == (
        tuple(tokenizer.encode("cat")),
        tuple(tokenizer.encode(" cat")),
        (7, 8),
        tuple(tokenizer.encode("dog")),
        tuple(tokenizer.encode(" dog")),
    )
    model = ForcedTokens(MODEL, tokenizer.encode("a cat can"))
    for gamma in (0, 1, 5):
        decoder = decoder_of(gamma, model=model, draft=model)
        asked = SamplingParams(temperature=0.0, max_tokens=9, bad_words=("cat",))
        text = decoder.generate([[1]], asked)[0].text
        assert text[:4] == "a ca"
        assert text[4] != "t"
        assert text[5:] == " can"
    with pytest.raises(ValueError, match="bad_words: strings need a tokenizer"):
        SpeculativeDecoder(MODEL).generate([[1]], asked)


@pytest.mark.parametrize("gamma", [0, 3])
def test_min_tokens_lets_stop_strings_and_end_tokens_pass(gamma: int) -> None:
    script = byte_tokenizer().encode("ab.cd.ef.gh")
    model = ForcedTokens(MODEL, script)
    decoder = decoder_of(gamma, model=model, draft=model)
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 11}

    def text(**more: Any) -> str:
        return decoder.generate([[1]], SamplingParams(**settings, **more))[0].text

    assert text(stop=(".",)) == "ab"
    assert text(stop=(".",), min_tokens=3) == "ab"  # complete with the third token
    assert text(stop=(".",), min_tokens=4) == "ab.cd"
    assert text(stop=("cd.",), min_tokens=6) == "ab."  # begun before, completed after
    assert text(stop=("cd.",), min_tokens=6, include_stop_str_in_output=True) == "ab.cd."
    dot = script[2]
    assert text(stop_token_ids=(dot,)) == "ab"
    assert text(stop_token_ids=(dot,), include_stop_str_in_output=True) == "ab."
    assert text(stop_token_ids=(dot,), min_tokens=4) != "ab"  # forbidden, so another token came
    assert "." not in text(stop_token_ids=(dot,), min_tokens=4, include_stop_str_in_output=True)[:3]


def fresh_logprobs(prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Log-softmax [len(tokens), V] of the target in one forward without a cache."""
    with torch.no_grad():
        logits = MODEL(torch.tensor([prompt + tokens])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_b35_logprobs_are_those_of_a_fresh_forward(temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature, top_k=30, repetition_penalty=1.3, logprobs=4, max_tokens=20, seed=2
    )
    output = decoder_of(4).generate("Hello", params)[0]
    rows = fresh_logprobs(output.prompt_token_ids, output.token_ids)
    assert output.logprobs is not None
    assert [each.token_id for each in output.logprobs] == output.token_ids
    for each, row in zip(output.logprobs, rows, strict=True):
        assert each.logprob == pytest.approx(float(row[each.token_id]), abs=1e-4)
        assert each.rank == int((row > row[each.token_id]).sum()) + 1
        assert list(each.top) == row.topk(4).indices.tolist()
        assert list(each.top.values()) == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)
    assert any(each.rank > 1 for each in output.logprobs)
    assert decoder_of(4).generate("Hello", SamplingParams(max_tokens=2))[0].logprobs is None


@pytest.mark.parametrize("stop", ["c", "cat s", "本"])
def test_b04_ids_logprobs_and_text_agree_after_a_stop(stop: str) -> None:
    text = "the cat sat on 日本 mats"
    script = byte_tokenizer().encode(text)
    model = ForcedTokens(MODEL, script)
    decoder = decoder_of(6, model=model, draft=model)
    params = SamplingParams(temperature=0.0, max_tokens=30, stop=(stop,), logprobs=1)
    stream = decoder.stream([1], params)
    pieces = []
    for piece in stream:
        pieces.append(piece)
        assert len(stream.output.token_ids) == len(stream.output.logprobs or [])
    for output in (stream.output, decoder.generate([[1]], params)[0]):
        assert output.logprobs is not None
        assert [each.token_id for each in output.logprobs] == output.token_ids
        assert output.text == "".join(pieces) == text[: text.index(stop)]
        assert byte_tokenizer().decode(output.token_ids) == output.text + stop


def test_b90_counts_end_where_the_output_ends() -> None:
    model = ForcedTokens(MODEL, [3, 4, 5, 6, 7, 8, 9])
    decoder = decoder_of(6, model=model, draft=model)
    output = decoder.generate(
        [[1]], SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=(4,))
    )[0]
    assert output.token_ids == [3, 4]
    assert output.stats.emitted - output.stats.discarded == 2
    assert output.stats.discarded == 5


def test_n_outputs_of_a_prompt_share_it_and_differ() -> None:
    decoder = decoder_of(3)
    params = SamplingParams(n=3, max_tokens=12, seed=5)
    one, two = decoder.generate(["Hello", "Hi"], params)
    assert one.outputs[0] is one
    assert len(one.outputs) == len(two.outputs) == 3
    texts = {tuple(output.token_ids) for output in [*one.outputs, *two.outputs]}
    assert len(texts) == 6
    assert all(output.prompt_token_ids == one.prompt_token_ids for output in one.outputs)
    # the first is what n = 1 gives, and no output depends on the prompts beside it
    single = SamplingParams(max_tokens=12, seed=5)
    assert decoder.generate("Hello", single)[0].token_ids == one.token_ids
    alone = decoder.generate("Hello", params)[0]
    assert [o.token_ids for o in alone.outputs] == [o.token_ids for o in one.outputs]
    assert decoder.generate("Hello", single)[0].outputs[0].others == []
    with pytest.raises(ValueError, match="n must be 1 in a stream, got 3"):
        decoder.stream("Hello", params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logit_bias": {260: 1.0}}, r"logit_bias must have token ids in \[0, 260\), got 260"),
        ({"bad_words": ((3, 300),)}, r"bad_words must have token ids in \[0, 260\), got 300"),
        ({"stop_token_ids": (999,)}, r"stop_token_ids must have token ids in \[0, 260\), got 999"),
        ({"logprobs": 261}, r"logprobs must be an integer in \[0, 260\], got 261"),
    ],
)
def test_ids_outside_the_vocabulary_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder_of(2).generate("Hello", SamplingParams(**settings))


def test_a_bad_prompt_is_an_error_before_any_work() -> None:
    decoder = decoder_of(2)
    decoder.lookahead = FailsOnce(2)
    for bad, message in (
        ([1, 260], r"prompts\[1\]: prompt must have token ids in \[0, 260\), got 260"),
        ([], r"prompts\[1\]: prompt must have at least one token"),
        (3.5, r"prompts\[1\]: prompt must be a text or a list of token ids, got 3.5"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder.generate(["Hello", bad], SamplingParams(max_tokens=3))  # type: ignore[arg-type]
    assert decoder.lookahead.requests == 0


class FailsOnce(FixedLookahead):
    """Breaks in the second request, in its second round."""

    requests = rounds = 0

    def begin_request(self, params: SamplingParams) -> None:
        self.requests, self.rounds = self.requests + 1, 0

    def begin_round(self, start: RoundStart) -> int:
        self.rounds += 1
        if (self.requests, self.rounds) == (2, 2):
            raise OverflowError("lookahead broke")
        return super().begin_round(start)


def test_an_error_in_one_prompt_leaves_the_others_alone() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10)
    expected = decoder_of(2).generate(["Hello", "a", "日本"], params)
    decoder = decoder_of(2).with_lookahead(FailsOnce(2))
    with pytest.warns(RuntimeWarning, match=r"prompts\[1\] failed: OverflowError"):
        outputs = decoder.generate(["Hello", "a", "日本"], params)
    assert [output.finish_reason for output in outputs] == ["length", "error", "length"]
    assert isinstance(outputs[1].error, OverflowError)
    for place in (0, 2):
        assert outputs[place].token_ids == expected[place].token_ids
        assert outputs[place].error is None
    partial = outputs[1].token_ids  # of its first round
    assert partial == expected[1].token_ids[: len(partial)] != []
    decoder = decoder_of(2).with_lookahead(FailsOnce(2))
    decoder.lookahead.begin_request(params)  # so that the only request is the second
    with pytest.raises(OverflowError, match="lookahead broke"):
        decoder.generate("Hello", params)
