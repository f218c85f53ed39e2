"""A draft model that reads a sequence of the target's tokens in its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .cached import CachedModel
from .codec import Codec
from .translation import Translation

SPARE = 64  # positions beyond what a sequence is expected to need


class TranslatedModel:
    """A causal LM whose cache follows a translation: what is still right in it is kept.

    Its own context never ends a draft: where a sequence has outgrown it, the model goes on with the last
    half of what it can hold, read anew.
    """

    def __init__(self, model: Any, codec: Codec, translation: Translation) -> None:
        """Wrap a draft model.

        Args:
            codec: its tokenizer's.
        """
        self.cached = CachedModel(model)
        self.translation = translation
        rows = int(model.get_output_embeddings().weight.shape[0])
        # What to start from where there is no text: a law is asked for after every sequence.
        start = codec.bos if codec.bos is not None else codec.eos
        self._start = [start if start is not None and start < rows else 0]
        self._opening = codec.opening
        self._capacity = 0
        self._held: list[int] = []  # what the cache holds, the opening first
        self._first = 0  # of the translation's ids, the first that the cache holds

    @property
    def most_drawn(self) -> int:
        """How many tokens of the draft's own fit behind what is read anew."""
        return max(0, self.cached.context // 2 - len(self._opening))

    def reset(self, capacity: int) -> None:
        """A new sequence of at most `capacity` of the target's tokens starts."""
        self.translation.clear()
        self._capacity = capacity
        self._forget(0)

    def logits(self, drawn: Sequence[int]) -> torch.Tensor:
        """Return the draft's logits [1, V_draft] after the translation and `drawn` tokens of its own."""
        translation, opening = self.translation, self._opening
        length = len(opening) + len(translation.ids) - self._first + len(drawn)
        if not self._fits(length):
            self._forget(max(0, len(translation.ids) - self.cached.context // 2))
            length = len(opening) + len(translation.ids) - self._first + len(drawn)
        same = len(opening) + translation.changed - self._first
        wanted_from = max(0, min(same, len(self._held)))
        wanted = self._after(wanted_from, drawn)
        kept = wanted_from
        for held, token in zip(self._held[wanted_from:], wanted, strict=False):
            if held != token:
                break
            kept += 1
        kept = min(kept, max(0, length - 1))  # the last one is fed, for its logits
        self._grow(max(1, length))
        self.cached.encode_for(max(1, length))
        kept = min(kept, self.cached.cover)
        new = self._after(kept, drawn)
        self.cached.roll_back(kept)
        del self._held[kept:]
        logits = self.cached.advance(new)
        self._held += new
        translation.changed = len(translation.ids)
        return logits

    def _after(self, index: int, drawn: Sequence[int]) -> list[int]:
        """Return what the cache is to hold from `index` on."""
        opening = len(self._opening)
        ids = self.translation.ids[self._first + max(0, index - opening) :]
        past = index - opening - (len(self.translation.ids) - self._first)
        return [*self._opening[index:], *ids, *drawn[max(0, past) :]] or self._start

    def _fits(self, length: int) -> bool:
        """Return whether the sequence fits behind the first token that the cache holds."""
        return self._first <= len(self.translation.ids) and length <= self.cached.context

    def _grow(self, length: int) -> None:
        """Make the cache longer where it is too short; what it held has to be read again."""
        if length <= self.cached.cache.capacity:
            return
        rest = max(0, self._capacity - len(self.translation.tokens))
        self.cached.reset(min(self.cached.context, max(2 * rest, length // 2) + length + SPARE))
        self._held.clear()

    def _forget(self, first: int) -> None:
        """Empty the cache; from now on it holds the translation's ids from `first` on."""
        self._first = first
        self._held.clear()
        self.cached.roll_back(0)
