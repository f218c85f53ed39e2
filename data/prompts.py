"""Prompts: those shipped with the package, JSONL files, or any set that `datasets` loads.

A prompt's split follows from its text alone, so it never depends on which other prompts are loaded.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .sources import SHIPPED, source_rows

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
    prompts = _drop_repeats(_parse(*located, field) for located in source_rows(source))
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
