"""Writes the report of a run: `report.json`, and `report.html` that shows it and loads nothing."""

from __future__ import annotations

from pathlib import Path

from ..data.files import replacing
from .report_data import Report
from .report_style import STYLE
from .report_template import TEMPLATE
from .report_words import (
    arm_speedup,
    clean,
    domain_speedup,
    domains_of,
    drafting_arms,
    duration,
    equal_outputs,
    figures,
    headline,
    large,
    leading_arm,
    percent,
    share,
    short_name,
)

JSON_FILE = "report.json"
HTML_FILE = "report.html"


def write_report(report: Report, folder: str | Path) -> Path:
    """Write both files into the folder; an older report stays whole until it is replaced.

    Returns:
        The path of report.html.
    """
    folder = Path(folder)
    page = render_html(report)  # before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((JSON_FILE, report.to_json()), (HTML_FILE, page)):
        with replacing(folder / name) as part:
            part.write_text(text, encoding="utf-8")
    return folder / HTML_FILE


def render_html(report: Report) -> str:
    """Return the page as one self-contained text."""
    # Not at import: `foredraft --help` does without.
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from .report_plots import plot_elements

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        filter_.__name__: filter_
        for filter_ in (
            arm_speedup, clean, domain_speedup, duration, figures, large, percent, share,
            short_name,
        )
    }  # fmt: skip
    environment.filters["rows_by_domain"] = _rows_by_domain
    comparison = report.comparison
    drafting = [] if comparison is None else drafting_arms(comparison)
    plain = [] if comparison is None else [arm for arm in comparison.arms if arm.gamma == 0]
    return environment.from_string(TEMPLATE).render(
        r=report,
        c=comparison,
        head=headline(report),
        lead=None if comparison is None else leading_arm(comparison),
        plain=plain[0] if plain else None,
        drafting=drafting,
        domains=[] if comparison is None else domains_of(comparison),
        loop=None if report.training is None else report.training.alpha_loop,
        equal=equal_outputs(
            sum(arm.equal_outputs for arm in drafting), sum(arm.outputs for arm in drafting)
        ),
        equal_outputs=equal_outputs,
        total=sum(stage.seconds for stage in report.stages),
        longest=max((stage.seconds for stage in report.stages), default=0) or 1,
        style=Markup(STYLE),
        plots={name: Markup(svg) for name, svg in plot_elements(report).items()},
    )


def _rows_by_domain(domains: dict[str, int]) -> str:
    return ", ".join(f"{clean(name, 40)} {rows:,}" for name, rows in domains.items())
