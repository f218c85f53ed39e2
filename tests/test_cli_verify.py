"""`foredraft verify` and `export` from the shell: exit status, and a line a check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.cli import main as cli
from toys import byte_tokenizer, noisy_copy, tiny_llama


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str, str]:
    """Return a target, a draft near it, and a file of prompts of the test split."""
    target = tiny_llama()
    for name, model in (("target", target), ("draft", noisy_copy(target, scale=0.03))):
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    prompts = tmp_path / "toy.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"number {i}"}) + "\n" for i in range(30)))
    return str(tmp_path / "target"), str(tmp_path / "draft"), str(prompts)


def test_verify_says_pass_or_fail_and_exits_accordingly(
    folders: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft, prompts = folders
    asked = ["verify", draft, "--target", target, "--prompts", prompts, "--max_tokens", "12"]
    assert cli.main(asked) == 0
    said = capsys.readouterr().out
    assert "pass  loop" in said
    assert "pass  transformers" in said
    tokenizer = Path(draft) / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    pieces = content["model"]["vocab"]
    pieces["a"], pieces["b"] = pieces["b"], pieces["a"]
    tokenizer.write_text(json.dumps(content))
    assert cli.main(asked) == 1
    assert "FAIL  tokenizer" in capsys.readouterr().out


def test_export_writes_a_folder_that_verify_takes(
    folders: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft, prompts = folders
    assert cli.main(["export", draft, "--output", str(tmp_path / "out")]) == 0
    assert "out: see its README.md" in capsys.readouterr().out
    asked = ["verify", str(tmp_path / "out"), "--target", target, "--prompts", prompts]
    assert cli.main([*asked, "--max_tokens", "12", "--prompts_per_domain", "1"]) == 0
    assert cli.main(["export", draft, "--output", draft]) == 2
    assert "output must be a new folder" in capsys.readouterr().err


def test_wrong_settings_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "./no", "--target", "./no", "--gamma", "0"]) == 2
    assert "gamma must be" in capsys.readouterr().err
