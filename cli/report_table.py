"""The last words of `foredraft demo` and `foredraft compare` in the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .report_data import Arm, Comparison, Report
from .report_words import (
    arm_speedup,
    clean,
    domain_speedup,
    domains_of,
    drafting_arms,
    equal_outputs,
    figures,
    headline,
    share,
)

PLAIN_WIDTH = 100  # columns where the output is a file or a pipe, whose width nobody knows


def print_table(report: Report, console: Console) -> None:
    """Print the headline, the table of arms and, where measured, the speedups by domain."""
    width = console.width
    if not console.is_terminal:
        console.width = max(width, PLAIN_WIDTH)
    try:
        _print(report, console)
    finally:
        if not console.is_terminal:
            console.width = width


def _print(report: Report, console: Console) -> None:
    head = headline(report)
    console.print(Text(head.title, style="bold"))
    console.print(Text(head.detail))
    if head.equality:
        console.print(Text(head.equality, style="green" if head.exact else "bold red"))
    if report.comparison is None or not report.comparison.arms:
        console.print(Text("No arms were compared."))
        return
    console.print(_arms(report.comparison))
    if report.comparison.interval:
        console.print(Text(f"Intervals: {clean(report.comparison.interval)}.", style="dim"))
    rates = "α: accepted / tested. Rate: accepted / drafted. τ: tokens per target forward."
    console.print(Text(rates, style="dim"))
    if domains_of(report.comparison) and drafting_arms(report.comparison):
        console.print(_domains(report.comparison))


def _arms(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("arm", overflow="fold", min_width=8)
    for title in (
        "tokens/s", "speedup\n(low–high)", "α", "accept.\nrate", "τ", "draft\nms", "verify\nms",
        "outputs\nequal",
    ):  # fmt: skip
        table.add_column(title, justify="right", no_wrap=True)
    for arm in comparison.arms:
        table.add_row(*(Text(cell) for cell in _cells(arm)), style=_style(arm))
    return table


def _cells(arm: Arm) -> list[str]:
    return [
        clean(arm.name, 40),
        figures(arm.tokens_per_second),
        arm_speedup(arm),
        share(arm.acceptance_prob),
        share(arm.acceptance_rate),
        f"{arm.block_efficiency:.2f}",
        figures(arm.draft_ms),
        figures(arm.verify_ms),
        equal_outputs(arm.equal_outputs, arm.outputs),
    ]


def _domains(comparison: Comparison) -> Table:
    arms = drafting_arms(comparison)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="speedup by domain", title_justify="left")
    table.add_column("domain", overflow="fold", min_width=8)
    for arm in arms:
        table.add_column(Text(clean(arm.name, 24)), justify="right")
    for domain in domains_of(comparison):
        cells = (domain_speedup(arm, domain) for arm in arms)
        table.add_row(Text(clean(domain, 40)), *(Text(cell) for cell in cells))
    return table


def _style(arm: Arm) -> str:
    return "bold" if arm.gamma == "adaptive" else ""
