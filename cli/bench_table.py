"""The last words of `foredraft bench` in the terminal: a table a condition."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .bench_data import PLAIN, BenchReport, Cell
from .bench_law import FALSE_ALARM
from .bench_losing import FLOOR
from .bench_words import (
    arm_words,
    cell_speedup,
    drafter_words,
    equality_words,
    exact,
    floor_words,
    refused,
    totals,
    varied_words,
)
from .report_words import clean, figures, share

PLAIN_WIDTH = 150  # columns where the output is a file or a pipe


def print_bench(report: BenchReport, console: Console) -> None:
    """Print each condition's arms over all domains, and what was refused."""
    if not console.is_terminal:
        console.width = max(console.width, PLAIN_WIDTH)
    for condition in report.conditions:
        console.print(Text(condition.name, style="bold"))
        console.print(Text(condition.about, style="dim"))
        by_setting: dict[str, list[Cell]] = {}
        for cell in totals(report, condition.name):
            by_setting.setdefault(varied_words(cell.setting), []).append(cell)
        for words, cells in by_setting.items():
            console.print(_table(cells, words))
        for refusal in report.refusals:
            if refusal.condition == condition.name:
                policy = "" if refusal.policy is None else f", {refusal.policy}"
                line = (
                    f"not run: {drafter_words(refusal.drafter)}{policy}: {refused(refusal.reason)}"
                )
                console.print(Text(line, style="yellow"))
    if report.blocks < report.wanted:
        console.print(
            f"{report.blocks} of {report.wanted} blocks are measured; run it again to go on"
        )
    console.print(
        Text(
            "Speedup: seconds per token of plain decoding over the arm's, prompts not read in them; 95 % by "
            f"bootstrap over prompts, paired. {FLOOR}×: does the arm keep that much of plain decoding's "
            f"speed? Sampled outputs: the law is tested, false alarms at most {FALSE_ALARM:g} an arm.",
            style="dim",
        )
    )


def _table(cells: list[Cell], title: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    several = len({cell.setting.domain for cell in cells}) > 1
    table.add_column("arm", overflow="fold", min_width=24)
    if several:
        table.add_column("domain", overflow="fold", min_width=8)
    for title in (
        "tok/s", "speedup\n(low–high)", f"{FLOOR}×", "α", "rate", "τ", "draft\nms", "verify\nms",
        "TTFT\nms", "ITL ms\n50/95/99 %", "peak\nMB", "outputs\nequal",
    ):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
    for cell in cells:
        style = "" if exact(cell) else "bold red"
        arm, *rest = _row(cell)
        row = [arm, clean(cell.setting.domain, 20), *rest] if several else [arm, *rest]
        table.add_row(*(Text(text) for text in row), style=style)
    return table


def _row(cell: Cell) -> list[str]:
    gaps = (cell.itl_ms, cell.itl_p95_ms, cell.itl_p99_ms)
    return [
        arm_words(cell.setting),
        figures(cell.tokens_per_second),
        cell_speedup(cell),
        floor_words(cell),
        share(cell.acceptance_prob),
        share(cell.acceptance_rate),
        f"{cell.block_efficiency:.2f}",
        figures(cell.draft_ms),
        figures(cell.verify_ms),
        figures(cell.ttft_ms),
        "/".join(figures(gap) for gap in gaps),
        f"{cell.peak_bytes / 1e6:,.0f}",
        "" if cell.setting.policy == PLAIN else equality_words(cell),
    ]
