"""Conversations that somebody else wrote: JSONL files or any set that `datasets` loads, in the usual shapes.

A conversation's split follows from its first message by a user alone, as a prompt's does, so that a
question answered twice never stands in two splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .prompts import split_of
from .sources import source_rows

_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names; others are as they are
_ANSWERS = ("response", "completion")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages of one conversation, up to the last by an assistant."""

    where: str  # where its row stands, for errors
    domain: str
    messages: list[dict[str, Any]]  # {"role": …, "content": …} each, and what else the row has

    @property
    def split(self) -> str:
        """The split that its first user message falls into."""
        texts = [str(message["content"]) for message in self.messages if message["role"] == "user"]
        return split_of(texts[0] if texts else str(self.messages[0]["content"]))


def load_conversations(
    source: str, *, domains: Sequence[str] | None = None, split: str | None = None
) -> Iterator[Conversation]:
    """Yield conversations in the source's order.

    A row is one of: "messages" of {"role", "content"}; "conversations" of {"from", "value"} (ShareGPT);
    "prompt" and "response" (or "completion"), both texts or both lists of messages. What comes after the last
    message by an assistant is left out: nobody answers it.

    Args:
        source: as for `load_prompts`.
        domains: keep these only.
        split: keep "train", "dev" or "test" by `split_of`; not the data set's own split.

    Raises:
        ValueError: if the source is missing, or a row has no message by an assistant or another shape; names
            the row.
    """
    for where, row, domain in source_rows(source):
        messages = _messages(where, row)
        last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
        one = Conversation(where, str(row.get("domain") or domain), messages[: last + 1])
        if (domains is None or one.domain in domains) and split in (None, one.split):
            yield one


def _messages(where: str, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    answer = next((name for name in _ANSWERS if row.get(name) is not None), None)
    if row.get("messages") is not None:
        messages = _listed(where, "messages", row["messages"])
    elif row.get("conversations") is not None:
        messages = _listed(where, "conversations", row["conversations"])
    elif answer is not None and row.get("prompt") is not None:
        messages = _side(where, "prompt", row["prompt"], "user")
        messages += _side(where, answer, row[answer], "assistant")
    else:
        raise ValueError(
            f"{where}: expected messages, conversations, or prompt and response, got the fields "
            f"{', '.join(row)}"
        )
    if not any(message["role"] == "assistant" for message in messages):
        raise ValueError(f"{where}: no message by an assistant, so nothing to learn from")
    return messages


def _side(where: str, field: str, value: Any, role: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _listed(where, field, value)


def _listed(where: str, field: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: {field} must be a list of messages, got {value!r:.80}")
    return [_message(f"{where}, {field}[{i}]", message) for i, message in enumerate(value)]


def _message(where: str, message: Any) -> dict[str, Any]:
    if isinstance(message, Mapping) and "from" in message and "value" in message:
        role, content = _ROLES.get(message["from"], message["from"]), message["value"]
        message = {"role": role, "content": content}
    role = message.get("role") if isinstance(message, Mapping) else None
    if isinstance(role, str) and message.get("content") is None and message.get("tool_calls"):
        message = {**message, "content": ""}
    if not isinstance(role, str) or not isinstance(message.get("content"), str):
        raise ValueError(f"{where}: expected a role and a content, both texts, got {message!r:.80}")
    # `datasets` fills fields that a message lacks with None; a template takes them for given.
    return {name: value for name, value in message.items() if value is not None}
