"""Arms take turns after every few tokens, on caches of their own."""

from __future__ import annotations

import random
from typing import Any

import pytest

from foredraft.cli.comparing import read_by_turns
from foredraft.spec import (
    Drafter,
    FixedLookahead,
    ModelDrafter,
    PromptLookupDrafter,
    SamplingParams,
    SelfDrafter,
    SpeculativeDecoder,
)
from toys import ForcedTokens, byte_tokenizer, noisy_copy, tiny_llama

MODEL = tiny_llama()
PROMPT = "one two one two one"
GAMMAS = (0, 1, 5)


DRAFTERS: dict[str, Drafter] = {
    "model": ModelDrafter(noisy_copy(MODEL, scale=0.03), width=260, temperature=0.8),
    "lookup": PromptLookupDrafter(max_ngram=3, min_ngram=1),
    "self": SelfDrafter(MODEL, 1, width=260),
}


def decoder_of(drafter: Drafter, model: Any = MODEL) -> SpeculativeDecoder:
    return SpeculativeDecoder(model, byte_tokenizer(), drafter, FixedLookahead(0))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_twins_read_by_turns_say_what_each_says_alone(name: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=24, seed=3)
    decoder = decoder_of(DRAFTERS[name])
    alone = [
        decoder.with_lookahead(FixedLookahead(gamma)).generate(PROMPT, params)[0]
        for gamma in GAMMAS
    ]
    streams = [decoder.twin(FixedLookahead(gamma)).stream(PROMPT, params) for gamma in GAMMAS]
    read_by_turns(streams, random.Random(0))
    for stream, output in zip(streams, alone, strict=True):
        assert stream.output.token_ids == output.token_ids
        assert stream.output.finish_reason == output.finish_reason == "length"
        assert stream.output.stats.accepted == output.stats.accepted


def test_no_arm_is_ahead_of_another_by_more_than_a_round() -> None:
    text = "abcdefghij" * 6
    model = ForcedTokens(MODEL, byte_tokenizer().encode(text))
    decoder = decoder_of(ModelDrafter(model, width=260), model)
    params = SamplingParams(temperature=0.0, max_tokens=len(text))
    seen: list[list[int]] = []

    class Watched:
        def __init__(self, gamma: int) -> None:
            self.stream = decoder.twin(FixedLookahead(gamma)).stream([1], params)
            self.output = self.stream.output

        def __next__(self) -> Any:
            piece = next(self.stream)
            seen.append([len(each.output.token_ids) for each in streams])
            return piece

    streams = [Watched(gamma) for gamma in GAMMAS]
    read_by_turns(streams, random.Random(0))  # type: ignore[arg-type]
    assert len(seen) >= 60 + 30 + 10
    assert all(max(lengths) - min(lengths) <= max(GAMMAS) + 1 for lengths in seen)
