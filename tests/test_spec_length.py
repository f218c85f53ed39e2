"""A round costs the same at every length of the sequence: counted, not timed."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import pytest
import torch

from foredraft.spec import (
    CachedModel,
    FixedLookahead,
    GeneratorDraws,
    ModelDrafter,
    PromptLookupDrafter,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
    TokenLaw,
    decode_round,
)
from toys import ForcedTokens, byte_tokenizer, random_table, tiny_llama

PARAMS = {
    "plain": SamplingParams(),
    "all": SamplingParams(
        repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={1: 0.5},
        bad_words=((1, 2, 3), (2, 2)), min_tokens=3, stop_token_ids=(3,), max_tokens=9000,
    ),
}  # fmt: skip


class CountingList(list[int]):
    """Counts the tokens that are read from it."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.read += len(self)
        return super().__iter__()

    def __contains__(self, token: object) -> bool:
        self.read += len(self)
        return super().__contains__(token)

    def index(self, *place: Any) -> int:
        self.read += len(self)
        return super().index(*place)

    def __add__(self, other: Any) -> Any:
        self.read += len(self)
        return super().__add__(other)

    def __mul__(self, times: SupportsIndex) -> Any:
        raise NotImplementedError


def calls_of(work: Callable[[], object]) -> int:
    """How many functions, Python's and C's, a piece of work calls."""
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("name", PARAMS)
def test_a_round_reads_only_what_is_new(name: str) -> None:
    tables = random_table(seed=1, context=5100), random_table(seed=2, context=5100)
    work: dict[int, list[tuple[int, int]]] = {}
    for length in (100, 5000):
        target, drafter = CachedModel(tables[0], width=4), ModelDrafter(tables[1], width=4)
        tokens = CountingList(n % 4 for n in range(length))
        target.start(tokens, 5100)
        drafter.reset(5100)
        law = TokenLaw(PARAMS[name], tokens, width=4, eos_token_ids=[3], device=torch.device("cpu"))
        draws = GeneratorDraws(0)

        def run(gamma: int) -> None:
            emitted, _ = decode_round(
                tokens,  # noqa: B023
                target,  # noqa: B023
                drafter,  # noqa: B023
                FixedLookahead(gamma),
                law,  # noqa: B023
                draws,  # noqa: B023
                gamma_limit=gamma,
            )
            for token in emitted:
                tokens.append(token)  # noqa: B023

        run(2)  # the draft reads the prompt
        work[length] = []
        for _ in range(6):
            tokens.read = 0
            calls = calls_of(lambda: run(2))
            work[length].append((tokens.read, calls))
        tokens.read = 0
        run(0)
        run(0)
        run(3)  # the draft catches up on what was decoded plainly
        assert tokens.read <= 12
    assert max(read for read, _ in work[5000]) <= 8
    # The rounds differ in what was accepted, so their calls are compared as sets of a few.
    most = {length: max(calls for _, calls in rounds) for length, rounds in work.items()}
    assert most[5000] <= 1.25 * most[100]


def test_a_lookup_costs_the_same_in_1k_and_in_32k_tokens() -> None:
    work: dict[int, list[tuple[int, int]]] = {}
    for length in (1_000, 32_000):
        choice = random.Random(0)
        tokens = CountingList(choice.randrange(50) for _ in range(length))
        drafter, law = PromptLookupDrafter(max_ngram=5, min_ngram=1), law_of_width(50)
        drafter.reset(length + 100)
        run = functools.partial(
            drafter.propose, tokens, 8, FixedLookahead(8), law, GeneratorDraws(0)
        )
        run()  # the index reads the prompt
        work[length] = []
        for emitted in (1, 2, 5, 9) * 3:
            for _ in range(emitted):
                tokens.append(choice.randrange(50))
            tokens.read = 0
            calls = calls_of(run)
            drafter.roll_back(len(tokens))
            work[length].append((tokens.read, calls))
        assert len(run().tokens) == 8
    assert work[32_000] == work[1_000]
    assert max(read for read, _ in work[32_000]) == 9


def law_of_width(width: int) -> TokenLaw:
    return TokenLaw(
        SamplingParams(), [0], width=width, eos_token_ids=[], device=torch.device("cpu")
    )


class Watching(FixedLookahead):
    """Notes, at the start of each round, how many tokens were read and decoded since the last."""

    def __init__(self, gamma: int, count: Callable[[], int]) -> None:
        super().__init__(gamma)
        self.counts: list[int] = []
        self._count = count

    def begin_round(self, start: RoundStart) -> int:
        self.counts.append(self._count())
        return super().begin_round(start)


def test_a_whole_request_does_the_same_work_at_its_end_as_at_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[CountingList] = []

    class Recorded(CountingList):
        def __init__(self, *content: Any) -> None:
            super().__init__(*content)
            made.append(self)

    monkeypatch.setattr("foredraft.spec.decoder.list", Recorded, raising=False)
    text = "the cat sat on 日本 mats. "
    model = ForcedTokens(tiny_llama(context=8192), byte_tokenizer().encode(text))
    tokenizer, decoded = byte_tokenizer(), []
    decode = tokenizer.decode

    def counted(tokens: list[int], **settings: bool) -> str:
        decoded.append(len(tokens))
        return decode(tokens, **settings)  # type: ignore[no-any-return]

    tokenizer.decode = counted
    policy = Watching(4, lambda: sum(each.read for each in made) + sum(decoded))
    decoder = SpeculativeDecoder(model, tokenizer, ModelDrafter(model, width=260), policy)
    params = SamplingParams(
        temperature=0.0, max_tokens=2000, stop=("never", "mats!"), presence_penalty=0.1, logprobs=1
    )
    output = decoder.generate([[5] * 50], params)[0]
    assert len(output.token_ids) == 2000
    assert any(each.read for each in made)
    work = [after - before for before, after in zip(policy.counts, policy.counts[1:], strict=False)]
    assert len(work) > 390
    assert max(work[-150:]) <= max(work[5:155])
