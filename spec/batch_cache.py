"""A key/value cache whose rows stand at different lengths: each token is written at its own position.

Invariant: slots below a row's cover hold its committed tokens; what lies above is stale, finite and
masked, and overwritten before the row can see it.
"""

from __future__ import annotations

from typing import Any

import torch

from .cache import BufferCache, BufferLayer


class RowsCache(BufferCache):
    """Buffers of `capacity` positions for `rows` sequences, in every layer of a model.

    One position more, the last, takes what unused query positions write; no forward reads it.
    Sliding-window layers get full buffers as well: the window is in the mask.
    """

    def __init__(self, layers: int, *, rows: int, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        self.unused = capacity  # the position that is written and never read
        self.slots = torch.empty(0, dtype=torch.int64)  # [n], the rows of the next forward
        self.positions = torch.empty(0, 0, dtype=torch.int64)  # [n, Q], where it writes
        self.length = 0  # positions it reads
        self._first_rows = False  # it takes rows 0 … n − 1, whose buffers need no copy
        super().__init__(layers=[_Layer(self) for _ in range(layers)])

    @property
    def length_of_buffers(self) -> int:
        return self.capacity + 1

    def place(
        self, slots: torch.Tensor, positions: torch.Tensor, length: int, *, first: bool
    ) -> None:
        """Say where the next forward writes and how much it reads.

        Args:
            slots: [n], the rows that take part, ascending.
            positions: [n, Q].
            length: positions that the mask covers.
            first: whether `slots` is 0 … n − 1 (known to the host, not asked of the device).
        """
        self.slots, self.positions, self.length, self._first_rows = slots, positions, length, first

    def move(self, source: int, to: int, length: int) -> None:
        """Copy the first `length` positions of one row into another."""
        for buffer in self.buffers():
            buffer[to, :, :length] = buffer[source, :, :length]

    def wipe(self, slot: int, start: int, end: int) -> None:
        """Write zeros over some positions: a NaN, unlike other stale values, shows through a mask."""
        for buffer in self.buffers():
            buffer[slot, :, start:end] = 0.0

    def read(self, whole: torch.Tensor) -> torch.Tensor:
        """Return what the forward's rows may attend to, [n, H, length, D]."""
        if self._first_rows:
            return whole[: len(self.slots), :, : self.length]
        return whole[:, :, : self.length].index_select(0, self.slots)


class _Layer(BufferLayer):
    cache: RowsCache

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write what is new, [n, H, Q, D], and return all that may be attended to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        slots, positions = self.cache.slots[:, None], self.cache.positions  # [n, 1], [n, Q]
        self.keys[slots, :, positions] = key_states.transpose(1, 2)
        self.values[slots, :, positions] = value_states.transpose(1, 2)
        return self.cache.read(self.keys), self.cache.read(self.values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length, 0

    def get_seq_length(self) -> int:
        return self.cache.length - self.cache.positions.shape[-1]
