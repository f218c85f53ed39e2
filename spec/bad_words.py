"""Words that must never be completed: which tokens they forbid next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .params import BadWord, SamplingParams


def with_token_ids(params: SamplingParams, tokenizer: Any) -> SamplingParams:
    """Return the params with each string of `bad_words` as its token ids.

    A string becomes its tokens at the start of a text and those after a space, where they differ.

    Raises:
        ValueError: if there are strings and no tokenizer.
    """
    if not any(isinstance(word, str) for word in params.bad_words):
        return params
    if tokenizer is None:
        raise ValueError("bad_words: strings need a tokenizer, and the decoder has none")
    found: dict[BadWord, None] = {}  # a set in order
    for word in params.bad_words:
        if not isinstance(word, str):
            found[word] = None
            continue
        for text in (word.strip(), " " + word.strip()):
            tokens = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
            if tokens:
                found[tokens] = None
    return replace(params, bad_words=tuple(found))


class BadWords:
    """Follows one sequence; costs the words' lengths, never the sequence's."""

    def __init__(self, words: Sequence[Sequence[int]], prompt: Sequence[int]) -> None:
        """Take words of two tokens or more; a word of one is forbidden always, by a bias."""
        self._endings: dict[tuple[int, ...], set[int]] = {}  # all but the last token -> last tokens
        for word in words:
            self._endings.setdefault(tuple(word[:-1]), set()).add(word[-1])
        self._lengths = sorted({len(beginning) for beginning in self._endings})
        self._longest = max(self._lengths)
        self._recent = list(prompt[-self._longest :])

    def after(self, drafted: Sequence[int]) -> set[int]:
        """Return the tokens that would complete a word after what was committed and `drafted`."""
        recent = tuple([*self._recent, *drafted[-self._longest :]])
        found: set[int] = set()
        for length in self._lengths:
            if length <= len(recent):
                found |= self._endings.get(recent[len(recent) - length :], set())
        return found

    def commit(self, tokens: Sequence[int]) -> None:
        """Append to the sequence."""
        self._recent = [*self._recent, *tokens][-self._longest :]
