"""Stages are done once, and again where what they depend on has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from foredraft.cli.stages import Stages


def run(folder: Path, extent: int, log: list[str]) -> Stages:
    def work(name: str) -> str:
        log.append(name)
        return f"did {name}"

    stages = Stages(folder, Console(quiet=True))
    stages.run("one", "First", {"a": 1}, lambda: work("one"))
    stages.run("two", "Second", extent, lambda: work("two"))
    stages.run("three", "Third", [], lambda: work("three"))
    return stages


def test_a_stage_is_redone_only_where_it_or_an_earlier_one_changed(tmp_path: Path) -> None:
    log: list[str] = []
    run(tmp_path, 1, log)
    assert log == ["one", "two", "three"]
    again = run(tmp_path, 1, log)
    assert log == ["one", "two", "three"]
    assert [stage.reused for stage in again.done] == [True] * 3
    run(tmp_path, 2, log)
    assert log == ["one", "two", "three", "two", "three"]


def test_an_interrupted_stage_is_begun_again(tmp_path: Path) -> None:
    def fail() -> str:
        raise KeyboardInterrupt

    stages = Stages(tmp_path, Console(quiet=True))
    with pytest.raises(KeyboardInterrupt):
        stages.run("one", "First", {"a": 1}, fail)
    log: list[str] = []
    run(tmp_path, 1, log)
    assert log == ["one", "two", "three"]
