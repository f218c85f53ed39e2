"""Prompt lookup: candidates are what followed the last tokens where they stood before, in prompt or output.

No model drafts, so a candidate costs next to nothing. It pays where the output repeats its context: copying,
editing, summaries, code.

Source: Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding); LLMA, Yang et al. 2023 (arXiv 2304.04487).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .batch_drafter import RowsDrafter
from .batch_draws import RowsDraws
from .batch_row import Row, blamed_on
from .drafter import Proposal
from .draws import Draws
from .law import TokenLaw
from .looks import Look, Looker
from .ngrams import Match, NgramIndex
from .one_hot import OneHot
from .params import check_integer
from .policy import LookaheadPolicy

NO_LIMIT = 2**31  # positions
PROMPT_LOOKUP = "prompt-lookup"
"""Names this drafter where a draft is given by name."""


class PromptLookupDrafter:
    """Drafts what followed the longest match of the last tokens, and of several as long, the latest one.

    The latest, not the most frequent: in an edited text what the output has made of a passage stands
    before what the prompt said, and tokens copied from one place belong together.

    Its laws are one-hot: candidate x is accepted with the probability that the target gives it, and the
    correction is the target's law without x. Where nothing matches, nothing is drafted.
    """

    gives_logits = False
    context = NO_LIMIT

    def __init__(self, *, max_ngram: int = 5, min_ngram: int = 2) -> None:
        """Set which matches count.

        Args:
            max_ngram: the most of the last tokens that are compared; a longer match is not told from one
                of so many.
            min_ngram: the fewest that make a match.

        Raises:
            ValueError: naming the field, the value and what is allowed.
        """
        check_integer("max_ngram", max_ngram, low=1)
        check_integer("min_ngram", min_ngram, low=1, high=max_ngram)
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self._context = _Context(max_ngram, min_ngram)

    def reset(self, capacity: int) -> None:
        self._context = _Context(self.max_ngram, self.min_ngram)

    def look(self, tokens: Sequence[int]) -> Look:
        """Return what is known of the candidates after `tokens`; once a round, where a policy asks."""
        return self._context.look(tokens)

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        law: TokenLaw,
        draws: Draws,
    ) -> Proposal:
        match = self._context.read(tokens)
        drafted = self._context.draft(gamma, policy, law.width)
        return Proposal(drafted, OneHot(drafted, law.width), steps=0, match=match)

    def roll_back(self, length: int) -> None:
        self._context.roll_back(length)

    def twin(self) -> PromptLookupDrafter:
        return PromptLookupDrafter(max_ngram=self.max_ngram, min_ngram=self.min_ngram)

    def for_rows(self, rows: int) -> RowsDrafter:
        return PromptLookupRowsDrafter(rows, max_ngram=self.max_ngram, min_ngram=self.min_ngram)

    def __repr__(self) -> str:
        return f"PromptLookupDrafter(max_ngram={self.max_ngram}, min_ngram={self.min_ngram})"


class PromptLookupRowsDrafter:
    """Drafts so for each row of a batch, from its own tokens; `PromptLookupDrafter.for_rows` makes one."""

    context = NO_LIMIT

    def __init__(self, rows: int, *, max_ngram: int, min_ngram: int) -> None:
        self._max_ngram, self._min_ngram = max_ngram, min_ngram
        self._contexts = [self._new() for _ in range(rows)]

    def reset(self, capacity: int) -> None:
        self._contexts = [self._new() for _ in self._contexts]

    def open(self, slot: int) -> None:
        self._contexts[slot] = self._new()

    def look(self, row: Row) -> Look:
        """Return what is known of the candidates of a row."""
        return self._contexts[row.slot].look(row.tokens)

    def propose(self, rows: Sequence[Row], draws: RowsDraws[Any]) -> None:
        for row in rows:
            begun = time.perf_counter()
            with blamed_on(row):
                context = self._contexts[row.slot]
                context.read(row.tokens)
                row.drafted = context.draft(row.gamma, row.policy, row.law.width)
                row.draft_laws = [OneHot(row.drafted, row.law.width)]
            row.draft_seconds = time.perf_counter() - begun

    def roll_back(self, slot: int, length: int) -> None:
        self._contexts[slot].roll_back(length)

    def move(self, source: int, to: int) -> None:
        self._contexts[to], self._contexts[source] = self._contexts[source], self._new()

    def _new(self) -> _Context:
        return _Context(self._max_ngram, self._min_ngram)


class _Context:
    """One sequence and its index. Only committed tokens are ever read, so no rejected one is in it."""

    def __init__(self, max_ngram: int, min_ngram: int) -> None:
        self._sizes = max_ngram, min_ngram
        self._start()

    def look(self, tokens: Sequence[int]) -> Look:
        """Take in what is new and return what it tells of the candidates."""
        self.read(tokens)
        return self._looker.look()

    def read(self, tokens: Sequence[int]) -> Match | None:
        """Take in what is new of a sequence and return the match of its end."""
        self._index.extend(tokens[len(self._index.tokens) :])
        return self._index.match

    def draft(self, gamma: int, policy: LookaheadPolicy, width: int) -> list[int]:
        """Return at most `gamma` candidates, the policy asked before each.

        Args:
            width: V; a prompt's token beyond it, which the target cannot say, ends the draft.
        """
        drafted: list[int] = []
        if self._index.match is None:
            return drafted
        while len(drafted) < gamma and policy.wants_step(len(drafted) + 1):
            token = self._index.following(drafted)
            if token >= width:
                break
            drafted.append(token)
        return drafted

    def roll_back(self, length: int) -> None:
        """Start anew where what was read is taken back; a round never does, it takes back drafted tokens."""
        if length < len(self._index.tokens):
            self._start()

    def _start(self) -> None:
        self._index = NgramIndex(*self._sizes)
        self._looker = Looker(self._index)
