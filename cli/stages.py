"""The steps of a long run: each says what it did, and is not done again where it was done before."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..data.files import write_json
from ..spec import text_hash
from .report_data import Stage


class Stages:
    """Runs steps in order. A step is done when its record bears the key of its inputs.

    The key of a step includes those of the steps before it, so a change early on redoes all that
    depends on it.
    """

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder
        self._console = console
        self._key = ""
        self.done: list[Stage] = []

    def run(self, name: str, title: str, inputs: Any, work: Callable[[], str]) -> None:
        """Do a step unless it was done, and account for it.

        Args:
            inputs: all that the result depends on, besides earlier steps; put into JSON.
            work: does it and returns one line about the result; must leave files that whoever needs
                the result reads, since it is not called where the step was done.
        """
        self._key = text_hash(self._key + name + json.dumps(inputs, default=str))
        record = self._folder / f"{name}.json"
        number = len(self.done) + 1
        found = self._read(record)
        if found is None:
            self._console.print(f"[bold]{number}. {escape(title)}[/bold]", highlight=False)
            begun = time.perf_counter()
            summary = work()
            found = Stage(
                name=name, seconds=time.perf_counter() - begun, reused=False, summary=summary
            )
            self._write(record, found)
            self._console.print(f"   {escape(summary)}  [dim]{found.seconds:.0f} s[/dim]")
        else:
            self._console.print(
                f"[bold]{number}. {escape(title)}[/bold] [dim](done before)[/dim]\n"
                f"   {escape(found.summary)}"
            )
        self.done.append(found)

    def _read(self, record: Path) -> Stage | None:
        try:
            content = json.loads(record.read_bytes())
        except (OSError, ValueError):
            return None
        if content.get("key") != self._key:
            return None
        return Stage(
            name=record.stem,
            seconds=content["seconds"],
            reused=True,
            summary=content["summary"],
        )

    def _write(self, record: Path, stage: Stage) -> None:
        record.parent.mkdir(parents=True, exist_ok=True)
        content = {"key": self._key, "seconds": stage.seconds, "summary": stage.summary}
        write_json(record, content)
