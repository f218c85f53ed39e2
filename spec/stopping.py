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
    """Turns tokens into text one by one; never gives out half a character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._window = 0  # first token that the next piece's spacing may depend on
        self._given = 0  # tokens whose text was given out

    def push(self, token: int) -> str:
        """Return the text that became certain with this token."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._window : self._given])
        now = self._decode(self._tokens[self._window :])
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return ""  # an unfinished character: wait for its other bytes
        self._window, self._given = self._given, len(self._tokens)
        return now[len(before) :]

    def finish(self) -> str:
        """Return what was held back: an output may really end in half a character."""
        before = self._decode(self._tokens[self._window : self._given])
        return self._decode(self._tokens[self._window :])[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


class StopRule:
    """Follows one output token by token and says when it ends and what its text is."""

    def __init__(
        self, params: SamplingParams, eos_token_ids: Sequence[int], tokenizer: Any, max_tokens: int
    ) -> None:
        """Make the rule of one request.

        Args:
            max_tokens: what the request asks for, or the room that the context leaves, if less.

        Raises:
            ValueError: if stop strings are asked of a decoder without a tokenizer.
        """
        if params.stop and tokenizer is None:
            raise ValueError("stop: stop strings need a tokenizer, and the decoder has none")
        self._ends = set(params.stop_token_ids) | set(() if params.ignore_eos else eos_token_ids)
        self._stops = params.stop
        self._max_tokens = max_tokens
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        self._pending = ""  # text that a stop string could still begin in
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None

    def push(self, token: int) -> str:
        """Take the next token; return the text that is now certain. Sets `finish_reason` at the end."""
        assert self.finish_reason is None, "the output has ended"
        self.token_ids.append(token)
        ended = token in self._ends
        full = len(self.token_ids) == self._max_tokens
        if self._detokenizer is not None:
            if not ended:  # an end token has no text, also where it is no special token
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
        self.text += piece
        return piece

    def _find_stop(self) -> int | None:
        places = [at for stop in self._stops if (at := self._pending.find(stop)) >= 0]
        return min(places, default=None)

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
