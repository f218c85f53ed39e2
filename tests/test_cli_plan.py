"""`foredraft plan`: a grid of drafts with what they cost and gain, and the best of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from foredraft.cli import main as cli
from foredraft.cli.piloting import Pilot
from foredraft.cli.planning import _best, _break_even
from foredraft.controller import RoundCosts
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    target = tiny_llama()
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    rows = random_rows(24) + random_rows(6, split="dev", seed=1)
    corpus = write_corpus_folder(tmp_path / "corpus", target, rows)
    return [
        "plan", "--target", str(tmp_path / "target"), "--corpus", corpus, "--gamma_max", "3",
        "--output", str(tmp_path / "new" / "plan.json"),
    ]  # fmt: skip


def test_a_grid_is_measured_and_the_best_recommended(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*asked, "--layers", "[1,2]", "--head_tokens", "[64,1000]"]) == 0
    found = json.loads((tmp_path / "new" / "plan.json").read_text())
    drafts = {(draft["layers"], draft["head_tokens"]): draft for draft in found["drafts"]}
    assert list(drafts) == [(1, 64), (1, 260), (2, 64), (2, 260)]
    for draft in drafts.values():
        assert 0.0 < draft["alpha_start"] <= draft["alpha"] <= draft["coverage"] + 1e-6
        assert draft["step_seconds"] > 0.0
        assert draft["training_seconds"] > 0.0
    assert drafts[1, 64]["coverage"] < drafts[1, 260]["coverage"] == pytest.approx(1.0)
    assert drafts[1, 64]["parameters"] < drafts[1, 260]["parameters"] < drafts[2, 260]["parameters"]
    whole = drafts[2, 260]  # all of the target's layers and its whole head
    assert whole["alpha_start"] > 0.9  # but for the ridge of the map
    assert found["best"] in found["drafts"]
    assert found["best"]["speedup"] == max(draft["speedup"] for draft in drafts.values())
    said = capsys.readouterr().out
    assert re.search(r"Recommended: --layers \d|None of these is expected to be faster", said)


def test_more_layers_than_the_target_has_are_named(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*asked, "--layers", "[9]"]) == 2
    assert "layers must be in [1, 2]" in capsys.readouterr().err
    assert cli.main([*asked, "--layers", "[]"]) == 2
    assert "layers must have at least one number" in capsys.readouterr().err


def test_speedup_and_break_even_follow_from_the_costs() -> None:
    """One token costs 1, verifying two 1.1, a draft step 0.1: γ = 1 pays where 1 + α > 1.2."""
    costs = RoundCosts(draft_step=0.1, verify=(1.0, 1.1))
    assert _break_even(costs) == pytest.approx(0.21)
    for alpha, gamma, speedup in ((0.5, 1, 1.5 / 1.2), (0.1, 0, 1.0)):
        assert _best(costs, alpha)[0] == gamma
        assert _best(costs, alpha)[1] == pytest.approx(speedup)
    assert _break_even(RoundCosts(draft_step=2.0, verify=(1.0, 1.0))) == 1.0


def test_a_pilot_trains_the_best_start_and_its_gain_is_expected_of_all(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--layers", "[1]", "--head_tokens", "[64,1000]", "--tokens", "1000000"]
    assert cli.main([*asked, *sizes, "--pilot_tokens", "300"]) == 0
    drafts = json.loads((tmp_path / "new" / "plan.json").read_text())["drafts"]
    gains = [draft["alpha"] - draft["alpha_start"] for draft in drafts]
    assert gains[1] > 0.0
    room = drafts[0]["coverage"] - drafts[0]["alpha_start"]  # what it cannot propose is no gain
    assert gains[0] == pytest.approx(min(gains[1], room))
    assert "by the pilot" in re.sub(r"\s+", " ", capsys.readouterr().out)
    assert cli.main([*asked, "--pilot_tokens", "-1"]) == 2
    assert "pilot_tokens" in capsys.readouterr().err


def test_what_the_second_half_added_is_expected_of_each_doubling() -> None:
    """0.3 to 0.4 in 100 tokens, of which 0.02 in the last 50; a second half that lost promises nothing."""
    pilot = Pilot(
        layers=1, head_tokens=None, tokens=100, alpha_start=0.3, alpha_half=0.38, alpha=0.4
    )
    for tokens, gain in ((100, 0.10), (400, 0.14), (50, 0.08)):
        assert pilot.gain(tokens) == pytest.approx(gain)
    lost = Pilot(
        layers=1, head_tokens=None, tokens=100, alpha_start=0.3, alpha_half=0.38, alpha=0.35
    )
    assert lost.gain(1000) == pytest.approx(0.05)
