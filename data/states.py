"""The target's last hidden states of a corpus: kept while it is written, so that no teacher runs again.

They are a memo beside the rows, never needed: a row whose states are missing is computed anew. Size:
d numbers a response token (2.3 kB for d = 576 in float32), in shards that are written whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .files import replacing

PATTERN = "states-*.safetensors"
SHARD_BYTES = 64_000_000


class StateWriter:
    """Writes shards into a corpus folder; the rest on leaving the block, failures included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, torch.Tensor] = {}
        self._bytes = 0

    def add(self, row_id: str, states: torch.Tensor) -> None:
        """Keep the states [tokens, d] of a row's response."""
        states = states.detach().cpu().contiguous()
        self._waiting[row_id] = states
        self._bytes += states.numel() * states.element_size()
        if self._bytes >= SHARD_BYTES:
            self._flush()

    def __enter__(self) -> StateWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        if waiting:
            name = PATTERN.replace("*", next(iter(waiting)))
            with replacing(self._folder / name) as part:
                save_file(waiting, part)


class SavedStates(Mapping[str, torch.Tensor]):
    """The states in a corpus folder by row id, each [response tokens, d]; read from disk when asked for."""

    def __init__(self, folder: str | Path) -> None:
        """Find them.

        Raises:
            ValueError: if a shard is broken; names the file.
        """
        self._shards: dict[str, Any] = {}
        for path in sorted(Path(folder).glob(PATTERN)):
            try:
                shard: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ValueError(
                    f"{path} is broken ({error}); delete it, its states will be computed anew"
                ) from error
            self._shards |= dict.fromkeys(shard.keys(), shard)

    def __getitem__(self, row_id: str) -> torch.Tensor:
        states: torch.Tensor = self._shards[row_id].get_tensor(row_id)
        return states

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)
