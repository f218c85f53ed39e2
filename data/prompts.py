"""Prompts: those shipped with the package, JSONL files, or any set that `datasets` loads.

A prompt's split follows from its text alone, so it never depends on which other prompts are loaded.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

SHIPPED = "shipped"
SPLITS = ("train", "dev", "test")
_TRAIN_END, _DEV_END = 0.70, 0.85  # shares of the hash's range

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing asked of the target."""

    id: str
    domain: str
    text: str
    language: str = "en"

    @property
    def split(self) -> str:
        """The split that the text falls into."""
        return split_of(self.text)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a conversation of one turn."""
        return [{"role": "user", "content": self.text}]


def split_of(text: str) -> str:
    """Return "train" (70 %), "dev" (15 %) or "test" (15 %), by SHA-256 of the text alone."""
    share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
    return "train" if share < _TRAIN_END else "dev" if share < _DEV_END else "test"


def load_prompts(
    source: str = SHIPPED,
    *,
    domains: Sequence[str] | None = None,
    split: str | None = None,
    limit_per_domain: int | None = None,
    field: str = "prompt",
) -> list[Prompt]:
    """Return prompts in the source's order, each text once.

    A row has the text under `field`, or under `prompt` where it lacks that. `id`, `domain` and
    `language` are optional: they default to a hash of the text, to the file's or data set's name,
    and to "en". Where two texts share an id, the later one gets its hash appended.

    Args:
        source: "shipped"; a .jsonl file or a folder of them; or what `datasets` loads, as "id"
            (split "train") or "id:config:split", where an empty config means none.
        domains: keep these only.
        split: keep "train", "dev" or "test" by `split_of`; not the data set's own split.
        limit_per_domain: keep the first so many of each domain, after the filters.
        field: the column with the text.

    Raises:
        ValueError: if the source is missing, a row has no text, a domain is unknown, or nothing is
            left.
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if limit_per_domain is not None and limit_per_domain < 1:
        raise ValueError(f"limit_per_domain must be an integer >= 1, got {limit_per_domain!r}")
    prompts = _drop_repeats(_parse(*located, field) for located in _rows(source))
    known = sorted({prompt.domain for prompt in prompts})
    if unknown := sorted(set(domains or ()) - set(known)):
        raise ValueError(
            f"domains: {source} has no {', '.join(unknown)}; it has {', '.join(known)}"
        )
    kept = [
        prompt
        for prompt in prompts
        if (domains is None or prompt.domain in domains) and split in (None, prompt.split)
    ]
    if limit_per_domain is not None:
        kept = _first_of_each_domain(kept, limit_per_domain)
    if not kept:
        raise ValueError(
            f"no prompts left of {len(prompts)} in {source}: domains = {domains!r}, "
            f"split = {split!r}"
        )
    return kept


def _first_of_each_domain(prompts: Iterable[Prompt], limit: int) -> list[Prompt]:
    kept: list[Prompt] = []
    taken: dict[str, int] = {}
    for prompt in prompts:
        taken[prompt.domain] = taken.get(prompt.domain, 0) + 1
        if taken[prompt.domain] <= limit:
            kept.append(prompt)
    return kept


def _drop_repeats(prompts: Iterable[Prompt]) -> list[Prompt]:
    by_text: dict[str, Prompt] = {}
    ids: set[str] = set()
    repeats = 0
    for prompt in prompts:
        if prompt.text in by_text:
            repeats += 1
            continue
        if prompt.id in ids:
            unique = f"{prompt.id}-{_text_id(prompt.text)}"
            prompt = Prompt(unique, prompt.domain, prompt.text, prompt.language)
        ids.add(prompt.id)
        by_text[prompt.text] = prompt
    if repeats:
        _log.warning("dropped %d prompts whose text came before", repeats)
    return list(by_text.values())


def _parse(where: str, row: Mapping[str, Any], domain: str, field: str) -> Prompt:
    column = field if field in row else "prompt"
    text = row.get(column)
    if not isinstance(text, str) or not text.strip():
        what = f"{text!r} under {column!r}" if column in row else f"the fields {', '.join(row)}"
        raise ValueError(f"{where}: expected a text under {field!r} or 'prompt', got {what}")
    name = row.get("id")
    return Prompt(
        id=_text_id(text) if name is None else str(name),
        domain=str(row.get("domain") or domain),
        text=text,
        language=str(row.get("language") or "en"),
    )


def _text_id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rows(source: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield where a row stands, the row, and the domain it has unless it names one."""
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
