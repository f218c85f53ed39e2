"""Writes a bench: `bench.json`, `bench.parquet`, and `bench.html` that shows it and loads nothing."""

from __future__ import annotations

from pathlib import Path

from ..data.files import replacing
from .bench_columns import write_table
from .bench_data import ALL, PLAIN, BenchReport, Cell
from .bench_law import FALSE_ALARM
from .bench_losing import FLOOR
from .bench_script import DIGEST, SCRIPT, SORT_STYLE
from .bench_template import TEMPLATE
from .bench_words import (
    CONTROLLERS,
    arm_words,
    best_cell,
    cell_speedup,
    drafter_words,
    equality_words,
    exact,
    floor_words,
    refused,
    totals,
    varied_words,
)
from .report_style import STYLE
from .report_words import clean, figures, large, share, short_name

JSON_FILE, HTML_FILE, PARQUET_FILE = "bench.json", "bench.html", "bench.parquet"


def write_bench(report: BenchReport, folder: Path) -> Path:
    """Write the three files into the folder; older ones stay whole until they are replaced.

    Returns:
        The path of bench.html.
    """
    page = render_bench(report)  # before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((JSON_FILE, report.to_json()), (HTML_FILE, page)):
        with replacing(folder / name) as part:
            part.write_text(text, encoding="utf-8")
    write_table(report, folder / PARQUET_FILE)
    return folder / HTML_FILE


def render_bench(report: BenchReport) -> str:
    """Return the page as one self-contained text."""
    # Not at import: `foredraft --help` does without.
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from .bench_plots import bench_plots

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        filter_.__name__: filter_
        for filter_ in (
            arm_words, cell_speedup, clean, drafter_words, equality_words, exact, figures, floor_words,
            large, refused, share, short_name, varied_words,
        )
    }  # fmt: skip
    names = [condition.name for condition in report.conditions]
    drafting = [cell for cell in report.cells if cell.setting.policy != PLAIN]
    totalled = [cell for name in names for cell in totals(report, name)]
    kept = [floor_words(cell) for cell in totalled if cell.setting.policy != PLAIN]
    title, detail = headline(report)
    return environment.from_string(TEMPLATE).render(
        r=report,
        title=title,
        detail=detail,
        best=best_cell(report),
        kept=f"{kept.count('keeps up')}/{len(kept)}",
        wrong=sum(not exact(cell) for cell in drafting),
        compared=len(drafting),
        by_condition=[totals(report, name) for name in names],
        each_domain=[_each_domain(report, name) for name in names],
        has_totals=[
            any(cell.setting.domain == ALL for cell in totals(report, name)) for name in names
        ],
        domain_names=[
            sorted({cell.setting.domain for cell in _each_domain(report, name)}) for name in names
        ],
        memory=_once_an_arm(totalled),
        abouts=sorted({(arm_words(cell.setting), cell.about) for cell in report.cells}),
        megabytes=lambda count: f"{count / 1e6:,.1f}",
        controllers=CONTROLLERS,
        floor=FLOOR,
        alarms=f"{1 / FALSE_ALARM:,.0f}",
        digest=DIGEST,
        script=Markup(SCRIPT),
        style=Markup(STYLE + SORT_STYLE),
        plots=[{name: Markup(svg) for name, svg in plots.items()} for plots in bench_plots(report)],
    )


def headline(report: BenchReport) -> tuple[str, str]:
    """Return the finding, in words no stronger than its interval allows, and what it is about."""
    name, best = short_name(report.target.name), best_cell(report)
    where = f"{name}, {report.settings['dtype']} on {clean(report.machine.cpu)}"
    if best is None:
        return f"{name}: no drafter was measured", where
    arm = arm_words(best.setting)
    if best.speedup_low is None or best.speedup_high is None:
        return f"{arm}: {best.speedup:.2f}× plain decoding on one prompt", f"{where}. No interval."
    interval = f"{where}; interval {best.speedup_low:.2f}–{best.speedup_high:.2f}."
    if round(best.speedup_low, 2) > 1:  # as it is shown
        return f"{arm} decodes {best.speedup:.2f}× as fast as plain decoding", interval
    if round(best.speedup_high, 2) < 1:
        return f"Nothing here is faster than plain decoding: at best {best.speedup:.2f}×", interval
    return f"The fastest, {arm}, and plain decoding are equally fast as far as measured", interval


def _each_domain(report: BenchReport, condition: str) -> list[Cell]:
    return [
        cell
        for cell in report.cells
        if cell.setting.condition == condition and cell.setting.domain != ALL
    ]


def _once_an_arm(cells: list[Cell]) -> list[Cell]:
    """Return of each arm of each condition the cell that took most memory."""
    most: dict[tuple[str, str, str], Cell] = {}
    for cell in cells:
        key = (cell.setting.condition, cell.setting.drafter, cell.setting.policy)
        if key not in most or cell.peak_bytes > most[key].peak_bytes:
            most[key] = cell
    return list(most.values())
