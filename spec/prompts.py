"""Turns what a user asks into prompt tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a raw prompt, with the BOS that the tokenizer itself adds."""
    return [int(token) for token in tokenizer(text)["input_ids"]]


def render_chat(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the prompt tokens of a conversation, up to where the assistant speaks.

    The template writes the special tokens itself, so none is added: exactly one BOS where the template
    has one. A tokenizer without a template gets the messages' texts, one a line.

    Args:
        messages: {"role": …, "content": …} each.
    """
    if tokenizer.chat_template is None:
        return encode_text(tokenizer, "\n".join(message["content"] for message in messages))
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
