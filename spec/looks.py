"""What a lookup knows before a round: what it would follow, and whether what it followed last was right.

A look costs no forward and promises nothing: whether a match is worth following is learned from looks alone,
in rounds that followed one and in rounds that did not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .ngrams import Match, NgramIndex

RUN_MAX = 64  # tokens before a match that are compared


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of the candidates before any is drafted, from committed tokens only."""

    match: Match | None  # None: there is nothing to follow
    run: int = 0  # tokens before it that are the same, `match.length` or more, at most RUN_MAX
    came: tuple[bool, ...] = ()
    """Of the look before: was its first candidate what came, its second …; up to the first that was not,
    or as far as tokens have come since. An emitted token is the candidate with the probability that the
    target gives it, drafted or not, so this is what acceptance is, of every look."""


Looking = Callable[[], Look]
"""Takes a look when called, once a round."""


class Looker:
    """Takes looks at a sequence that an index has read."""

    def __init__(self, index: NgramIndex) -> None:
        self._index = index
        self._last: tuple[int, int] | None = None  # length at the last look, position it followed

    def look(self) -> Look:
        """Return what the end of the index's tokens tells."""
        came, match = self._came(), self._index.match
        self._last = None if match is None else (len(self._index.tokens), match.follows)
        return Look(match, 0 if match is None else self._run(match), came)

    def _came(self) -> tuple[bool, ...]:
        if self._last is None:
            return ()
        tokens, (length, follows) = self._index.tokens, self._last
        hits = []
        for place in range(len(tokens) - length):
            # A candidate beyond the tokens of then is a candidate before it, which came if this one is asked.
            hits.append(tokens[follows + place] == tokens[length + place])
            if not hits[-1]:
                break
        return tuple(hits)

    def _run(self, match: Match) -> int:
        tokens, run, end = self._index.tokens, match.length, len(self._index.tokens)
        most = min(RUN_MAX, match.follows)
        while run < most and tokens[match.follows - run - 1] == tokens[end - run - 1]:
            run += 1
        return run
