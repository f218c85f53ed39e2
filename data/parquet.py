"""Columns to a Parquet file, through datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_parquet(
    path: Path, columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, str]
) -> None:
    """Write a table.

    Args:
        columns: name -> values, all of one length.
        kinds: name of each column -> what datasets calls its values, or "list<…>" of that.
    """
    import datasets  # takes seconds to import

    def feature(kind: str) -> Any:
        inner = kind.removeprefix("list<").removesuffix(">")
        value = datasets.Value(inner)
        return value if inner == kind else datasets.List(value)

    features = datasets.Features({name: feature(kind) for name, kind in kinds.items()})
    table = datasets.Dataset.from_dict(dict(columns), features=features)
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # one for a file of a second would break into ours
    try:
        table.to_parquet(str(path))
    finally:
        if not bars:
            datasets.enable_progress_bars()
