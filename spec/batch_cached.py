"""A causal LM that remembers many sequences: one forward feeds each what its cache does not cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .batch_cache import RowsCache
from .batch_masks import layer_windows, ragged_obstacle, row_masks
from .cached import cache_argument, context_length, refuse_without_rollback

PADDING = 32  # unused query positions that cost less than one more forward


class CachedRows:
    """Sequences in numbered slots, decoded together by one model.

    As with `CachedModel`, the first `cover[slot]` tokens of a sequence are in the cache, `advance` feeds
    the rest and `roll_back` forgets a tail. Sequences of any lengths may have any number of tokens to
    feed; nothing is padded but the queries of one forward, whose unused positions come first, are
    written where nobody reads, and change nothing.
    """

    def __init__(self, model: Any, *, rows: int, width: int | None = None) -> None:
        """Wrap a model.

        Args:
            model: a causal LM in eval mode.
            rows: slots.
            width: logits are cut to this many entries; None keeps all.

        Raises:
            ValueError: if rows of different length cannot share its forward; names the model and why.
        """
        refuse_without_rollback(model)
        obstacle = ragged_obstacle(model)
        if obstacle is not None:
            raise ValueError(f"{obstacle}, so rows of different length cannot be decoded together")
        self.model, self.rows, self.width = model, rows, width
        self.context: int = context_length(model)
        self.cover = [0] * rows
        self._written = [0] * rows  # positions that may not be zero
        self._windows = layer_windows(model)
        parameter = next(model.parameters())
        eager = model.config.get_text_config()._attn_implementation == "eager"
        self._additive = parameter.dtype if eager else None
        self.device: torch.device = parameter.device
        self._cache_argument = cache_argument(model)
        self._cache = RowsCache(0, rows=rows, capacity=0)

    def reset(self, capacity: int) -> None:
        """Empty all slots for sequences of at most `capacity` tokens; large enough buffers are kept."""
        if capacity > self._cache.capacity:
            layers = self.model.config.get_text_config().num_hidden_layers
            self._cache = RowsCache(layers, rows=self.rows, capacity=capacity)
            self._written = [0] * self.rows
        self.cover = [0] * self.rows

    @torch.inference_mode()
    def advance(
        self, slots: Sequence[int], new: Sequence[Sequence[int]], keep: Sequence[int]
    ) -> list[torch.Tensor]:
        """Feed the tokens that follow the covered ones; return the logits after the last ones of each.

        Args:
            slots: ascending.
            new: one a slot, its sequence from position `cover[slot]` on.
            keep: one a slot, at most the number of its new tokens.

        Returns:
            One [keep, V] a slot, raw.
        """
        logits: list[torch.Tensor] = [torch.empty(0)] * len(new)
        for group in like_lengths([len(tokens) for tokens in new]):
            kept = self._forward(
                [slots[i] for i in group], [new[i] for i in group], [keep[i] for i in group]
            )
            for place, rows in zip(group, kept, strict=True):
                logits[place] = rows
        return logits

    def roll_back(self, slot: int, length: int) -> None:
        """Forget a sequence's tokens from position `length` on: a change of length, nothing else."""
        self.cover[slot] = min(self.cover[slot], length)

    @torch.inference_mode()
    def open(self, slot: int) -> None:
        """Start a new sequence in a slot; nothing of the one before is left, were it NaN."""
        self._cache.wipe(slot, 0, self._written[slot])
        self.cover[slot] = self._written[slot] = 0

    @torch.inference_mode()
    def move(self, source: int, to: int) -> None:
        """Put the sequence of one slot into another."""
        length = self.cover[source]
        self._cache.move(source, to, length)
        self._cache.wipe(to, length, self._written[to])
        self.cover[to] = self._written[to] = length

    def _forward(
        self, slots: list[int], new: list[Sequence[int]], keep: list[int]
    ) -> list[torch.Tensor]:
        queries = max(map(len, new))
        ends = [self.cover[slot] + len(tokens) for slot, tokens in zip(slots, new, strict=True)]
        assert max(ends) <= self._cache.capacity, "a sequence outgrew its cache"
        ids = torch.tensor([[*[0] * (queries - len(tokens)), *tokens] for tokens in new])  # [n, Q]
        starts = torch.tensor([self.cover[slot] for slot in slots])[:, None]  # [n, 1]
        at = torch.tensor(ends)[:, None] + torch.arange(-queries, 0)  # [n, Q], the last ones real
        unused = at < starts
        positions = at.masked_fill(unused, 0).to(self.device)
        self._cache.place(
            torch.tensor(slots, device=self.device),
            at.masked_fill(unused, self._cache.unused).to(self.device),
            max(ends),
            first=slots == list(range(len(slots))),
        )
        logits = self.model(
            input_ids=ids.to(self.device),
            attention_mask=row_masks(self._windows, positions, max(ends), self._additive),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=max(keep),
            **{self._cache_argument: self._cache},
        ).logits[..., : self.width]  # [n, most kept, V]
        for slot, end in zip(slots, ends, strict=True):
            self.cover[slot] = end
            self._written[slot] = max(self._written[slot], end)
        return [row[len(row) - count :] for row, count in zip(logits, keep, strict=True)]


def like_lengths(lengths: Sequence[int]) -> list[list[int]]:
    """Split places into groups of like length: at most `PADDING` positions of a forward are unused."""
    groups: list[list[int]] = []
    unused = 0
    for place in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        missing = lengths[groups[-1][0]] - lengths[place] if groups else 0
        if not groups or unused + missing > PADDING:
            groups.append([place])
            unused = 0
        else:
            groups[-1].append(place)
            unused += missing
    return [sorted(group) for group in groups]
