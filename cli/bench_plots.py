"""The plots of a bench's page, one finding each; built inside `drawing_style`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .bench_data import PLAIN, BenchReport, Cell, VerifyCost
from .bench_words import CONTROLLERS, drafter_words, totals
from .report_svg import (
    ACCENT,
    INK,
    MUTED,
    NEUTRAL,
    PAPER,
    WARM,
    drawing_style,
    new_figure,
    svg_element,
)
from .report_words import clean

MOST_PANELS = 12  # histograms on one figure; the table has all
_LINES = ((ACCENT, "o"), (WARM, "s"), (NEUTRAL, "^"), (INK, "D"))


def bench_plots(report: BenchReport) -> list[dict[str, str]]:
    """Return the plots of each condition, in the report's order, as SVG elements by name."""
    with drawing_style():
        return [
            _condition(report, condition.name, f"c{place}")
            for place, condition in enumerate(report.conditions)
        ]


def _condition(report: BenchReport, condition: str, prefix: str) -> dict[str, str]:
    cells = totals(report, condition)
    drafting = [cell for cell in cells if cell.setting.policy != PLAIN]
    verify = [cost for cost in report.verify if cost.condition == condition]
    drawn: dict[str, tuple[Figure, str]] = {}
    if drafting:
        drawn["speedups"] = speedups(drafting), "speedup of every arm"
        drawn["lengths"] = accepted_lengths(drafting), "accepted lengths of every arm"
    if any(cell.itl_ms is not None for cell in cells):
        drawn["gaps"] = gaps(cells), "inter-token latency of every arm"
    if len({cost.tokens for cost in verify}) > 1:
        drawn["verify"] = verify_latency(verify), "verify latency by tokens"
    return {
        name: svg_element(figure, f"{prefix}-{name}", description)
        for name, (figure, description) in drawn.items()
    }


def speedups(cells: Sequence[Cell]) -> Figure:
    """Speedup of every arm with its interval, a panel a drafter."""

    def draw(axes: Any, place: int, cell: Cell, colour: str) -> None:
        low = cell.speedup if cell.speedup_low is None else cell.speedup_low
        high = cell.speedup if cell.speedup_high is None else cell.speedup_high
        axes.plot([low, high], [place, place], color=colour, linewidth=2.4, alpha=0.5)
        axes.plot(
            cell.speedup, place, color=colour, marker="o", markersize=8.5, zorder=3,
            markeredgecolor=PAPER, markeredgewidth=1,
        )  # fmt: skip
        axes.annotate(
            f"{cell.speedup:.2f}×", (cell.speedup, place), xytext=(0, 8), ha="center", color=INK,
            textcoords="offset points",
        )  # fmt: skip

    figure, panels = _panels(cells, draw, "speed, plain decoding = 1")
    for axes in panels:
        axes.axvline(1, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        axes.xaxis.set_major_formatter("{x:.1f}×")
    return figure


def gaps(cells: Sequence[Cell]) -> Figure:
    """Time between deliveries: median, 95 % and 99 % of every arm, plain decoding first."""

    def draw(axes: Any, place: int, cell: Cell, colour: str) -> None:
        values = (cell.itl_ms, cell.itl_p95_ms, cell.itl_p99_ms)
        known = [value for value in values if value is not None]
        axes.plot(
            [min(known, default=0), max(known, default=0)], [place] * 2, color=colour, alpha=0.5
        )
        for value, marker in zip(values, "o|d", strict=True):
            if value is not None:
                axes.plot(value, place, color=colour, marker=marker, markersize=8, zorder=3)

    figure, _ = _panels(cells, draw, "ms between deliveries")
    return figure


def verify_latency(costs: Sequence[VerifyCost]) -> Figure:
    """A target forward over the number of tokens in it, a line a bucket of the context."""
    figure = new_figure(250)
    axes = figure.add_subplot()
    buckets = sorted({(cost.context_low, cost.context_high) for cost in costs})
    for order, bucket in enumerate(buckets):
        own = sorted(
            (cost.tokens, cost.ms)
            for cost in costs
            if (cost.context_low, cost.context_high) == bucket
        )
        colour, marker = _LINES[order % len(_LINES)]
        label = f"context {bucket[0]}–{bucket[1] - 1}"
        axes.plot(*zip(*own, strict=True), color=colour, marker=marker, markersize=5, label=label)
    axes.set_ylim(0, 1.1 * max(cost.ms for cost in costs))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("tokens in the target's forward (γ + 1)")
    axes.set_ylabel("ms")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, ncols=2)
    return figure


def accepted_lengths(cells: Sequence[Cell]) -> Figure:
    """Share of rounds by how many drafted tokens were accepted, one panel an arm, one scale."""
    shown = [cell for cell in cells if cell.accepted_lengths][:MOST_PANELS]
    rows = max(1, (len(shown) + 1) // 2)
    figure = new_figure(56 + 130 * rows)
    panels = list(figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).flat)
    label = _labels(cells)
    for axes, cell in zip(panels, shown, strict=False):
        total = sum(cell.accepted_lengths.values())
        lengths = sorted(cell.accepted_lengths)
        shares = [cell.accepted_lengths[length] / total for length in lengths]
        axes.bar(lengths, shares, width=0.76, color=_colour(cell))
        drafter = clean(drafter_words(cell.setting.drafter), 20)
        axes.set_title(f"{drafter}\n{label(cell)}", color=INK, fontsize=10.5)
        axes.grid(visible=False, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("drafted tokens accepted in a round", color=MUTED, fontsize=12)
    return figure


def _panels(
    cells: Sequence[Cell], draw: Callable[[Any, int, Cell, str], None], title: str
) -> tuple[Figure, list[Any]]:
    """Return a figure with a panel a drafter and a line an arm, on one scale."""
    drafters = list(dict.fromkeys(cell.setting.drafter for cell in cells))
    own = [[cell for cell in cells if cell.setting.drafter == name] for name in drafters]
    counts = [len(group) for group in own]
    figure = new_figure(50 + 36 * len(drafters) + 33 * sum(counts))
    panels = figure.subplots(
        len(drafters), 1, sharex=True, squeeze=False, height_ratios=[n + 0.4 for n in counts]
    )
    label = _labels(cells)
    for axes, name, group in zip(panels.flat, drafters, own, strict=True):
        for place, cell in enumerate(group):
            draw(axes, place, cell, _colour(cell))
        shown = PLAIN if name == "none" else drafter_words(name)
        axes.set_title(clean(shown, 44), color=INK)
        axes.set_yticks(range(len(group)), [label(cell) for cell in group], color=INK)
        axes.set_ylim(len(group) - 0.5, -0.75)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    panels.flat[-1].set_xlabel(title)
    return figure, list(panels.flat)


def _labels(cells: Sequence[Cell]) -> Callable[[Cell], str]:
    """Return how to call an arm beside others: its policy, and what else differs among the cells."""
    settings = [cell.setting for cell in cells]

    def label(cell: Cell) -> str:
        own = cell.setting
        parts = ["γ = 0" if own.policy == PLAIN else own.policy]
        if len({setting.prompt_tokens for setting in settings}) > 1:
            parts.append(f"{own.prompt_tokens} in")
        if len({setting.max_tokens for setting in settings}) > 1:
            parts.append(f"{own.max_tokens} out")
        if len({setting.rows for setting in settings}) > 1:
            parts.append(f"batch {own.rows}")
        if len({setting.temperature for setting in settings}) > 1:
            parts.append(f"T {own.temperature:g}")
        if len({setting.domain for setting in settings}) > 1:
            parts.append(clean(own.domain, 10))
        return ", ".join(parts)

    return label


def _colour(cell: Cell) -> str:
    return ACCENT if cell.setting.policy in CONTROLLERS else NEUTRAL
