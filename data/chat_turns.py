"""What assistants said in a conversation, found by rendering its beginnings with the chat template.

A turn begins where the generation prompt ends, as when decoding, and ends with the token that closes a turn.
Neither the template's text is searched nor its `{% generation %}` tags, if any, are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from ..spec import render_chat

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Turns:
    """A conversation, or its beginning, as the target reads it."""

    tokens: list[int]  # up to the last token of the last turn
    spans: tuple[
        tuple[int, int], ...
    ]  # [first, end) of what an assistant said, its end token included


class TurnRenderer:
    """Renders conversations with a tokenizer's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        """Learn how the template closes a turn, from two conversations that differ in what was said last.

        Raises:
            ValueError: if it closes a turn with no token of its own, such as an end-of-turn token: a draft
                would never learn to stop.
        """
        self._tokenizer = tokenizer
        self._closing: list[int] = []  # the end-of-turn token and what the template writes after it
        if tokenizer.chat_template is not None:
            ends = [
                self._rendered([{"role": "user", "content": "0"}, _said(text)]) for text in "1b"
            ]
            suffix = _common_suffix(*ends)
            own = _own_tokens(tokenizer)
            at = next((i for i, token in enumerate(suffix) if token in own), None)
            if at is None:
                raise ValueError(
                    "chat_template: it closes an assistant's turn with no special token (but with "
                    f"{tokenizer.decode(suffix)!r}); a draft would never learn to stop"
                )
            self._closing = suffix[at:]
        elif tokenizer.eos_token_id is None:
            raise ValueError("tokenizer: it has neither a chat template nor an EOS token")

    def render(self, messages: Messages) -> list[Turns]:
        """Return the conversation with each assistant's turn marked: what it would have had to generate.

        Where the template leaves earlier turns as they were, that is one; where it rewrites them (drops their
        thinking, closes them otherwise), one for each turn, with what was said before as the target reads it
        at that moment. A first turn with nothing before it is context only.

        Args:
            messages: {"role": …, "content": …} each.

        Raises:
            ValueError: if no turn is left to learn from, the template cannot render the conversation, or
                does not begin or close a turn as it does when decoding.
        """
        turns = [
            self._turn(messages[: at + 1])
            for at, message in enumerate(messages)
            if at > 0 and message["role"] == "assistant"
        ]
        if not turns:
            raise ValueError("no message by an assistant comes after another message")
        whole = turns[-1].tokens
        if all(turn.tokens == whole[: len(turn.tokens)] for turn in turns):
            return [Turns(whole, tuple(span for turn in turns for span in turn.spans))]
        return turns

    def _turn(self, messages: Messages) -> Turns:
        """Return the last of these messages after those before it."""
        if self._tokenizer.chat_template is None:
            return self._plain_turn(messages)
        number = len(messages) - 1
        prompt = self._prompt(messages[:-1])
        said = self._after(prompt, messages, number)
        end = len(said) - len(self._closing)
        if end < 0 or said[end:] != self._closing:
            raise ValueError(
                f"message {number}: the chat template ends it with "
                f"{self._tokenizer.decode(said[-8:])!r}, not with "
                f"{self._tokenizer.decode(self._closing)!r} as other turns of an assistant"
            )
        return Turns([*prompt, *said[: end + 1]], ((len(prompt), len(prompt) + end + 1),))

    def _after(self, prompt: list[int], messages: Messages, number: int) -> list[int]:
        """Return the tokens of the last message that come after its prompt."""
        tokens = self._rendered(messages)
        if tokens[: len(prompt)] == prompt:
            return tokens[len(prompt) :]
        # The first letters of a turn may merge with the end of its prompt; when decoding they cannot.
        before, after = self._text(messages[:-1], prompt=True), self._text(messages, prompt=False)
        rest = self._ids(after.removeprefix(before))
        decode = self._tokenizer.decode
        if not after.startswith(before) or decode([*prompt, *rest]) != decode(tokens):
            raise ValueError(
                f"message {number}: the chat template does not begin it as it asks for one when "
                f"decoding, with {before[-60:]!r}; what would be learned is not what is decoded"
            )
        return rest

    def _plain_turn(self, messages: Messages) -> Turns:
        if any(message["role"] == "assistant" for message in messages[:-1]):
            raise ValueError("several turns by an assistant need a tokenizer with a chat template")
        prompt = render_chat(self._tokenizer, messages[:-1])
        said = [*self._ids(messages[-1]["content"]), int(self._tokenizer.eos_token_id)]
        return Turns([*prompt, *said], ((len(prompt), len(prompt) + len(said)),))

    def _prompt(self, messages: Messages) -> list[int]:
        return self._ids(self._text(messages, prompt=True))  # as `render_chat` makes it

    def _rendered(self, messages: Messages) -> list[int]:
        return self._ids(self._text(messages, prompt=False))

    def _text(self, messages: Messages, *, prompt: bool) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=prompt
                )
            )
        except TemplateError as error:
            raise ValueError(f"the chat template cannot render it: {error}") from error

    def _ids(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False).input_ids]


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _common_suffix(first: list[int], second: list[int]) -> list[int]:
    size = 0
    while size < min(len(first), len(second)) and first[-size - 1] == second[-size - 1]:
        size += 1
    return first[len(first) - size :]


def _own_tokens(tokenizer: Any) -> set[int]:
    """Return the tokens that no text is cut into: special ones, and those added to the vocabulary."""
    return {*map(int, tokenizer.all_special_ids), *map(int, tokenizer.added_tokens_decoder)}
