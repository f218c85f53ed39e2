"""A bench's cells as a table and bars in Weights & Biases; offline where there is no key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .bench_columns import rows_of
from .bench_data import PLAIN, BenchReport
from .bench_words import arm_words, totals


def log_bench(report: BenchReport, folder: Path) -> str:
    """Log a run with the table of all cells and a bar chart a condition; return a line about it."""
    import wandb  # slow to import, so only where it is used

    keyed = bool(os.environ.get("WANDB_API_KEY"))
    mode: Any = os.environ.get("WANDB_MODE") or ("online" if keyed else "offline")
    run = wandb.init(
        project="foredraft",
        job_type="bench",
        dir=str(folder),
        mode=mode,
        config=report.settings,
        settings=wandb.Settings(silent=True, console="off"),
    )
    rows = rows_of(report)
    columns = list(rows[0])
    data = [[row[name] for name in columns] for row in rows]
    run.log({"bench/cells": wandb.Table(columns=columns, data=data)})
    for condition in report.conditions:
        bars = wandb.Table(
            columns=["arm", "speedup"],
            data=[
                [arm_words(cell.setting), cell.speedup]
                for cell in totals(report, condition.name)
                if cell.setting.policy != PLAIN
            ],
        )
        name = f"bench/speedup/{condition.name}"
        run.log({name: wandb.plot.bar(bars, "arm", "speedup", title=f"speedup, {condition.name}")})
    run.finish()
    return f"W&B ({mode}): {folder}/wandb"
