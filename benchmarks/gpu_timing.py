"""Timing on a card or a CPU, stages with time limits of their own, and the report they fill."""

from __future__ import annotations

import json
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(
    function: Callable[[], object], device: torch.device, *, warm: int, repeats: int
) -> float:
    """Return the median time of a call, by events on a card, so that the host's own time shows only
    where it is the longer one."""
    for _ in range(warm):
        function()
    synchronize(device)
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (_event() for _ in range(2))
            begin.record()
            function()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            begun = time.perf_counter()
            function()
            times.append(time.perf_counter() - begun)
    return float(statistics.median(times))


class OutOfTime(Exception):
    """A stage took longer than it was given."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the block when its time is up. Main thread only; not on Windows."""

    def ring(*_: object) -> None:
        raise OutOfTime(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Report:
    """What the stages found: JSON on disk after each of them, markdown at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self.stages: dict[str, dict[str, Any]] = {}
        self.rows: list[tuple[str, str]] = []

    def run(self, name: str, limit: float, stage: Callable[[], dict[str, Any]]) -> None:
        """Run a stage within its limit; what it raises is recorded, and the next one has its turn."""
        begun = time.perf_counter()
        entry: dict[str, Any] = {}
        try:
            with time_limit(limit):
                entry["found"] = stage()
        except Exception as error:  # whatever it is, the other stages still count
            entry["failed"] = f"{type(error).__name__}: {error}"
            entry["where"] = traceback.format_exc().splitlines()[-12:]
            self.row(f"**{name} failed**", entry["failed"].splitlines()[0])
        entry["seconds"] = round(time.perf_counter() - begun, 2)
        self.stages[name] = entry
        print(
            f"[{name}: {entry['seconds']} s{', FAILED' if 'failed' in entry else ''}]", flush=True
        )
        self.save()

    def row(self, what: str, value: str) -> None:
        """Add a line to the table."""
        self.rows.append((what, value))

    @property
    def failed(self) -> list[str]:
        return [name for name, entry in self.stages.items() if "failed" in entry]

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"facts": self.facts, "stages": self.stages, "table": self.rows}
        self.path.write_text(json.dumps(content, indent=1, default=str) + "\n")

    def markdown(self) -> str:
        lines = [f"| {what} | {value} |" for what, value in self.rows]
        return "\n".join(["| what | value |", "|---|---|", *lines])


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
