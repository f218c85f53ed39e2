"""A bench is logged to W&B only as a table and bars, offline where there is no key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import wandb
from test_bench_figures import made_up_report

from foredraft.cli.bench_wandb import log_bench


class FakeRun:
    """A W&B run that keeps what it is told."""

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        self.finished = False

    def log(self, values: dict[str, Any]) -> None:
        self.logged |= values

    def finish(self) -> None:
        self.finished = True


@pytest.mark.parametrize(("key", "mode"), [(None, "offline"), ("k" * 40, "online")])
def test_cells_and_bars_are_logged(
    key: str | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    if key is not None:
        monkeypatch.setenv("WANDB_API_KEY", key)
    run, options = FakeRun(), []

    def init(**given: Any) -> FakeRun:
        options.append(given)
        return run

    monkeypatch.setattr(wandb, "init", init)
    report = made_up_report()
    assert mode in log_bench(report, tmp_path)
    assert options[0]["mode"] == mode
    assert options[0]["dir"] == str(tmp_path)
    table = run.logged["bench/cells"]
    assert len(table.data) == len(report.cells)
    assert "speedup" in table.columns
    assert set(run.logged) == {"bench/cells", "bench/speedup/as asked"}
    assert run.finished
