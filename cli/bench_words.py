"""Figures of a bench as words, the same on the page and in the terminal."""

from __future__ import annotations

from .bench_data import ALL, PLAIN, BenchReport, Cell, Setting
from .bench_law import FALSE_ALARM
from .bench_losing import FLOOR
from .report_words import NOT_MEASURED, clean, short_name, speedup

CONTROLLERS = ("adaptive", "bandit")
AS_ASKED = "as asked"


def arm_words(setting: Setting) -> str:
    """Return an arm's name: drafter and policy."""
    if setting.policy == PLAIN:
        return PLAIN
    return f"{drafter_words(setting.drafter)}, {setting.policy}"


def drafter_words(name: str) -> str:
    """Return a drafter's name, of a folder its last two parts: "best" alone says little."""
    parts = name.replace("\\", "/").rstrip("/").split("/")
    return clean("/".join(parts[-2:]) if len(parts) > 1 else short_name(name), 40)


def varied_words(setting: Setting) -> str:
    """Return what was varied besides the arm and the domain."""
    prompt = "" if setting.prompt_tokens is None else f"prompt {setting.prompt_tokens}, "
    rows = "" if setting.rows == 1 else f", batch {setting.rows}"
    heat = f"T\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{setting.temperature:g}"
    return f"{prompt}up to {setting.max_tokens} tokens{rows}, {heat}"


def setting_words(setting: Setting) -> str:
    """Return all of a setting in one line."""
    condition = "" if setting.condition == AS_ASKED else f"{setting.condition}: "
    domain = "all domains" if setting.domain == ALL else clean(setting.domain, 30)
    return f"{condition}{arm_words(setting)}; {domain}, {varied_words(setting)}"


def cell_speedup(cell: Cell) -> str:
    """Return the speedup with its interval; plain decoding is the unit."""
    if cell.setting.policy == PLAIN:
        return "1.00×"
    return speedup(cell.speedup, cell.speedup_low, cell.speedup_high)


def equality_words(cell: Cell) -> str:
    """Return whether the outputs are the target's: tokens counted, or the law tested."""
    if cell.equal is not None:
        ties = f" +{cell.ties} ties" if cell.ties else ""
        return f"{cell.equal}/{cell.outputs}{ties}"
    if cell.law_odds is None:
        return "not compared"
    return f"law {'holds' if law_holds(cell) else 'broken'}"


def law_holds(cell: Cell) -> bool:
    """Return whether sampled outputs pass; false in `FALSE_ALARM` of arms whose law is right, at most."""
    return cell.law_odds is None or cell.law_odds >= FALSE_ALARM


def exact(cell: Cell) -> bool:
    """Return whether nothing speaks against the outputs."""
    if cell.equal is not None:
        return cell.equal + (cell.ties or 0) == cell.outputs
    return law_holds(cell)


def floor_words(cell: Cell) -> str:
    """Return whether an arm keeps at least `FLOOR` of plain decoding's speed, as far as is known."""
    if cell.setting.policy == PLAIN:
        return ""
    if cell.speedup >= FLOOR:
        return "keeps up"
    if cell.speedup_high is not None and cell.speedup_high >= FLOOR:
        return "unclear"
    return "loses"


def totals(report: BenchReport, condition: str) -> list[Cell]:
    """Return a condition's cells over all its domains."""
    cells = [cell for cell in report.cells if cell.setting.condition == condition]
    whole = [cell for cell in cells if cell.setting.domain == ALL]
    return whole or cells


def best_cell(report: BenchReport) -> Cell | None:
    """Return the fastest drafting cell over all domains that gave the target's outputs."""
    cells = [
        cell
        for condition in report.conditions
        for cell in totals(report, condition.name)
        if cell.setting.policy != PLAIN and exact(cell)
    ]
    return max(cells, key=lambda cell: cell.speedup, default=None)


def refused(reason: str) -> str:
    """Return a refusal's reason on one line."""
    return clean(reason) or NOT_MEASURED
