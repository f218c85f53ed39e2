"""Progress is shown with and without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from foredraft.cli import bar


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar, "SECONDS", 0.0)
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with bar.Bar(console) as update:
        update(3, 24, "9 tokens")
    assert "3/24" in out.getvalue()
    assert "9 tokens" in out.getvalue()


def test_lines_without_a_terminal_are_few() -> None:
    out = io.StringIO()
    with bar.Bar(Console(file=out, force_terminal=False)) as update:
        for done in range(1000):
            update(done, 1000, "")
    assert out.getvalue() == ""  # within the first half minute
