"""Files that an interruption or a full disk leaves whole: replaced at once or grown by groups.

A group of JSON lines is appended in full or not at all. Each line names its group and the group's
size, so that one cut off by a killed process is found, and dropped, on the next start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_GROUP = "group"  # key of [name, number of lines]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which takes the place of `path` if the block succeeds."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file; a reader sees the old content or the new, never a part."""
    with replacing(path) as part, part.open("wb") as file:
        file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a file of JSON lines; a reader sees the old content or the new, never a part."""
    with replacing(path) as part, part.open("wb") as file:
        for row in rows:
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def append_group(path: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append one line per row and wait until the disk has them; on any failure take them back.

    Raises:
        OSError: such as a full disk; the file is then as before.
    """
    lines = [json.dumps({_GROUP: [name, len(rows)], **row}, ensure_ascii=False) for row in rows]
    data = "".join(line + "\n" for line in lines).encode()
    # Unbuffered: what a buffer could not flush it would write again, in part, on closing.
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            _write_all(file, data)
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def _write_all(file: Any, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]  # a nearly full disk may take a part


def read_groups(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where a row stands and the row, of whole groups only.

    Raises:
        ValueError: if a line other than one cut off at the end is broken; names file and line.
    """
    end = _whole_length(path)
    for where, stop, _, row in _lines(path):
        if stop > end:
            return
        yield where, row


def drop_cut_group(path: Path) -> None:
    """Shorten the file by what was cut off at its end: half a line, lines of an unfinished group.

    Raises:
        ValueError: as `read_groups`; the file is then left alone.
    """
    end = _whole_length(path)
    if path.is_file() and path.stat().st_size > end:
        os.truncate(path, end)


def _whole_length(path: Path) -> int:
    """Return the bytes up to the end of the last whole group."""
    begin = end = count = 0
    group: tuple[str, int] = ("", 0)
    for _, stop, found, _ in _lines(path):
        if found != group:
            begin, count, group = end, 0, found
        count, end = count + 1, stop
    return end if count >= group[1] else begin


def _lines(path: Path) -> Iterator[tuple[str, int, tuple[str, int], dict[str, Any]]]:
    """Yield where a line stands, the offset of its end, its group and its row."""
    if not path.is_file():
        return
    stop = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # cut off while it was written
            stop += len(line)
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
                name, size = row.pop(_GROUP)
                yield where, stop, (str(name), int(size)), row
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{where}: not a row as it was written: {error!r}") from error
