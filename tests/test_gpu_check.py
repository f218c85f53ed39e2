"""The check of a card, rehearsed: without one it says so, and with tiny models every stage passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "0",
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def test_no_card_is_said_and_is_no_failure(tmp_path: Path) -> None:
    done = run("--output", str(tmp_path / "check.json"))
    assert (done.returncode, done.stdout) == (0, "no card: skipped\n"), done.stderr
    assert not (tmp_path / "check.json").exists()


def test_a_tiny_check_runs_every_stage(tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    done = run("--tiny", "--output", str(path))
    assert done.returncode == 0, done.stderr
    assert "failed: none" in done.stdout, done.stdout
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
