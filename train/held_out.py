"""The held-out rows that a checkpoint's metrics were measured on, kept in its folder.

Whoever has the folder and the target can measure the same figures again (`foredraft verify`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from ..data.files import write_lines
from .batches import Example

FILE = "held_out.jsonl"


def save_held_out(folder: str | Path, examples: Sequence[Example]) -> None:
    """Write `held_out.jsonl`, a row an example: its tokens, and which are supervised, the last or spans."""
    if not examples:
        return
    rows = [
        {"row_id": one.row_id, "tokens": one.tokens.tolist(), "supervised": one.supervised}
        | ({"spans": one.spans} if one.spans else {})
        | ({"domain": one.domain} if one.domain else {})
        for one in examples
    ]
    write_lines(Path(folder) / FILE, rows)


def load_held_out(folder: str | Path) -> list[Example]:
    """Return the examples in the order of the file; none where the folder has no such file.

    Raises:
        ValueError: if the file is broken; names the line.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return []
    examples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            spans = tuple((int(first), int(end)) for first, end in row.get("spans", ()))
            one = Example(
                torch.tensor(row["tokens"]), int(row["supervised"]), row["row_id"], spans,
                row.get("domain", ""),
            )  # fmt: skip
            if one.tokens.ndim != 1:
                raise ValueError(f"tokens of {one.tokens.ndim} dimensions")
            if spans and sum(end - first for first, end in spans) != one.supervised:
                raise ValueError(f"spans {spans} of {one.supervised} supervised tokens")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: not a held-out row: {error!r}") from error
        examples.append(one)
    return examples
