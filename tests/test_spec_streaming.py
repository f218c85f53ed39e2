"""Streams: pieces as soon as they are sure, closing, event loops, and one request at a time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    RoundOutcome,
    SamplingParams,
    SpeculativeDecoder,
)
from toys import ForcedTokens, byte_tokenizer, noisy_copy, tiny_llama

MODEL = tiny_llama()
DRAFT = noisy_copy(MODEL, scale=0.03)


def greedy(max_tokens: int, **settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **settings)


def decoder_of(gamma: int, *, model: Any = MODEL, draft: Any = DRAFT) -> SpeculativeDecoder:
    drafter = ModelDrafter(draft, width=260)
    return SpeculativeDecoder(model, byte_tokenizer(), drafter, FixedLookahead(gamma))


def scripted(text: str, gamma: int) -> SpeculativeDecoder:
    model = ForcedTokens(MODEL, byte_tokenizer().encode(text))
    return decoder_of(gamma, model=model, draft=model)


@pytest.mark.parametrize("gamma", [0, 1, 6])
@pytest.mark.parametrize(
    "text", ["abcdefghij" * 6, "https://example.org/a/very/long/path?with=query"]
)
def test_b87_text_without_spaces_comes_with_its_round(text: str, gamma: int) -> None:
    decoder = scripted(text, gamma)
    stream = decoder.stream([1], greedy(len(text)))
    given = ""
    for piece in stream:
        given += piece
        assert given == text[: len(given)]
        assert len(stream.output.token_ids) == len(given)  # one byte a token: nothing is held back
    assert given == text == stream.output.text


@pytest.mark.parametrize("gamma", range(7))
def test_b86_a_stop_string_or_the_limit_within_a_character(gamma: int) -> None:
    text = "カゴ髙👩‍👩‍👧x"
    for stop in ("ゴ", "👩‍👧", "\u200d"):
        decoder = scripted(text, gamma)
        params = greedy(len(text.encode()), stop=(stop,))
        stream = decoder.stream([1], params)
        assert "".join(stream) == text[: text.index(stop)] == stream.output.text
    for limit in (4, 5, 7):
        stream = scripted(text, gamma).stream([1], greedy(limit))
        pieces = list(stream)
        assert "".join(pieces) == byte_tokenizer().decode(stream.output.token_ids)
        assert "\ufffd" not in "".join(pieces[:-1])


def test_a_closed_stream_stops_decoding_and_frees_the_decoder() -> None:
    decoder = decoder_of(3)
    expected = decoder.generate("Hello", greedy(20))[0]
    stream = decoder.stream("Hello", greedy(200))
    next(stream)
    with pytest.raises(RuntimeError, match="this thread still reads a stream"):
        decoder.generate("Hello", greedy(20))
    stream.close()
    assert list(stream) == []
    assert stream.output.finish_reason == "abort"
    assert 0 < len(stream.output.token_ids) <= 4
    assert stream.output.token_ids == expected.token_ids[: len(stream.output.token_ids)]
    assert decoder.generate("Hello", greedy(20))[0].token_ids == expected.token_ids
    for _ in decoder.stream("Hello", greedy(200)):
        break  # dropped without a close
    gc.collect()
    assert decoder.generate("Hello", greedy(20))[0].token_ids == expected.token_ids
    unread = decoder.stream("Hello", greedy(20))
    unread.close()
    assert unread.output.finish_reason == "abort"
    with pytest.raises(ValueError, match="prompt must have at least one token"):
        decoder.stream([])  # at once, not at the first piece


class Breaks(FixedLookahead):
    def end_round(self, outcome: RoundOutcome) -> None:
        raise ZeroDivisionError


def test_an_error_in_a_stream_is_raised_and_frees_the_decoder() -> None:
    decoder = decoder_of(2)
    stream = decoder.with_lookahead(Breaks(2)).stream("Hello", greedy(9))
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert stream.output.finish_reason == "error"
    assert isinstance(stream.output.error, ZeroDivisionError)
    assert len(decoder.generate("Hello", greedy(9))[0].token_ids) == 9


def test_async_streams_take_turns_and_give_what_generate_gives() -> None:
    decoder = decoder_of(3)
    expected = [each.text for each in decoder.generate(["Hello", "a", "日本"], greedy(30))]

    async def read(prompt: str) -> str:
        stream = decoder.astream(prompt, greedy(30))
        text = "".join([piece async for piece in stream])
        assert stream.output.text == text
        return text

    async def main() -> list[str]:
        return await asyncio.gather(*(read(prompt) for prompt in ("Hello", "a", "日本")))

    assert asyncio.run(main()) == expected


def test_cancelling_an_async_stream_stops_it_and_lets_the_next_one_in() -> None:
    decoder = decoder_of(2)
    expected = decoder.generate("a", greedy(10))[0].text

    async def read(stream: Any) -> str:
        return "".join([piece async for piece in stream])

    async def main() -> None:
        first = decoder.astream("Hello", greedy(400))
        await anext(first)
        with pytest.raises(RuntimeError, match="this thread still reads a stream"):
            decoder.generate("a", greedy(3))  # it would wait for ever
        waiting = decoder.astream("a", greedy(10))  # waits for its turn
        never = asyncio.create_task(read(decoder.astream("a", greedy(10))))
        task = asyncio.create_task(read(waiting))
        await asyncio.sleep(0.05)
        assert not task.done()
        never.cancel()  # while it waits
        with pytest.raises(asyncio.CancelledError):
            await never
        await first.aclose()
        await first.aclose()  # twice does no harm
        assert first.output.finish_reason == "abort"
        assert await task == expected
        running = decoder.astream("Hello", greedy(400))
        reading = asyncio.create_task(read(running))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await read(decoder.astream("a", greedy(10))) == expected
        assert running.output.finish_reason == "abort"
        assert len(running.output.token_ids) < 400

    asyncio.run(main())


def test_b89_threads_share_a_decoder_one_request_at_a_time() -> None:
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.enable_truncation(400)  # state that a call would change
    decoder = SpeculativeDecoder(
        MODEL, tokenizer, ModelDrafter(DRAFT, width=260), FixedLookahead(2)
    )
    asked = [(f"{'x' * (n % 7)}{n}", greedy(2 + n % 5)) for n in range(20)]
    expected = [decoder.generate(prompt, params)[0].text for prompt, params in asked]
    start = threading.Barrier(8)

    def work(thread: int) -> list[str]:
        start.wait()
        return [
            "".join(decoder.stream(prompt, params))
            if (n + thread) % 3 == 0
            else decoder.generate(prompt, params)[0].text
            for n, (prompt, params) in enumerate(asked)
        ]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [expected] * 8


def test_pieces_of_special_tokens_and_of_bytes_that_are_no_text_do_not_pile_up() -> None:
    from foredraft.spec.stopping import Detokenizer

    tokenizer = byte_tokenizer()
    decoded: list[int] = []

    class Counting:
        def decode(self, tokens: list[int], **settings: bool) -> str:
            decoded.append(len(tokens))
            text: str = tokenizer.decode(tokens, **settings)
            return text

    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (400,), generator=generator).tolist()
    lone = tokenizer.encode("日")[1]  # a byte from the middle of a character
    runs = [
        [256] * 300,
        noise,
        [lone] * 300,
        tokenizer.encode("日本語 text" * 30),
        [258, lone] * 99,
    ]
    for run in [*runs, list(itertools.chain(*runs))]:
        detokenizer = Detokenizer(Counting())
        pieces = [detokenizer.push(token) for token in run]
        pieces.append(detokenizer.finish())
        assert "".join(pieces) == tokenizer.decode(run, skip_special_tokens=True)
    assert max(decoded) < 60
