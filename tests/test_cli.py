"""The command line: every option arrives, and what is wrong is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli import main as cli


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the settings that a command is run with, instead of running it."""
    calls: list[Any] = []

    class Module:
        def __getattr__(self, name: str) -> Any:
            return calls.append

    monkeypatch.setattr("foredraft.cli.main.importlib.import_module", lambda *_: Module())
    return calls


def test_flags_and_config_files_reach_the_command(tmp_path: Path, seen: list[Any]) -> None:
    settings = tmp_path / "x.yaml"
    settings.write_text("target: t\ndraft: d\ngammas: [2, 3]\nmax_tokens: 7\n")
    assert cli.main(["compare", "--config", str(settings), "--max_tokens", "9"]) == 0
    assert (seen[0].target, seen[0].gammas, seen[0].max_tokens) == ("t", (2, 3), 9)


def test_print_config_gives_a_config_that_is_read_back(
    tmp_path: Path, seen: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["demo", "--minutes", "3", "--print_config"])
    assert end.value.code == 0
    settings = tmp_path / "demo.yaml"
    settings.write_text(capsys.readouterr().out)
    assert cli.main(["demo", "--config", str(settings)]) == 0
    assert seen[0].minutes == 3.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--nonsense", "1"], "nonsense"),
        (["demo", "--minutes", "x"], "minutes"),
        (["nonsense"], "nonsense"),
        (["compare", "--target", "t"], "draft"),
    ],
)
def test_unknown_or_missing_is_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_an_unknown_key_of_a_config_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "x.yaml"
    settings.write_text("minute: 3\n")
    with pytest.raises(SystemExit):
        cli.main(["demo", "--config", str(settings)])
    assert "minute" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--minutes", "0"], "minutes must be above 0, got 0"),
        (["compare", "--target", "t", "--draft", "d", "--gammas", "[-1]"], "gammas must be"),
        (["compare", "--target", "./no", "--draft", "d"], "there is no folder"),
        (["corpus", "--target", "./no", "--domains", "[poems]"], "poems"),
        (["generate", "--target", "./no", "--prompt", "hi"], "there is no folder"),
    ],
)
def test_bad_values_are_errors_and_not_tracebacks(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from foredraft.cli.main import make_parser; make_parser();"
        "sys.exit(any(name in sys.modules for name in ('transformers', 'sklearn', 'matplotlib')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
