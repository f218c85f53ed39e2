"""Progress of steps that take minutes: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS = 30.0  # between two lines where there is no terminal


class Bar:
    """Shows progress as a context: entering gives a function (done, wanted, note)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("  "),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} {task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def __enter__(self) -> Callable[[int, int, str], None]:
        return self._bar() if self._console.is_terminal else self._lines()

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def _bar(self) -> Callable[[int, int, str], None]:
        self._progress.start()
        task = self._progress.add_task("", total=None)

        def update(done: int, wanted: int, note: str) -> None:
            self._progress.update(task, completed=done, total=wanted, description=note)

        return update

    def _lines(self) -> Callable[[int, int, str], None]:
        begun = shown = time.monotonic()

        def update(done: int, wanted: int, note: str) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= SECONDS:
                shown = now
                self._console.print(f"   {done}/{wanted} {note} {now - begun:.0f} s".rstrip())

        return update
