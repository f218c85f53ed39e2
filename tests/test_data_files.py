"""Files that survive a full disk and a killed process."""

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.data import files
from foredraft.data.files import append_group, drop_cut_group, read_groups, replacing, write_json

GROUPS: dict[str, list[dict[str, Any]]] = {
    "first": [{"x": 1}, {"x": "zwei\n\u2028"}],
    "second": [{"x": 3}, {"x": 4}, {"x": 5}],
}


def write_groups(path: Path) -> int:
    """Return the size after the first group."""
    append_group(path, "first", GROUPS["first"])
    size = path.stat().st_size
    append_group(path, "second", GROUPS["second"])
    return size


def rows(path: Path) -> list[Any]:
    return [row["x"] for _, row in read_groups(path)]


def test_groups_read_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert rows(path) == []
    write_groups(path)
    assert rows(path) == [1, "zwei\n\u2028", 3, 4, 5]


def test_a_file_cut_anywhere_keeps_its_whole_groups(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = write_groups(path)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        kept = 0 if size < first else first if size < len(whole) else len(whole)
        assert rows(path) == [1, "zwei\n\u2028", 3, 4, 5][: {0: 0, first: 2}.get(kept, 5)]
        drop_cut_group(path)
        assert path.read_bytes() == whole[:kept]
    path.write_bytes(whole[:first] + bytes(40))  # zeros, as some file systems leave after a crash
    drop_cut_group(path)
    assert path.read_bytes() == whole[:first]


def test_a_full_disk_takes_back_the_part_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    append_group(path, "first", GROUPS["first"])
    before = path.read_bytes()

    def fill_up(file: Any, data: bytes) -> None:
        file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_all", fill_up)
    with pytest.raises(OSError, match="No space left"):
        append_group(path, "second", GROUPS["second"])
    assert path.read_bytes() == before


def test_a_write_in_parts_is_whole(tmp_path: Path) -> None:
    class Slow:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: memoryview) -> int:
            self.data += bytes(data[:3])
            return min(3, len(data))

    slow = Slow()
    files._write_all(slow, b"seven bytes and more")
    assert slow.data == b"seven bytes and more"


def test_a_broken_line_in_the_middle_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_groups(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for broken in (b"{]\n", b"[]\n", b'{"x": 1}\n'):
        path.write_bytes(lines[0] + broken + b"".join(lines[2:]))
        before = path.read_bytes()
        with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: not a row"):
            drop_cut_group(path)
        with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: not a row"):
            rows(path)
        assert path.read_bytes() == before


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_json(path, {"a": "é"})

    def write_half() -> None:
        with replacing(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "é"}
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]
