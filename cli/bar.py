"""A progress bar for steps that take minutes."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """A progress bar as a context: entering gives a function (done, wanted, note)."""

    def __init__(self, console: Console) -> None:
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
        self._progress.start()
        task = self._progress.add_task("", total=None)

        def update(done: int, wanted: int, note: str) -> None:
            self._progress.update(task, completed=done, total=wanted, description=note)

        return update

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
