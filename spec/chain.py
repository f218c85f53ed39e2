"""A chain: what a lookup found is offered first, what a draft model would say next, and nothing last.

The policy chooses by what it says to the first step of each offer. One that never refuses follows every match
and asks the model where there is none; one that knows what each would give and take chooses in every round
(`ChainLookahead`). In rounds it did not draft the model reads nothing: it catches up when it is next asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .batch_drafter import RowsDrafter
from .batch_draws import RowsDraws
from .batch_row import Row, sound
from .drafter import Drafter, ModelDrafter, Proposal
from .draws import Draws
from .law import TokenLaw
from .looks import Looking
from .lookup import NO_LIMIT, PromptLookupDrafter, PromptLookupRowsDrafter
from .one_hot import OneHot
from .policy import LookaheadPolicy

CHAIN = "chain:"
"""Begins the name of a chain; the name of a draft model follows."""


class ChainDrafter:
    """Drafts what a lookup found, or what a model says, as the policy wants.

    In a round with a match `wants_step(1)` is asked for the lookup's first token, and where that is refused
    once more for the model's. What it says to one source is drafted by that source alone.
    """

    gives_logits = False  # not where a match is followed
    context = NO_LIMIT  # beyond the model's there is still the lookup

    def __init__(self, model: Drafter | None, lookup: PromptLookupDrafter | None = None) -> None:
        """Put a lookup before a model.

        Args:
            model: a `ModelDrafter`.
            lookup: None: one with its defaults.

        Raises:
            ValueError: if the second is not a draft model.
        """
        if not isinstance(model, ModelDrafter):
            raise ValueError(f"draft: a chain has a draft model after its lookup, got {model!r}")
        self.model = model
        self.lookup = PromptLookupDrafter() if lookup is None else lookup

    def reset(self, capacity: int) -> None:
        self.model.reset(capacity)
        self.lookup.reset(capacity)

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        law: TokenLaw,
        draws: Draws,
    ) -> Proposal:
        found = self.lookup.propose(tokens, gamma, policy, law, draws)
        if found.tokens:
            return found
        gamma = min(gamma, self.model.context - len(tokens))
        if gamma <= 0:
            return Proposal([], OneHot([], law.width), steps=0)
        return self.model.propose(tokens, gamma, policy, law, draws)

    def roll_back(self, length: int) -> None:
        self.model.roll_back(length)
        self.lookup.roll_back(length)

    def twin(self) -> ChainDrafter:
        return ChainDrafter(self.model.twin(), self.lookup.twin())

    def for_rows(self, rows: int) -> RowsDrafter:
        lookup = PromptLookupRowsDrafter(
            rows, max_ngram=self.lookup.max_ngram, min_ngram=self.lookup.min_ngram
        )
        return ChainRowsDrafter(self.model.for_rows(rows), lookup)

    def __repr__(self) -> str:
        return f"ChainDrafter({self.lookup!r}, {self.model!r})"


class ChainRowsDrafter:
    """Drafts so for each row of a batch; rows that follow no match share the model's forwards."""

    context = NO_LIMIT

    def __init__(self, model: RowsDrafter, lookup: PromptLookupRowsDrafter) -> None:
        """Put a lookup before a model; `ChainDrafter.for_rows` does."""
        self.model, self.lookup = model, lookup

    def reset(self, capacity: int) -> None:
        self.model.reset(capacity)
        self.lookup.reset(capacity)

    def open(self, slot: int) -> None:
        self.model.open(slot)
        self.lookup.open(slot)

    def propose(self, rows: Sequence[Row], draws: RowsDraws[Any]) -> None:
        self.lookup.propose(rows, draws)
        left = [row for row in sound(rows) if not row.drafted]
        for row in left:
            row.draft_laws = []
            row.gamma = max(0, min(row.gamma, self.model.context - len(row.tokens)))
        self.model.propose(left, draws)

    def roll_back(self, slot: int, length: int) -> None:
        self.model.roll_back(slot, length)
        self.lookup.roll_back(slot, length)

    def move(self, source: int, to: int) -> None:
        self.model.move(source, to)
        self.lookup.move(source, to)


def looking(drafter: Drafter | None, tokens: Sequence[int]) -> Looking | None:
    """Return what looks at `tokens` when called, where a drafter looks anything up."""
    lookup = drafter.lookup if isinstance(drafter, ChainDrafter) else drafter
    return partial(lookup.look, tokens) if isinstance(lookup, PromptLookupDrafter) else None


def looking_of_row(drafter: RowsDrafter | None, row: Row) -> Looking | None:
    """Return what looks at a row when called, where a drafter looks anything up."""
    lookup = drafter.lookup if isinstance(drafter, ChainRowsDrafter) else drafter
    return partial(lookup.look, row) if isinstance(lookup, PromptLookupRowsDrafter) else None
