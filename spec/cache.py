"""A key/value cache that is allocated once and rolled back by changing a length.

Invariant: slots below `cover` hold the keys and values of the committed tokens; what lies above is
stale, finite (the buffers start as zeros) and overwritten before it is ever read.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class BufferCache(Cache):  # type: ignore[misc]
    """Buffers of `length` positions for `rows` sequences, in every layer; a subclass says where to write."""

    rows: int
    capacity: int  # positions of a sequence

    @property
    def length_of_buffers(self) -> int:
        """Positions allocated."""
        return self.capacity

    def buffers(self) -> list[torch.Tensor]:
        """Return the key and value buffers of the layers that have written, [rows, heads, positions, width]."""
        written = [layer for layer in self.layers if layer.is_initialized]
        return [buffer for layer in written for buffer in (layer.keys, layer.values)]


class BufferLayer(CacheLayerMixin):  # type: ignore[misc]
    """The buffers of one layer, allocated when they are first written."""

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: Any) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, heads, length = self.cache.rows, key_states.shape[1], self.cache.length_of_buffers
        self.keys = key_states.new_zeros(rows, heads, length, key_states.shape[-1])
        self.values = value_states.new_zeros(rows, heads, length, value_states.shape[-1])
        self.is_initialized = True

    def get_max_length(self) -> int:
        return int(self.cache.capacity)


class KVCache(BufferCache):
    """Buffers of `capacity` positions for `rows` sequences, in every layer of a model.

    Sliding-window layers get full buffers as well: the window is in the model's mask, so that nothing
    a rollback needs is ever overwritten.
    """

    def __init__(self, layers: int, *, rows: int, capacity: int) -> None:
        self.rows = rows
        self.capacity = capacity
        self.cover = 0  # positions every row holds; where the next forward writes
        self.offsets: torch.Tensor | None = None  # [rows, Q], where ragged rows write instead
        super().__init__(layers=[_Layer(self) for _ in range(layers)])

    def place_rows(self, positions: torch.Tensor | None) -> None:
        """Let the next forward write row b's token i at positions[b, i]; None: all rows at `cover`.

        Args:
            positions: [rows, Q], int64.
        """
        self.offsets = positions


class _Layer(BufferLayer):
    cache: KVCache

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write what is new and return all that may be attended to (views, no copy)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache, new = self.cache, key_states.shape[2]
        end = cache.cover + new
        if cache.offsets is None:
            self.keys[:, :, cache.cover : end] = key_states
            self.values[:, :, cache.cover : end] = value_states
        else:
            slots = cache.offsets[:, None, :, None]  # [rows, 1, Q, 1]
            self.keys.scatter_(2, slots.expand_as(key_states), key_states)
            self.values.scatter_(2, slots.expand_as(value_states), value_states)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.cover + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.cover
