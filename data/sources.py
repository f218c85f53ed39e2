"""Rows of a source: what is shipped with the package, JSONL files, or any set that `datasets` loads."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

SHIPPED = "shipped"


def source_rows(source: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield where a row stands, the row, and the domain it has unless it names one.

    Args:
        source: "shipped"; a .jsonl file or a folder of them; or what `datasets` loads, as "id"
            (split "train") or "id:config:split", where an empty config means none.

    Raises:
        ValueError: if the source is missing or a line is not a JSON object; names where.
    """
    if source == SHIPPED:
        yield from _file_rows(_jsonl_files(importlib.resources.files(__package__) / "prompts"))
        return
    path = Path(source).expanduser()
    if path.is_dir():
        files = _jsonl_files(path)
        if not files:
            raise ValueError(f"source: the folder {source} holds no .jsonl file")
        yield from _file_rows(files)
    elif path.is_file():
        yield from _file_rows([path])
    elif source.endswith((".jsonl", ".json", "/")) or source.startswith((".", "/", "~")):
        raise ValueError(f"source: there is no file or folder {source}")
    else:
        yield from _dataset_rows(source)


def _jsonl_files(folder: Traversable) -> list[Traversable]:
    files = [file for file in folder.iterdir() if file.name.endswith(".jsonl")]
    return sorted(files, key=lambda file: file.name)


def _file_rows(files: Sequence[Traversable]) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    for file in files:
        domain = file.name.removesuffix(".jsonl")
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # splitlines() would cut at U+2028
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{where}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{where}: expected an object, got {line.strip()[:80]}")
            yield where, row, domain


def _dataset_rows(source: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    import datasets  # takes seconds to import, and only this source needs it

    parts = source.split(":")
    if len(parts) not in (1, 3) or not parts[0]:
        raise ValueError(f'source must be a path, "id" or "id:config:split", got {source!r}')
    name, config, split = parts if len(parts) == 3 else (source, "", "train")
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # the hub, its cache and the parsers raise many unrelated kinds
        raise ValueError(
            f"source: {source!r} is no path here, and `datasets` cannot load it: {error}"
        ) from error
    domain = name.rpartition("/")[2]
    for number, row in enumerate(rows):
        yield f"{source}, row {number}", row, domain
