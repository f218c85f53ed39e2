"""A sequence of the target's tokens in the tokens of another tokenizer, kept up as it grows and shrinks.

Only the end is ever encoded again, so what is new costs the same after a long sequence as after a short one.
What comes of it is what a draft reads, so a seam where a whole encoding would differ costs acceptance at most.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from .codec import Codec

OVERLAP = 8  # tokens that are encoded or decoded again, to find where old and new agree
MOST_OVERLAP = 512  # where that is not found, more are, up to so many
BYTES_OF_A_CHARACTER = 4
BROKEN = "\ufffd"  # stands for bytes that are no character, or not yet one


@dataclass(frozen=True, slots=True)
class _Section:
    """What follows a special token: it is encoded by itself."""

    token: int  # of the target's, where it begins
    char: int
    index: int  # of the draft's
    before: int  # of the draft's, where the special token has or would have its counterpart


class Translation:
    """The text of a sequence, read in the target's tokens and held in the draft's."""

    def __init__(self, target: Codec, draft: Codec) -> None:
        """Start with an empty sequence."""
        self._target, self._draft = target, draft
        self._special = {
            token: _counterpart(token, target, draft)
            for token in (*target.special, target.bos, target.eos)
            if token is not None
        }
        self._text = _Text()
        self.clear()

    def clear(self) -> None:
        """Start a new sequence."""
        self.tokens: list[int] = []  # the target's
        self.ids: list[int] = []  # the draft's, without the token that opens a sequence
        self.changed = (
            0  # `ids` before this one are as they were when it was last set to their number
        )
        self._ends: list[int] = []  # characters, for each of `ids`
        self._steps = [(0, 0, 0)]  # after each `extend`: tokens, tokens with text, characters
        self._sections = [_Section(0, 0, 0, 0)]
        self._read = 0  # tokens whose text is there
        self._text.cut(0)

    @property
    def pending(self) -> list[int]:
        """The target's last tokens, whose bytes do not make a character yet."""
        return self.tokens[self._read :]

    @property
    def uncovered(self) -> str:
        """The end of the text that is in no token of the draft's, such as white space it does not know."""
        return self._text.tail(self._end_of(len(self.ids)))

    def target_end(self) -> list[int]:
        """Return the target's last few tokens that have text."""
        return self.tokens[max(self._sections[-1].token, self._read - OVERLAP) : self._read]

    def draft_end(self) -> list[int]:
        """Return the draft's last few tokens."""
        return self.ids[max(self._sections[-1].index, len(self.ids) - OVERLAP) :]

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in what follows."""
        self.tokens += tokens
        for place in range(len(self.tokens) - len(tokens), len(self.tokens)):
            if self.tokens[place] in self._special:
                self._take_text(place, last=True)
                self._take_special(place)
        self._take_text(len(self.tokens), last=False)
        self._steps.append((len(self.tokens), self._read, self._text.length))

    def roll_back(self, length: int) -> None:
        """Forget the target's tokens from `length` on, or a few more: those that came with them."""
        if length >= len(self.tokens):
            return
        while self._steps[-1][0] > length:
            self._steps.pop()
        count, self._read, chars = self._steps[-1]
        del self.tokens[count:]
        while self._sections[-1].token > count:
            self._cut_ids(self._sections.pop().before)
        self._text.cut(chars)
        whole = len(self.ids)
        while whole > self._sections[-1].index and self._ends[whole - 1] > chars:
            whole -= 1
        self._cut_ids(whole)
        self._encode_end()

    def _take_special(self, place: int) -> None:
        counterpart, before = self._special[self.tokens[place]], len(self.ids)
        doubled = not self.ids and [counterpart] == self._draft.opening  # the draft's own is there
        if counterpart is not None and not doubled:
            self.ids.append(counterpart)
            self._ends.append(self._text.length)
        self._read = place + 1
        self._sections.append(_Section(self._read, self._text.length, len(self.ids), before))

    def _take_text(self, stop: int, *, last: bool) -> None:
        """Take in the text of the tokens before `stop`; unless it is the last, half a character has to wait."""
        if stop == self._read:
            return
        section = self._sections[-1]
        first = max(section.token, self._read - OVERLAP)
        before = self._target.decode(self.tokens[first : self._read])
        shortest = max(self._read, stop - BYTES_OF_A_CHARACTER)
        for end in range(stop, shortest, -1):
            now = self._target.decode(self.tokens[first:end])
            if last or not now.endswith(BROKEN):
                break
        else:
            if stop - self._read < BYTES_OF_A_CHARACTER:
                return
            end, now = stop, self._target.decode(self.tokens[first:stop])  # they are no text
        self._text.add(now[_common(before, now) :])
        self._read = end
        self._encode_end()

    def _encode_end(self) -> None:
        """Encode the end of the text again, from where the tokens before it surely stay."""
        section, overlap = self._sections[-1], OVERLAP
        while True:
            first = max(section.index, len(self.ids) - overlap)
            start = self._end_of(first)
            ids, ends = self._draft.encode(self._text.tail(start))
            ends = [start + end for end in ends]
            if first == section.index or overlap >= MOST_OVERLAP:
                self._splice(first, ids, ends)
                return
            meeting = self._meeting(first, ids, ends)
            if meeting is not None:
                old, new = meeting
                self._splice(old, ids[new:], ends[new:])
                return
            overlap *= 4

    def _meeting(self, first: int, ids: list[int], ends: list[int]) -> tuple[int, int] | None:
        """Return where the old tokens from `first` on and the new ones have two in a row in common."""
        places = {end: place for place, end in enumerate(ends)}  # the last of those with one end
        for old in range(first + 1, len(self.ids) - 1):
            new = places.get(self._ends[old - 1], -1) + 1
            same = self.ids[old : old + 2] == ids[new : new + 2]
            if new and same and self._ends[old : old + 2] == ends[new : new + 2]:
                return old, new
        return None

    def _splice(self, at: int, ids: list[int], ends: list[int]) -> None:
        """Replace the draft's tokens from `at` on, and note where they begin to differ."""
        same = _common(self.ids[at:], ids)
        self.changed = min(self.changed, at + same)
        self.ids[at:], self._ends[at:] = ids, ends

    def _cut_ids(self, count: int) -> None:
        del self.ids[count:], self._ends[count:]
        self.changed = min(self.changed, len(self.ids))

    def _end_of(self, index: int) -> int:
        """Return where the first `index` of the draft's tokens end, in characters."""
        section = self._sections[-1]
        return section.char if index == section.index else self._ends[index - 1]


class _Text:
    """A text that is added to and cut at its end, at the cost of what is at its end."""

    CHUNK = 1024  # characters: a long prompt is not copied for its last words

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._starts: list[int] = []
        self.length = 0

    def add(self, piece: str) -> None:
        for start in range(0, len(piece), self.CHUNK):
            part = piece[start : start + self.CHUNK]
            self._pieces.append(part)
            self._starts.append(self.length)
            self.length += len(part)

    def tail(self, start: int) -> str:
        """Return the text from a character on."""
        if start >= self.length:
            return ""
        first = bisect_right(self._starts, start) - 1
        return "".join(self._pieces[first:])[start - self._starts[first] :]

    def cut(self, length: int) -> None:
        """Keep the first `length` characters."""
        while self._pieces and self.length > length:
            self.length = self._starts.pop()
            piece = self._pieces.pop()
            if self.length < length:
                self.add(piece[: length - self.length])


def _counterpart(token: int, target: Codec, draft: Codec) -> int | None:
    """Return what a special token of the target is to the draft: of the same role, or of the same name."""
    if token == target.eos:
        return draft.eos
    if token == target.bos:
        return draft.bos
    name = target.special[token]
    return next((own for own, other in draft.special.items() if other == name), None)


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many first elements are the same."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
