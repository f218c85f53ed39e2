"""Which tokens of a conversation an assistant said, for templates in the manner of well-known models."""

from typing import Any

import pytest
from chat_templates import TEMPLATES, chat_tokenizer

from foredraft.data.chat_turns import TurnRenderer, Turns
from foredraft.spec import encode_text, render_chat

TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "<think>a</think>yes"},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "so"},
]
# What is supervised, one list for each example that a conversation becomes.
SAID: dict[str, list[list[str]]] = {
    "chatml": [["<think>a</think>yes<|im_end|>", "so<|im_end|>"]],
    "llama3": [["<think>a</think>yes<|eot|>", "so<|eot|>"]],
    "mistral": [[" <think>a</think>yes<eos>", " so<eos>"]],
    "gemma": [["<think>a</think>yes<end_of_turn>", "so<end_of_turn>"]],
    "phi3": [["<think>a</think>yes<|end|>", "so<|end|>"]],
    "qwen3": [["<think>a</think>yes<|im_end|>"], ["so<|im_end|>"]],
    "harmony": [
        ["<|channel|>final<|message|><think>a</think>yes<|return|>"],
        ["<|channel|>final<|message|>so<|return|>"],
    ],
}


def said(tokenizer: Any, turns: Turns) -> list[str]:
    return [tokenizer.decode(turns.tokens[first:end]) for first, end in turns.spans]


@pytest.mark.parametrize("name", SAID)
def test_what_is_supervised_is_what_was_said_and_the_token_that_ends_it(name: str) -> None:
    """The first token of a turn and its end are supervised; nothing of a generation prompt is."""
    tokenizer = chat_tokenizer(name)
    rendered = TurnRenderer(tokenizer).render(TALK)
    assert [said(tokenizer, turns) for turns in rendered] == SAID[name]


@pytest.mark.parametrize("name", SAID)
def test_each_turn_is_after_the_very_tokens_that_are_its_prompt_when_decoding(name: str) -> None:
    tokenizer = chat_tokenizer(name)
    rendered = TurnRenderer(tokenizer).render(TALK)
    starts = [turns.tokens[:first] for turns in rendered for first, _ in turns.spans]
    assert starts == [render_chat(tokenizer, TALK[:1]), render_chat(tokenizer, TALK[:3])]
    # Nothing follows the last end: no one would generate it.
    assert all(turns.spans[-1][1] == len(turns.tokens) for turns in rendered)


@pytest.mark.parametrize("name", [*SAID, None])
def test_b81_exactly_one_bos_in_every_path_and_none_where_the_template_has_none(
    name: str | None,
) -> None:
    tokenizer = chat_tokenizer(name)
    expected = int(name is None or "bos_token" in TEMPLATES[name])
    trained = TurnRenderer(tokenizer).render(TALK[:2])[0].tokens
    decoded = render_chat(tokenizer, TALK[:1])
    assert trained[: len(decoded)] == decoded
    for tokens in (trained, decoded):
        assert tokens.count(tokenizer.bos_token_id) == expected
        assert tokens.index(tokenizer.bos_token_id) == 0 if expected else True
    assert encode_text(tokenizer, "raw").count(tokenizer.bos_token_id) == 1


def test_a_system_message_and_a_tool_are_context() -> None:
    tokenizer = chat_tokenizer("chatml")
    talk: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "sum"}]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    (turns,) = TurnRenderer(tokenizer).render(talk)
    assert said(tokenizer, turns) == ["<|im_end|>", "4<|im_end|>"]


def test_special_tokens_within_a_turn_do_not_end_it() -> None:
    """The end is what the template closes a turn with, not the first special token."""
    tokenizer = chat_tokenizer("chatml")
    talk = [TALK[0], {"role": "assistant", "content": "a<|channel|>b<|end|>c"}]
    (turns,) = TurnRenderer(tokenizer).render(talk)
    assert said(tokenizer, turns) == ["a<|channel|>b<|end|>c<|im_end|>"]


def test_a_first_turn_with_nothing_before_it_is_context() -> None:
    tokenizer = chat_tokenizer("chatml")
    (turns,) = TurnRenderer(tokenizer).render([TALK[1], *TALK[2:]])
    assert said(tokenizer, turns) == ["so<|im_end|>"]


def test_without_a_template_one_answer_is_learned_with_its_eos() -> None:
    tokenizer = chat_tokenizer(None)
    (turns,) = TurnRenderer(tokenizer).render(TALK[2:])
    assert turns.tokens[: turns.spans[0][0]] == encode_text(tokenizer, "why?")
    assert said(tokenizer, turns) == ["so<eos>"]
    with pytest.raises(ValueError, match="need a tokenizer with a chat template"):
        TurnRenderer(tokenizer).render(TALK)


class MergingTokenizer:
    """Bytes, but two newlines are one token, as in many vocabularies."""

    def __init__(self) -> None:
        self._bytes = chat_tokenizer("chatml")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bytes, name)

    def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
        ids = self._bytes("0", add_special_tokens=False)
        parts = text.split("\n\n")
        pieces = [self._bytes(part, add_special_tokens=False).input_ids for part in parts]
        ids["input_ids"] = [*pieces[0], *(t for piece in pieces[1:] for t in [999, *piece])]
        return ids

    def decode(self, ids: list[int]) -> str:
        newline = self._bytes("\n", add_special_tokens=False).input_ids[0]
        plain = [t for token in ids for t in ([newline] * 2 if token == 999 else [token])]
        return str(self._bytes.decode(plain))


def test_letters_that_merge_with_the_generation_prompt_are_cut_there_as_when_decoding() -> None:
    tokenizer = MergingTokenizer()
    talk = [TALK[0], {"role": "assistant", "content": "\nyes\n\nno"}]
    whole = tokenizer(tokenizer.apply_chat_template(talk, tokenize=False)).input_ids
    prompt = render_chat(tokenizer, talk[:1])
    assert whole[: len(prompt)] != prompt
    (turns,) = TurnRenderer(tokenizer).render(talk)
    assert turns.tokens[: len(prompt)] == prompt
    assert turns.spans == ((len(prompt), len(turns.tokens)),)
    assert tokenizer.decode(turns.tokens[len(prompt) :]) == "\nyes\n\nno<|im_end|>"
    assert turns.tokens.count(999) == 1


@pytest.mark.parametrize(
    ("name", "talk", "words"),
    [
        ("alpaca", TALK, "with no special token"),
        ("deepseek-r1", TALK, "message 1: .*does not begin it as it asks for one when decoding"),
        ("mistral", [{"role": "system", "content": "x"}, *TALK], "cannot render it: no such role"),
        ("chatml", TALK[:1], "no message by an assistant comes after"),
        ("chatml", [TALK[1]], "no message by an assistant comes after"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_name(
    name: str, talk: list[dict[str, str]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        TurnRenderer(chat_tokenizer(name)).render(talk)
