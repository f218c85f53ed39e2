"""The prompts of a block: so many of a domain, as they are or brought to a length in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..data import Prompt
from ..spec import render_chat


def prompts_of_block(prompts: Sequence[Prompt], index: int, rows: int) -> list[Prompt]:
    """Return the `rows` prompts of block `index`; where a domain has too few, they come again."""
    return [prompts[(index * rows + row) % len(prompts)] for row in range(rows)]


def prompt_tokens(
    tokenizer: Any, prompt: Prompt, length: int | None, others: Sequence[Prompt]
) -> list[int]:
    """Return the tokens of a prompt as a conversation of one turn.

    Args:
        length: tokens wanted, the template's own included; None: as it is. A long text loses its
            beginning, a short one gets others of its domain before it. Cutting in the middle of a piece
            may give a few tokens more or fewer.
        others: prompts to fill up with, repeated as needed.
    """
    tokens = render_chat(tokenizer, prompt.messages)
    if length is None:
        return tokens
    text = prompt.text
    encoded = _encode(tokenizer, text)
    room = max(1, length - (len(tokens) - len(encoded)))  # for the text
    place = 0
    while len(encoded) < room:
        text = f"{others[place % len(others)].text}\n\n{text}"
        encoded = _encode(tokenizer, text)
        place += 1
    cut = tokenizer.decode(encoded[len(encoded) - room :])
    return render_chat(tokenizer, [{"role": "user", "content": cut}])


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
