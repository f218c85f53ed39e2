"""The table of losses on a tiny corpus: a line a cell, what is there is not trained again."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from foredraft.train import DistillResult, distill
from loss_table import LossTable, mean_and_deviation, run, table
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama

ROWS = [*random_rows(24), *random_rows(4, split="dev", seed=1)]


@pytest.fixture
def fields(tmp_path: Path) -> dict[str, Any]:
    """Return the settings of a tiny table."""
    corpus = write_corpus_folder(tmp_path / "corpus", tiny_llama(), ROWS)
    return {
        "target": "toy", "corpus": corpus, "out": str(tmp_path / "made" / "table.jsonl"),
        "losses": ("kl", "nla"), "seeds": (0, 1), "steps": 2, "batch_rows": 8, "layers": 1,
        "head_tokens": 120, "state_weight": 0.0, "train_head": True,
    }  # fmt: skip


def train(fields: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return run(LossTable(**{**fields, **changes}), target=tiny_llama(), tokenizer=byte_tokenizer())


def test_every_cell_is_a_line_and_an_interrupted_table_goes_on(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int]] = []

    def spy(config: Any, **loaded: Any) -> DistillResult:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append((config.loss, config.seed))
        return distill(config, **loaded)

    with monkeypatch.context() as patch:
        patch.setattr("loss_table.distill", spy)
        with pytest.raises(KeyboardInterrupt):
            train(fields)
    assert trained == [("kl", 0), ("nla", 0)]  # all losses of a seed first
    path = Path(fields["out"])
    with path.open("a") as file:
        file.write('{"loss": "kl", "se')  # killed in the middle of a line
    lines = train(fields)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines
    assert [(one["loss"], one["seed"]) for one in lines] == [
        ("kl", 0), ("nla", 0), ("kl", 1), ("nla", 1),
    ]  # fmt: skip
    assert not list(path.parent.glob("*.cell/*"))  # a finished cell's folder is removed
    for one in lines:
        assert one["start"] == lines[0]["start"]
        assert one["alpha"] != one["start"]["alpha"]
        assert one["tokens_per_s"] > 0
    assert lines[0]["alpha"] != lines[1]["alpha"]  # another loss
    assert lines[0]["alpha"] != lines[2]["alpha"]  # another seed

    with monkeypatch.context() as patch:
        patch.setattr("loss_table.distill", lambda *a, **k: pytest.fail("trained again"))
        assert train(fields, losses=("nla",)) == lines
        with pytest.raises(ValueError, match=r"steps is 3, but .* has a line of 2"):
            train(fields, steps=3)

    console = Console(width=120, record=True)
    console.print(table(lines))
    shown = console.export_text()
    expected = mean_and_deviation([lines[0]["alpha"], lines[2]["alpha"]])
    assert expected in shown
    assert "(start)" in shown


def test_mean_and_deviation_are_those_of_a_sample() -> None:
    assert mean_and_deviation([0.5, 0.7]) == "0.6000 ± 0.1414"
    assert mean_and_deviation([0.25]) == "0.2500"


def test_bad_fields_are_named(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="seeds must be at least one, each once, got"):
        LossTable(**{**fields, "seeds": (1, 1)})
    with pytest.raises(ValueError, match="loss must be one of kl"):
        LossTable(**{**fields, "losses": ("js",)})
