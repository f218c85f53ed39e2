"""What a corpus folder holds: `rows.jsonl`, grown by whole shards, and `manifest.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .config import CorpusConfig
from .files import read_groups, write_json
from .manifests import MANIFEST_FILE, load_manifest, refuse_other_origin
from .prompts import SPLITS

ROWS_FILE = "rows.jsonl"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusRow:
    """One prompt and what the target answered."""

    id: str  # hash of all that the answer depends on
    prompt_id: str
    domain: str
    split: str
    prompt_ids: list[int]
    response_ids: list[int]  # the end token included, where there is one
    text: str  # of the response, without special tokens
    finish_reason: str  # "stop": it ended by itself; "length": it was cut
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusManifest:
    """What a corpus was made of and what is in it."""

    target: str
    target_fingerprint: str
    tokenizer_hash: str
    config: CorpusConfig
    complete: bool  # whether the last call that wrote to it got to its end
    rows: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    finish_reasons: dict[str, int] = field(default_factory=dict)  # -> rows
    domains: dict[str, int] = field(default_factory=dict)  # -> rows
    versions: dict[str, str] = field(default_factory=dict)  # of the libraries that decoded
    recommended: dict[str, bool | int | float] = field(
        default_factory=dict
    )  # by the target's makers
    schema: int = SCHEMA

    def save(self, folder: str | Path) -> None:
        """Write `manifest.json`."""
        write_json(Path(folder) / MANIFEST_FILE, asdict(self))

    @classmethod
    def load(cls, folder: str | Path) -> CorpusManifest:
        """Return what the folder's manifest says.

        Raises:
            ValueError: if there is none, or it is broken or of another schema.
        """

        def make(content: dict[str, Any]) -> CorpusManifest:
            return cls(**(content | {"config": CorpusConfig(**content["config"])}))

        return load_manifest(folder, make, schema=SCHEMA, what="a corpus")


def read_corpus(
    folder: str | Path, *, split: str | None = None, complete_only: bool = True
) -> list[CorpusRow]:
    """Return the rows of a corpus, finished or not, in the order of writing.

    Args:
        split: keep "train", "dev" or "test" only.
        complete_only: drop answers that were cut at `max_new_tokens`: a draft trained on them
            learns never to end.

    Raises:
        ValueError: if the folder holds no corpus, a row is broken, or no row is left.
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    folder = Path(folder)
    manifest = CorpusManifest.load(folder)
    rows = [row for row in read_rows(folder / ROWS_FILE) if split in (None, row.split)]
    whole = [row for row in rows if row.finish_reason == "stop" or not complete_only]
    if rows and not whole:
        raise ValueError(
            f"{folder}: all {len(rows)} rows with split = {split!r} were cut at max_new_tokens = "
            f"{manifest.config.max_new_tokens}; raise it, or pass complete_only=False"
        )
    if not whole:
        raise ValueError(f"{folder}: the corpus has no rows with split = {split!r}")
    return whole


def check_same_origin(folder: Path, wanted: CorpusManifest) -> None:
    """Refuse a folder whose rows were made otherwise than ours will be."""
    if not (folder / MANIFEST_FILE).is_file():
        if (folder / ROWS_FILE).exists():
            raise ValueError(
                f"folder: {folder} has {ROWS_FILE} but no {MANIFEST_FILE}; not a corpus"
            )
        return
    found = CorpusManifest.load(folder)
    pairs = [
        (name, getattr(found, name), getattr(wanted, name))
        for name in ("target_fingerprint", "tokenizer_hash")
    ]
    pairs += [
        (f"config.{f.name}", getattr(found.config, f.name), getattr(wanted.config, f.name))
        for f in fields(CorpusConfig)
    ]
    refuse_other_origin(folder, pairs, what="a corpus")


def read_rows(path: Path) -> Iterator[CorpusRow]:
    for where, content in read_groups(path):
        try:
            yield CorpusRow(**content)
        except TypeError as error:
            raise ValueError(f"{where}: not a row of this version: {error}") from error


def counted(manifest: CorpusManifest, path: Path, *, complete: bool) -> CorpusManifest:
    """Return the manifest with the counts of what the file holds now."""
    reasons, domains, tokens = Counter[str](), Counter[str](), [0, 0]
    for row in read_rows(path):
        reasons[row.finish_reason] += 1
        domains[row.domain] += 1
        tokens[0] += len(row.prompt_ids)
        tokens[1] += len(row.response_ids)
    return replace(
        manifest,
        complete=complete,
        rows=reasons.total(),
        prompt_tokens=tokens[0],
        response_tokens=tokens[1],
        finish_reasons=dict(sorted(reasons.items())),
        domains=dict(sorted(domains.items())),
    )
