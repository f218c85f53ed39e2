"""Conversations of others: the shapes that are read, and what is refused."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from foredraft.data import split_of
from foredraft.data.conversations import load_conversations

USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
SHAPES: dict[str, dict[str, Any]] = {
    "messages": {"messages": [USER, ASSISTANT]},
    "sharegpt": {
        "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]
    },
    "prompt and response": {"prompt": "hi", "response": "yes"},
    "prompt and completion": {"prompt": [USER], "completion": [ASSISTANT]},
    "what comes after the last answer": {"messages": [USER, ASSISTANT, USER]},
    "fields that datasets fills": {
        "messages": [{**USER, "name": None}, {**ASSISTANT, "tool_calls": None}]
    },
}


def written(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_usual_shapes_are_one(shape: str, tmp_path: Path) -> None:
    source = written(tmp_path / "talk.jsonl", SHAPES[shape])
    (one,) = load_conversations(source)
    assert one.messages == [USER, ASSISTANT]
    assert one.domain == "talk"


def test_a_data_set_is_read_as_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, config: str | None, *, split: str) -> Any:
        asked.append((name, config, split))
        return [SHAPES["messages"]]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (one,) = load_conversations("someone/chats:small:train_sft")
    assert asked == [("someone/chats", "small", "train_sft")]
    assert (one.domain, one.messages) == ("chats", [USER, ASSISTANT])


def test_the_split_follows_from_the_first_question_alone(tmp_path: Path) -> None:
    """However it was answered, and whatever system message came before it."""
    rows = [
        {"messages": [{"role": "system", "content": s}, USER, {**ASSISTANT, "content": a}]}
        for s, a in (("x", "yes"), ("y", "no"))
    ]
    source = written(tmp_path / "talk.jsonl", *rows)
    assert {one.split for one in load_conversations(source)} == {split_of("hi")}
    assert (
        list(load_conversations(source, split="test" if split_of("hi") != "test" else "dev")) == []
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": [USER]}, "line 1: no message by an assistant"),
        ({"messages": []}, "line 1: messages must be a list"),
        ({"messages": [{"role": "user"}]}, r"line 1, messages\[0\]: expected a role and a content"),
        ({"text": "x"}, "line 1: expected messages, conversations, or prompt and response, got"),
        ({"prompt": "x"}, "line 1: expected messages"),
    ],
)
def test_what_is_no_conversation_is_refused_by_name(row: Any, words: str, tmp_path: Path) -> None:
    source = written(tmp_path / "talk.jsonl", row)
    with pytest.raises(ValueError, match=words):
        list(load_conversations(source))
