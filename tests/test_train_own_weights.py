"""What is no model of its own cannot be verified, exported or calibrated; the error says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.cli.main import main
from foredraft.spec import DraftInfo
from foredraft.spec.exit_adapter import ExitAdapter
from foredraft.spec.exit_folder import save_exit
from foredraft.train.own_weights import check_own_weights


@pytest.fixture
def exit_folder(tmp_path: Path) -> str:
    info = DraftInfo(target="a", target_fingerprint="f", tokenizer_hash="h", exit_layer=3)
    save_exit(tmp_path / "exit", ExitAdapter(8), info)
    return str(tmp_path / "exit")


@pytest.mark.parametrize("command", ["verify", "calibrate", "export"])
def test_an_exit_is_refused_before_anything_is_loaded(
    command: str, exit_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no target at that place: an error of its loading would come instead."""
    last = ["--output", f"{exit_folder}-out"] if command == "export" else ["--target", "./no"]
    for draft, layers in ((exit_folder, 3), ("self:2", 2)):
        assert main([command, draft, *last]) == 2
        said = capsys.readouterr().err
        assert f"foredraft {command}: error: draft must be the folder of a model of its own" in said
        assert f"got {draft}: an exit after {layers} of the target's layers" in said
        assert f"`foredraft compare --draft {draft}` measures it" in said
    assert not Path(f"{exit_folder}-out").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cross:some/model", "another tokenizer"),
        ("shared:some/model", "another tokenizer"),
        ("prompt-lookup", "no model"),
        ("self:many", 'expected "self:K"'),
    ],
)
def test_so_are_other_drafters_by_name(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_own_weights(name)


def test_a_model_is_taken(tmp_path: Path) -> None:
    check_own_weights("some/model")
    check_own_weights(tmp_path)
    DraftInfo(target="a", target_fingerprint="f", tokenizer_hash="h").save(tmp_path)
    check_own_weights(tmp_path)


def test_heads_are_refused_too(tmp_path: Path) -> None:
    info = DraftInfo(target="a", target_fingerprint="f", tokenizer_hash="h", heads="eagle")
    info.save(tmp_path)
    with pytest.raises(ValueError, match=r"heads \(eagle\) on the target's states"):
        check_own_weights(tmp_path)
