"""cells.jsonl: finished blocks, each bound to the settings it was measured under."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..data.files import append_group, drop_cut_group, read_groups
from ..spec import text_hash
from .bench_data import Sample
from .bench_plan import Block

FILE = "cells.jsonl"
_KEY = "block"


class Ledger:
    """The blocks that are done. A block is written when all arms have decoded it: whole or not at all."""

    def __init__(self, folder: Path) -> None:
        """Read what an earlier run finished.

        Raises:
            ValueError: if the file is broken other than at its end.
        """
        from pydantic import TypeAdapter  # not at import: `foredraft --help` does without

        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / FILE
        drop_cut_group(self._path)
        samples = TypeAdapter(Sample)
        self._done: dict[str, list[Sample]] = {}
        for _, row in read_groups(self._path):
            self._done.setdefault(row.pop(_KEY), []).append(samples.validate_python(row))

    def find(self, key: str) -> list[Sample] | None:
        """Return the samples of a finished block, one an arm; None where it is still to do."""
        return self._done.get(key)

    def add(self, key: str, samples: Sequence[Sample]) -> None:
        """Write a finished block and wait until the disk has it."""
        append_group(self._path, key, [{_KEY: key, **asdict(sample)} for sample in samples])
        self._done[key] = list(samples)


def block_key(block: Block, origin: Any) -> str:
    """Return the hash of a block and of all that its figures depend on: models, arms, machine, versions."""
    return text_hash(json.dumps([asdict(block), origin], sort_keys=True, default=str))
