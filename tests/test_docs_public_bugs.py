"""docs/public_bugs.md lists each public bug of train and data with tests that are about it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "public_bugs.md").read_text(encoding="utf-8")
NUMBERS = (
    52, 53, 55, 56, 57, 58, 60, 61, 62, 63, 64, 65, 66, 68, 69, 70, 71, 72, 73, 74, 76, 77, 78, 79,
    80, 81, 84, 85,
)  # fmt: skip
ROWS = [f"B{number}" for number in NUMBERS]


def listed() -> dict[str, list[str]]:
    """Return the names of the test files of each row of the page."""
    found = re.findall(r"^\| (B\d+) \|.*\| ([^|]+) \|$", PAGE, flags=re.MULTILINE)
    return {row: names.split(", ") for row, names in found}


def about(path: Path) -> str:
    """Return the text of a file's tests: their names, what is said of them, and comments."""
    text = path.read_text(encoding="utf-8")
    tests = [
        part
        for part in ast.parse(text).body
        if isinstance(part, ast.FunctionDef) and part.name.startswith("test_")
    ]
    return "\n".join("\n".join(text.splitlines()[t.lineno - 1 : t.end_lineno]) for t in tests)


def test_each_row_is_listed_and_its_tests_are_about_it() -> None:
    assert list(listed()) == ROWS
    for row, names in listed().items():
        for name in names:
            said = about(TESTS / f"{name}.py")
            assert re.search(rf"\b{row}\b|_{row.lower()}_", said), f"{name} says nothing of {row}"
