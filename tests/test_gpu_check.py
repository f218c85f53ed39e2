"""The check of a card, rehearsed: without one it says so, and with tiny models every stage passes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, on a machine without a card."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return importlib.import_module("gpu_check")


def test_no_card_is_said_and_is_no_failure(
    gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_check.main(["--output", str(tmp_path / "check.json")])
    assert capsys.readouterr().out == "no card: skipped\n"
    assert not (tmp_path / "check.json").exists()


def test_a_tiny_check_runs_every_stage(
    gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "check.json"
    gpu_check.main(["--tiny", "--output", str(path)])
    said = capsys.readouterr().out
    assert "failed: none" in said, said
    stages = json.loads(path.read_text())["stages"]
    assert stages["kernels equal"]["found"]["differing"] == []
    assert all(stages["graphs equal"]["found"].values())
    speed = stages["speed, γ = 2"]["found"]
    assert all(speed["equal"].values())
    assert len(speed["rates"]) == 6
    # The pair disagrees by construction, and both ways of speculating see the same disagreement.
    accepted = {int(length): rounds for length, rounds in speed["accepted_lengths"].items()}
    assert speed["assisted_forwards"] - sum(accepted.values()) in (0, 1)
    assert len(accepted) > 1


def test_a_stage_that_fails_or_takes_too_long_is_recorded_and_the_rest_goes_on(
    gpu_check: Any, tmp_path: Path
) -> None:
    def hang() -> dict[str, Any]:
        while True:
            pass

    def fail() -> dict[str, Any]:
        raise ValueError("broken")

    report = gpu_check.Report(tmp_path / "check.json")
    report.run("slow", 0.2, hang)
    report.run("wrong", 5, fail)
    report.run("right", 5, lambda: {"answer": 1})
    stages = json.loads((tmp_path / "check.json").read_text())["stages"]
    assert report.failed == ["slow", "wrong"]
    assert "OutOfTime" in stages["slow"]["failed"]
    assert stages["wrong"]["failed"] == "ValueError: broken"
    assert stages["right"]["found"] == {"answer": 1}
