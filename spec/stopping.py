"""When an output ends: end tokens, stop strings, limits, at any place of an accepted block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .params import SamplingParams


def eos_token_ids(model: Any) -> list[int]:
    """Return the ids that end a model's output, by its generation config: none, one or several."""
    ends = model.generation_config.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


class Detokenizer:
    """Turns tokens into text one by one; never gives out half a character.

    Only the last few tokens are decoded again, so a token costs the same at every length.
    """

    PENDING = 16  # tokens without text of their own, above which a place to cut is looked for

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []  # those that the next piece may depend on
        self._given = 0  # of them, tokens whose text was given out

    def push(self, token: int) -> str:
        """Return the text that became certain with this token."""
        self._tokens.append(token)
        before = self._decode(self._tokens[: self._given])
        now = self._decode(self._tokens)
        if len(now) > len(before) and not now.endswith("\ufffd"):
            return self._give(now[len(before) :], len(self._tokens))
        if len(self._tokens) - self._given > self.PENDING:
            return self._give_some(before, now)
        return ""  # an unfinished character: wait for its other bytes

    def finish(self) -> str:
        """Return what was held back: an output may really end in half a character."""
        before = self._decode(self._tokens[: self._given])
        return self._give(self._decode(self._tokens)[len(before) :], len(self._tokens))

    def _give(self, piece: str, count: int) -> str:
        """Give out the text of the first `count` tokens; those before this piece are needed no more."""
        del self._tokens[: self._given]
        self._given = count - self._given
        return piece

    def _give_some(self, before: str, now: str) -> str:
        """Give out the start of a long run of special tokens, or of bytes that are no text.

        It is cut where the two sides decode to the whole, so not within a character.
        """
        if now == before:  # tokens without text: the next piece does not depend on them
            del self._tokens[self._given :]
            return ""
        for count in range(len(self._tokens) - 4, self._given, -1):  # a character has up to 4 bytes
            start, end = self._decode(self._tokens[:count]), self._decode(self._tokens[count:])
            if start + end == now:
                return self._give(start[len(before) :], count)
        return ""

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


class StopRule:
    """Follows one output token by token and says when it ends and what its text is.

    A token costs the same at every length of the output.
    """

    def __init__(
        self, params: SamplingParams, eos_token_ids: Sequence[int], tokenizer: Any, max_tokens: int
    ) -> None:
        """Make the rule of one request.

        Args:
            max_tokens: what the request asks for, or the room that the context leaves, if less.

        Raises:
            ValueError: if stop strings are asked of a decoder without a tokenizer.
        """
        check_stops(params, tokenizer)
        self._ends = set(params.stop_token_ids) | set(() if params.ignore_eos else eos_token_ids)
        self._stops = params.stop
        self._with_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._max_tokens = max_tokens
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        self._pending = ""  # text that a stop string could still begin in
        self._pieces: list[str] = []
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None

    @property
    def text(self) -> str:
        """What was given out so far."""
        return "".join(self._pieces)

    def push(self, token: int) -> str:
        """Take the next token; return the text that is now certain. Sets `finish_reason` at the end."""
        assert self.finish_reason is None, "the output has ended"
        self.token_ids.append(token)
        ended = token in self._ends
        full = len(self.token_ids) == self._max_tokens
        if self._detokenizer is not None:
            if not ended or self._with_stop:  # else an end token has no text, special or not
                self._pending += self._detokenizer.push(token)
            if ended or full:
                self._pending += self._detokenizer.finish()
        stop_at = self._find_stop()
        if stop_at is not None:
            self._pending = self._pending[:stop_at]
        if ended or stop_at is not None:
            self.finish_reason = "stop"
        elif full:
            self.finish_reason = "length"
        return self._give(len(self._pending) - (0 if self.finish_reason else self._held()))

    def _give(self, count: int) -> str:
        piece, self._pending = self._pending[:count], self._pending[count:]
        self._pieces.append(piece)
        return piece

    def _find_stop(self) -> int | None:
        """Return where the text ends: before the first stop string in what is pending, or after it."""
        if len(self.token_ids) < self._min_tokens:
            return None
        places = [
            (at, at + len(stop)) for stop in self._stops if (at := self._pending.find(stop)) >= 0
        ]
        return min(places)[self._with_stop] if places else None

    def _held(self) -> int:
        """Return the length of the longest end of the text that a stop string begins with."""
        return max(
            (
                size
                for stop in self._stops
                for size in range(1, min(len(stop) - 1, len(self._pending)) + 1)
                if self._pending.endswith(stop[:size])
            ),
            default=0,
        )


def check_stops(params: SamplingParams, tokenizer: Any) -> None:
    """Raise where stop strings cannot be looked for.

    Raises:
        ValueError: if there are stop strings and no tokenizer.
    """
    if params.stop and tokenizer is None:
        raise ValueError("stop: stop strings need a tokenizer, and the decoder has none")
