"""`foredraft report`: the page of a fitted lookahead, by replay of dense traces; no model is loaded."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..controller import AdaptiveLookahead, MachineFingerprint
from ..data import read_dense_traces
from ..data.files import replacing, write_json
from .config import ReportCommand
from .fit_figures import fit_figures
from .fit_page import render_fit
from .fit_summary import FIT_FILE
from .fitting import DENSE

HTML_FILE, JSON_FILE = "fit.html", "fit_figures.json"


def run_report(config: ReportCommand) -> None:
    """`foredraft report`"""
    folder = Path(config.lookahead)
    own = folder / "traces" / DENSE
    traces = own if config.texts is None else Path(config.texts)
    latency = folder / "latency.json"
    if not latency.is_file():
        raise ValueError(f"lookahead: {folder} holds no fitted lookahead: it has no {latency.name}")
    machine = MachineFingerprint(**json.loads(latency.read_text())["machine"])
    policy = AdaptiveLookahead.load(
        folder, machine=machine
    )  # replayed: any machine's times will do
    texts = read_dense_traces(traces)
    most = min(policy.gamma_max, *(text.gamma_max for text in texts))
    costs = policy.latency.costs(most)
    figures = fit_figures(policy, texts, replace(costs, verify=costs.verify[: most + 1]))
    page = render_fit(
        figures, _fit(folder), folder=str(folder), in_sample=traces.resolve() == own.resolve()
    )
    with replacing(folder / HTML_FILE) as part:
        part.write_text(page, encoding="utf-8")
    write_json(folder / JSON_FILE, _without_nan(asdict(figures)))
    best = max(figures.fixed)
    print(
        f"adaptive {figures.adaptive:.3f}× plain, best fixed γ = {figures.gamma} {best:.3f}×, oracle "
        f"{figures.oracle:.3f}× on {figures.texts} texts; report: {folder / HTML_FILE}"
    )


def _fit(folder: Path) -> dict[str, Any] | None:
    """Return what fit.json holds, where its figures are finite."""
    path = folder / FIT_FILE
    if not path.is_file():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    known = all(math.isfinite(content[name]) for name in ("auc", "auc_raw", "ece", "ece_raw"))
    return content if known else None


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
