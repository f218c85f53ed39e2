"""Where the end of a sequence stood before: the last place of every n-gram, kept as tokens are added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NEVER = 0, 0, 0, 0


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier occurrence of the last tokens of a sequence: the longest, and of those the latest."""

    length: int  # tokens that are the same
    count: int  # earlier occurrences of them
    follows: int  # position of the token after it
    agreed: int = 0  # occurrences before it, one after the other, that the same token followed


class NgramIndex:
    """The n-grams of a sequence that grows, each with the place of its last occurrence.

    A token costs a look and an entry for each n, whatever the length of the sequence before it.
    """

    def __init__(self, max_ngram: int, min_ngram: int) -> None:
        """Start an empty sequence whose matches are of `min_ngram` to `max_ngram` tokens."""
        self.tokens: list[int] = []
        self._sizes = range(min_ngram, max_ngram + 1)
        # Where it ended last, and before; how many earlier ones agreed with the latter; how often it came.
        self._seen: dict[tuple[int, ...], tuple[int, int, int, int]] = {}
        self._found = 0, 0, 0, 0  # the fields of the match of the last tokens; of length 0: none

    @property
    def match(self) -> Match | None:
        """The match of the last tokens."""
        return Match(*self._found) if self._found[0] else None

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens to the sequence's end."""
        for token in tokens:
            self.tokens.append(token)
            self._index_end()

    def following(self, drafted: Sequence[int]) -> int:
        """Return what came, after the match, where the token after the sequence and `drafted` would come.

        Where that lies beyond the sequence it is one of `drafted`: what repeats is taken to go on repeating.
        """
        length, _, follows, _ = self._found
        assert length, "there is no match to follow"
        at = follows + len(drafted)
        beyond = at - len(self.tokens)
        return self.tokens[at] if beyond < 0 else drafted[beyond]

    def _index_end(self) -> None:
        """Look up every n-gram that ends with the last token, then enter it."""
        end = len(self.tokens)
        self._found = 0, 0, 0, 0
        for size in self._sizes:
            if size > end:
                break
            ngram = tuple(self.tokens[-size:])
            follows, before, agreed, count = self._seen.get(ngram, NEVER)
            if count:
                same = count > 1 and self.tokens[follows] == self.tokens[before]
                agreed = agreed + 1 if same else 0  # with what followed the latest
                self._found = size, count, follows, agreed
            self._seen[ngram] = end, follows, agreed, count + 1
