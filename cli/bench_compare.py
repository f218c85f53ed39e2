"""Two bench.json beside each other: which speedups moved further than their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .bench_data import ALL, PLAIN, BenchReport, Cell
from .bench_words import setting_words
from .report_words import share, speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One cell in both files."""

    before: Cell
    after: Cell

    @property
    def verdict(self) -> str:
        """Return "faster" or "slower" where the intervals of the speedups are apart, else "as before"."""
        a, b = self.before, self.after
        if a.speedup_low is None or b.speedup_low is None:
            return "one prompt: no interval"
        assert a.speedup_high is not None
        assert b.speedup_high is not None
        if b.speedup_low > a.speedup_high:
            return "faster"
        return "slower" if b.speedup_high < a.speedup_low else "as before"


def read_bench(path: str) -> BenchReport:
    """Return the report of a bench.json.

    Raises:
        ValueError: naming the file, if it is none.
    """
    try:
        return BenchReport.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"compare: {path} cannot be read: {error}") from error


def changes(before: BenchReport, after: BenchReport) -> list[Change]:
    """Return the cells that both have, plain decoding left out."""
    old = {cell.setting: cell for cell in before.cells}
    return [
        Change(before=old[cell.setting], after=cell)
        for cell in after.cells
        if cell.setting in old and cell.setting.policy != PLAIN
    ]


def differences(before: BenchReport, after: BenchReport) -> list[str]:
    """Return what differs in where and with what the two were measured, a line each."""
    lines = []
    for name in ("machine", "versions", "target", "commit"):
        a, b = getattr(before, name), getattr(after, name)
        if a != b:
            lines.append(f"{name}: {a} | {b}")
    return lines


def print_comparison(before: BenchReport, after: BenchReport, console: Console) -> None:
    """Print the cells that both reports have, and what else differs.

    Raises:
        ValueError: if they have none in common.
    """
    found = changes(before, after)
    if not found:
        raise ValueError("compare: the two files have no cell in common")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting", overflow="fold")
    for title in ("speedup before", "after", "α before", "after", "verdict"):
        table.add_column(title, justify="right")
    domains = {change.after.setting.domain for change in found}
    for change in found:
        setting = change.after.setting
        if ALL in domains and setting.domain != ALL and len(domains) > 6:
            continue
        a, b = change.before, change.after
        cells = (
            setting_words(setting),
            speedup(a.speedup, a.speedup_low, a.speedup_high),
            speedup(b.speedup, b.speedup_low, b.speedup_high),
            share(a.acceptance_prob),
            share(b.acceptance_prob),
            change.verdict,
        )
        table.add_row(*(Text(cell) for cell in cells))
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(table)
    missing = len(before.cells) + len(after.cells) - 2 * len(found)
    missing -= sum(cell.setting.policy == PLAIN for r in (before, after) for cell in r.cells)
    if missing:
        console.print(f"{missing} cells are in one of the files only")
    for line in differences(before, after):
        console.print(Text(f"differs: {line}", style="yellow"))
    console.print(
        Text(
            "Speedups are ratios within each run, so they compare across runs; tokens per second do not.",
            style="dim",
        )
    )
