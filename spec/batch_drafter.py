"""Drafting for many rows: one forward for each depth, over the rows that still want to draft."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from .batch_cached import CachedRows
from .batch_draws import RowsDraws
from .batch_row import Row, blamed_on, check_token, sound
from .draft_temperature import DraftTemperature, as_draft_temperature
from .policy import Said, show_tokens
from .spreading import spread


class RowsDrafter(Protocol):
    """A source of candidates for the rows of a batch; each row is known by its slot."""

    context: int  # positions it can look at; beyond them a row decodes plainly

    def reset(self, capacity: int) -> None:
        """Empty all slots for sequences of at most `capacity` tokens."""

    def open(self, slot: int) -> None:
        """A new sequence starts in this slot."""

    def propose(self, rows: Sequence[Row], draws: RowsDraws[Any]) -> None:
        """Draft up to `row.gamma` tokens for each row, asking its policy before each.

        Fills `drafted`, `draft_laws`, `draft_steps` and `draft_seconds`. The seconds of a depth are shared
        in proportion to the tokens that each row feeds.
        """

    def roll_back(self, slot: int, length: int) -> None:
        """Forget all from position `length` on."""

    def move(self, source: int, to: int) -> None:
        """Put the sequence of one slot into another."""


class ModelRowsDrafter:
    """Drafts with a smaller causal LM; `ModelDrafter.for_rows` makes one.

    A row that is behind, by the token that was pending after a full acceptance or by all that rounds
    without drafting left, catches up in the same forward.
    """

    def __init__(
        self,
        model: Any,
        *,
        rows: int,
        width: int,
        kept: torch.Tensor | None,
        temperature: float | DraftTemperature,
    ) -> None:
        """Wrap a draft model; see `ModelDrafter`.

        Raises:
            ValueError: if rows of different length cannot share its forward.
        """
        self.cached = CachedRows(model, rows=rows, width=width if kept is None else None)
        self.context = self.cached.context
        self._width, self._kept = width, kept
        self._temperature = as_draft_temperature(temperature)

    def reset(self, capacity: int) -> None:
        self.cached.reset(min(capacity, self.context))

    def open(self, slot: int) -> None:
        # The prompt is fed when the row's first token is drafted: where nothing is, it costs nothing.
        self.cached.open(slot)

    def propose(self, rows: Sequence[Row], draws: RowsDraws[Any]) -> None:
        depth = 0
        while rows := self._wanting_step(rows, depth := depth + 1):
            begun = time.perf_counter()
            slots = [row.slot for row in rows]
            new = [row.uncovered(self.cached.cover[row.slot]) for row in rows]
            fed = [len(tokens) for tokens in new]
            logits = self.cached.advance(slots, new, [1] * len(rows))  # [1, V_draft] each
            drawn = self._draw(rows, logits, depth, draws)
            seconds = time.perf_counter() - begun
            for row, count in zip(rows, fed, strict=True):
                row.draft_steps += 1
                row.draft_seconds += seconds * count / sum(fed)
            rows = drawn

    def roll_back(self, slot: int, length: int) -> None:
        self.cached.roll_back(slot, length)

    def move(self, source: int, to: int) -> None:
        self.cached.move(source, to)

    def _wanting_step(self, rows: Sequence[Row], depth: int) -> list[Row]:
        wanting = []
        for row in rows:
            with blamed_on(row):
                if row.gamma >= depth and row.policy.wants_step(depth):
                    wanting.append(row)
        return wanting

    def _draw(
        self, rows: list[Row], logits: list[torch.Tensor], depth: int, draws: RowsDraws[Any]
    ) -> list[Row]:
        """Draw a token for each row that wants it, and return those rows."""
        drawing: list[tuple[Row, torch.Tensor]] = []
        for row, look in zip(rows, logits, strict=True):
            with blamed_on(row):
                show_tokens(row.policy, Said(row.tokens, row.drafted, self._kept))
                if row.policy.wants_token(depth, look[0]):
                    drawing.append((row, self._law(row, look)))
        if not drawing:
            return []
        laws = torch.cat([law for _, law in drawing])  # [n, V]
        tokens = draws.tokens(laws, [row.source for row, _ in drawing])  # one read by the host
        for (row, law), token in zip(drawing, tokens, strict=True):
            with blamed_on(row):
                row.drafted.append(check_token(token, self._width))
                row.draft_laws.append(law)
        return sound(row for row, _ in drawing)

    def _law(self, row: Row, logits: torch.Tensor) -> torch.Tensor:
        """Return the law [1, V] of the row's next token."""
        return row.law.probs(
            spread(logits, self._kept, self._width),
            row.drafted,
            first=len(row.drafted),
            temperature_factor=self._temperature.factor(row.law.params.temperature),
        )
