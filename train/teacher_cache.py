"""A teacher's cut laws on disk: one pass of the target over the examples, then none.

Shards are written whole, flushed, and then named in an index with their checksum, so that an interrupted pass
resumes where it was. A row is found by a hash of its tokens and of which are supervised: other data, or the
same data cut otherwise, are other rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ..data.files import append_group, drop_cut_group, read_groups, replacing, write_json
from ..data.manifests import load_manifest, refuse_other_origin
from ..spec import text_hash
from .batches import Example
from .heads import divided
from .teacher import Teacher
from .topk import TopK, top_k

SHARD_TOKENS = 32_768
SCHEMA = 1
_SHIFT = 1 << 15  # ids below 2^16 are kept in int16, less so much
_MANIFEST = "manifest.json"


class CacheOrigin(NamedTuple):
    """What a cache is bound to."""

    target_fingerprint: str
    width: int  # V, tokens of the target's law
    top_k: int
    temperature: float

    @property
    def token_bytes(self) -> int:
        """Bytes a supervised token takes: a float16 and an id for each of its k tokens, and two sums."""
        return min(self.top_k, self.width) * (2 + (2 if self.width <= 2 * _SHIFT else 4)) + 8


def example_key(example: Example) -> str:
    """Return a hash of an example's tokens and of which of them are supervised."""
    return text_hash(f"{example.tokens.tolist()} {example.positions.tolist()}")


def write_teacher_cache(
    folder: str | Path,
    teacher: Teacher,
    examples: Sequence[Example],
    origin: CacheOrigin,
    *,
    part: int = 0,
    parts: int = 1,
    chunk_tokens: int = 1024,
    progress: Callable[[int, int], None] = lambda done, wanted: None,
) -> None:
    """Add the laws of the examples that the folder lacks.

    Args:
        part, parts: this process writes share `part` of so many.
        chunk_tokens: tokens whose logits exist at the same time.
        progress: told (supervised tokens written by this call, wanted) after each shard.

    Raises:
        ValueError: if the folder holds a cache of another origin or a broken one, or the disk lacks the
            room for all that is missing, which is known before anything is written.
    """
    folder = Path(folder)
    _check_origin(folder, origin)
    there = {key for shard in _shards(folder) for key, _ in shard.rows}
    missing = [example for example in examples if example_key(example) not in there]
    _check_room(folder, sum(example.supervised for example in missing) * origin.token_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    if part == 0:
        write_json(folder / _MANIFEST, origin._asdict() | {"schema": SCHEMA})
    index = folder / f"index-{part}.jsonl"
    drop_cut_group(index)
    # By a hash: what another process has written by now changes nothing.
    mine = [one for one in missing if int(example_key(one), 16) % parts == part]
    done, wanted = 0, sum(example.supervised for example in mine)
    for shard in _cut(mine):
        laws = [_law(teacher, example, origin, chunk_tokens) for example in shard]
        _write_shard(folder, index, shard, laws, origin)
        done += sum(example.supervised for example in shard)
        progress(done, wanted)


class TeacherCache:
    """The laws in a folder, read from disk when asked for."""

    def __init__(self, folder: str | Path, origin: CacheOrigin) -> None:
        """Find them and check every shard against its checksum.

        Raises:
            ValueError: if the folder holds none, one of another origin, or a broken shard; names the file.
        """
        self._folder = Path(folder)
        if not (self._folder / _MANIFEST).is_file():
            raise ValueError(f"folder: {folder} holds no teacher cache: it has no {_MANIFEST}")
        _check_origin(self._folder, origin)
        self._places: dict[str, tuple[Any, int, int]] = {}  # key -> open shard, first token, end
        for shard in _shards(self._folder):
            path = self._folder / shard.file
            if _checksum(path) != shard.sha256:
                raise ValueError(
                    f"{path} is broken: its checksum is not that of the index; delete it, and its "
                    "rows are computed anew"
                )
            opened = safe_open(path, framework="pt")
            first = 0
            for key, size in shard.rows:
                self._places[key] = (opened, first, first + size)
                first += size

    def __contains__(self, example: Example) -> bool:
        return example_key(example) in self._places

    def laws(self, examples: Sequence[Example]) -> TopK:
        """Return the laws at the supervised positions, example by example, on the CPU.

        Raises:
            ValueError: if one is not in the cache.
        """
        parts = [self._law(example) for example in examples]
        return TopK(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def _law(self, example: Example) -> TopK:
        key = example_key(example)
        if key not in self._places:
            raise ValueError(f"{self._folder}: the teacher cache has no row {key}")
        shard, first, end = self._places[key]
        laws = TopK(*(shard.get_slice(name)[first:end] for name in TopK._fields))
        shift = _SHIFT if laws.tokens.dtype == torch.int16 else 0
        return laws._replace(tokens=laws.tokens.long() + shift)


class _Shard(NamedTuple):
    file: str
    sha256: str
    rows: list[list[Any]]  # [key, supervised tokens] each, in the order of its tensors


def _shards(folder: Path) -> Iterator[_Shard]:
    """Yield what the indices name, less what somebody deleted."""
    for index in sorted(folder.glob("index-*.jsonl")):
        for where, row in read_groups(index):
            try:
                shard = _Shard(**row)
            except TypeError as error:
                raise ValueError(f"{where}: not a shard of this version: {error}") from error
            if (folder / shard.file).is_file():
                yield shard


def _check_origin(folder: Path, origin: CacheOrigin) -> None:
    if not (folder / _MANIFEST).is_file():
        return
    names = CacheOrigin._fields

    def make(content: dict[str, Any]) -> CacheOrigin:
        return CacheOrigin(**{name: content[name] for name in names})

    found = load_manifest(folder, make, schema=SCHEMA, what="a teacher cache")
    pairs = zip(names, found, origin, strict=True)
    refuse_other_origin(folder, pairs, what="a teacher cache")


def _check_room(folder: Path, size: int) -> None:
    """Raise where the disk has not that many bytes, and a twentieth more for names and file systems."""
    there = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    free = shutil.disk_usage(there).free
    if size * 1.05 > free:
        raise ValueError(
            f"folder: {folder} needs {size / 1e9:.3g} GB for the teacher cache, {free / 1e9:.3g} GB "
            "are free; take fewer likeliest tokens, or another disk"
        )


def _cut(examples: Sequence[Example]) -> Iterator[list[Example]]:
    """Yield examples in parts of about SHARD_TOKENS supervised tokens."""
    part: list[Example] = []
    for example in examples:
        part.append(example)
        if sum(one.supervised for one in part) >= SHARD_TOKENS:
            yield part
            part = []
    if part:
        yield part


@torch.no_grad()
def _law(teacher: Teacher, example: Example, origin: CacheOrigin, chunk_tokens: int) -> TopK:
    parts = [
        top_k(divided(teacher.logits(states), origin.temperature), origin.top_k)
        for states in torch.split(teacher.hidden([example]), chunk_tokens)
    ]
    return TopK(*(torch.cat(tensors).cpu() for tensors in zip(*parts, strict=True)))


def _write_shard(
    folder: Path, index: Path, examples: list[Example], laws: list[TopK], origin: CacheOrigin
) -> None:
    """Write a shard, wait until the disk has it, and name it in the index."""
    joined = TopK(*(torch.cat(tensors) for tensors in zip(*laws, strict=True)))
    small = origin.width <= 2 * _SHIFT
    ids = (joined.tokens - _SHIFT).to(torch.int16) if small else joined.tokens.to(torch.int32)
    rows = [[example_key(example), example.supervised] for example in examples]
    path = folder / f"laws-{text_hash(json.dumps(rows))}.safetensors"
    with replacing(path) as pending:
        save_file(joined._replace(tokens=ids)._asdict(), pending)
        with pending.open("rb+") as file:
            os.fsync(file.fileno())
        digest = _checksum(pending)
    append_group(index, path.stem, [{"file": path.name, "sha256": digest, "rows": rows}])


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
