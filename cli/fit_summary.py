"""What a fit came to: its line, its file fit.json, and a run in Weights & Biases."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..controller import Choice, FitReport, RoundCosts
from ..controller.oracle import Yardsticks

FIT_FILE = "fit.json"
DEEP_ENOUGH = 100  # tokens; a depth with fewer says nothing


def choice_content(choice: Choice, costs: RoundCosts, found: Yardsticks) -> dict[str, Any]:
    """Return which predictor was chosen and what it gains in replay, over plain decoding and out of fold."""
    name = next(iter(choice.informed))
    return {
        "family": choice.family,
        "families": {family: asdict(figures) for family, figures in choice.figures.items()},
        "speedup": choice.figures[choice.family].speedups[name],
        "share_of_gain": choice.figures[choice.family].gain_shares[name],
        "informed_share": choice.informed[name],
        "best_fixed_gamma": found.best_fixed_gamma,
        "best_fixed": found.best_fixed.tokens_per_second * costs.plain,
        "oracle": found.oracle.tokens_per_second * costs.plain,
    }


def write_fit(report: FitReport, choice: dict[str, Any] | None, folder: Path) -> None:
    """Write fit.json."""
    content = report.to_dict() | {"choice": choice}
    (folder / FIT_FILE).write_text(json.dumps(content, default=float) + "\n")


def fit_line(report: FitReport, choice: dict[str, Any] | None) -> str:
    """Return the figures in words."""
    line = (
        f"AUC {report.auc:.2f}, log-loss {report.log_loss_raw:.3f} before and {report.log_loss:.3f} "
        f"after, ECE {report.ece_raw:.3f} before and {report.ece:.3f} after calibration"
    )
    deep = [row for row in report.depths if row.tokens >= DEEP_ENOUGH]
    if deep:
        worst = max(deep, key=lambda row: row.excess)
        line += (
            f"; by depth at most {worst.excess:.3f} beyond luck (depth {worst.depth}: ECE "
            f"{worst.ece:.3f}, of which luck {worst.ece_floor:.3f})"
        )
    if choice is None:
        return line
    return (
        f"{line}; policy: adaptive on {_FAMILIES[choice['family']]}, in replay of prompts it was not "
        f"fitted on {choice['speedup']:.3f}× plain (best fixed γ = {choice['best_fixed_gamma']} "
        f"{choice['best_fixed']:.3f}×, oracle {choice['oracle']:.3f}×), "
        f"{_share(choice['share_of_gain'])} of the oracle's gain ({_share(choice['informed_share'])} at the "
        "informed bound)"
    )


def log_fit(report: FitReport, choice: dict[str, Any] | None, folder: Path) -> str:
    """Log the figures as a run, offline where there is no key; return a line about it."""
    import wandb  # slow to import, so only where it is used

    keyed = bool(os.environ.get("WANDB_API_KEY"))
    mode: Any = os.environ.get("WANDB_MODE") or ("online" if keyed else "offline")
    run = wandb.init(
        project="foredraft",
        job_type="fit",
        dir=str(folder),
        mode=mode,
        config={"features": report.features, "rows": report.rows, "prompts": report.prompts},
        settings=wandb.Settings(silent=True, console="off"),
    )
    run.log(fit_metrics(report, choice))
    columns = ["depth", "tokens", "ece", "ece_floor", "excess", "survival", "observed"]
    data = [[getattr(row, name) for name in columns] for row in report.depths]
    run.log({"fit/depths": wandb.Table(columns=columns, data=data)})
    run.finish()
    return f"W&B ({mode}): {folder}/wandb"


def fit_metrics(report: FitReport, choice: dict[str, Any] | None) -> dict[str, float | str]:
    """Return the figures by the names they are logged under; those that are not known are left out."""
    found: dict[str, Any] = {
        f"fit/{name}": getattr(report, name)
        for name in ("auc", "auc_raw", "log_loss", "log_loss_raw", "ece", "ece_raw", "acceptance")
    }
    for row in report.depths:
        found[f"fit/ece/depth_{row.depth}"] = row.ece
        found[f"fit/ece_floor/depth_{row.depth}"] = row.ece_floor
        found[f"fit/survival_gap/depth_{row.depth}"] = row.survival - row.observed
    for name, value in (choice or {}).items():
        if name != "families":
            found[f"fit/{name}"] = value
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, str) or (value is not None and math.isfinite(value))
    }


_FAMILIES = {"linear": "a linear logit", "trees": "boosted trees", "net": "a small net"}


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100.0 * value:.0f} %"
