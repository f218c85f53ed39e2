"""The benchmark of losses at a small size: what it measures is there, and chunks take less memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import loss_memory
from loss_memory import LossBenchmark

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "loss_memory.py"


def test_arms_are_measured_and_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, where peaks mean nothing."""
    monkeypatch.setattr(loss_memory, "_alone", loss_memory.measure)
    config = LossBenchmark(
        loss="lk", tokens=40, dense_tokens=24, vocabulary=50, hidden=8, chunk_tokens=7, repeats=2,
        threads=torch.get_num_threads(),
    )  # fmt: skip
    arms = loss_memory.run(config)
    assert {name: len(found) for name, found in arms.items()} == {
        "chunked": 1, "dense_few": 2, "chunked_few": 2,
    }  # fmt: skip
    assert [arm.tokens for found in arms.values() for arm in found] == [40, 24, 24, 24, 24]
    dense = arms["dense_few"][0].loss
    assert all(arm.loss == pytest.approx(dense, rel=1e-5) for arm in arms["chunked_few"])
    assert abs(arms["chunked"][0].loss - dense) > 1e-4  # of other tokens
    assert all(arm.seconds > 0 and arm.wall_seconds > 0 for found in arms.values() for arm in found)
    assert "of dense's time on 24 tokens" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="resident sizes are compressed there")
def test_chunks_take_a_fraction_of_the_memory_of_all_logits(tmp_path: Path) -> None:
    """All logits of 512 tokens are 64 MB, and several such live at once; a chunk's are 2 MB."""
    out = tmp_path / "loss.json"
    fields = {
        "loss": "kl", "tokens": 1024, "dense_tokens": 512, "vocabulary": 32768, "hidden": 32,
        "chunk_tokens": 16, "repeats": 1, "out": out,
    }  # fmt: skip
    command = [sys.executable, str(SCRIPT), *(f"--{name}={fields[name]}" for name in fields)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    arms = {name: found[0] for name, found in json.loads(out.read_text())["arms"].items()}
    assert arms["dense_few"]["peak_gb"] > 0.3
    for name in ("chunked", "chunked_few"):
        assert 0.0 < arms[name]["peak_gb"] < 0.3 * arms["dense_few"]["peak_gb"]
    assert arms["chunked_few"]["loss"] == pytest.approx(arms["dense_few"]["loss"], rel=1e-5)


@pytest.mark.parametrize("field", ["tokens", "dense_tokens", "chunk_tokens", "repeats"])
def test_a_bad_field_is_named(field: str) -> None:
    bad: dict[str, Any] = {field: 0}
    with pytest.raises(ValueError, match=f"^{field} must be at least 1, got 0"):
        LossBenchmark(**bad)
    with pytest.raises(ValueError, match="loss must be one of kl"):
        LossBenchmark(loss="js")
