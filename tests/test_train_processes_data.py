"""Two processes with a teacher cache, and with text of the draft's own, train like one."""

from pathlib import Path
from typing import Any

import pytest
from test_train_processes import TOLERANCE, launch

from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"teacher": "cache", "cache_top_k": 32, "loss": "nla"},
        # Written once, before the first step: later weights round differently.
        {"on_policy_share": 0.5, "on_policy_every": 50},
    ],
    ids=["cache", "on policy"],
)
def test_two_processes_give_the_curve_of_one(changes: dict[str, Any], tmp_path: Path) -> None:
    target = tiny_llama()
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    rows = [*random_rows(30), *random_rows(5, split="dev", seed=1)]
    write_corpus_folder(tmp_path / "corpus", target, rows)
    curves = [
        [row["train/loss"] for row in launch(tmp_path, n, **changes) if "train/loss" in row]
        for n in (1, 2)
    ]
    assert len(curves[0]) == 10
    assert curves[1] == pytest.approx(curves[0], rel=TOLERANCE)
    if "teacher" in changes:
        folder = tmp_path / "run-2" / "teacher-cache"
        assert len(list(folder.glob("index-*.jsonl"))) == 2
