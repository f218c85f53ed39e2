"""The recipe in examples/support_desk: its commands are of this version, and it trains on what it makes."""

from __future__ import annotations

import json
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from foredraft.cli.main import COMMANDS, make_parser
from foredraft.data import load_prompts

FOLDER = Path(__file__).parent.parent / "examples" / "support_desk"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Return the words of each command of the page, those within its text too."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`(foredraft \w+ [^`]+)`", PAGE.split("```")[-1])
    return [shlex.split(line) for line in [*lines, *inline] if line.strip()]


def test_each_command_is_one_of_this_version() -> None:
    asked = [words for words in commands() if words[0] == "foredraft"]
    assert [words[1] for words in asked] == ["corpus", "train", "fit", "compare", "verify"]
    parser = make_parser()
    for _, *argv in asked:
        values = parser.parse_args(argv).as_dict()
        fields = values[values["command"]]
        del fields["config"]
        COMMANDS[values["command"]][0](**fields)  # raises where a value is not allowed
    assert "TODO" not in PAGE


def test_what_one_command_writes_the_next_reads() -> None:
    written = ["runs/support/mails.jsonl"]
    for words in commands():
        for name, value in pairwise(words):
            if name in ("--corpus", "--prompts", "--lookahead", "--draft"):
                assert value.removesuffix("/best") in written
            if name == "--output":
                written.append(value)


def test_mails_are_different_and_in_all_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import make_prompts  # type: ignore[import-not-found]

    path = tmp_path / "mails.jsonl"
    make_prompts.main(60, str(path))
    mails = [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
    assert len(set(mails)) == 60
    counts = [
        len(load_prompts(str(path), domains=("support",), split=split))
        for split in ("train", "dev", "test")
    ]
    assert sum(counts) == 60
    assert all(counts)
    del sys.modules["make_prompts"]
