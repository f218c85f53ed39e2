"""What a request asks for. Names are vLLM's, so that knowledge transfers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BadWord = str | tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when to stop.

    Logits go through, in this order: logit_bias, repetition_penalty, frequency_penalty and
    presence_penalty, bad_words and min_tokens, custom processors, temperature, top_k, top_p, min_p.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    n: int = 1
    """Outputs for each prompt, drawn independently; see RequestOutput.outputs."""
    temperature: float = 1.0
    """0 decodes greedily; below 1 sharpens, above 1 flattens."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens with at least this mass; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the likeliest; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of tokens seen before, in the prompt or
    the output; 1 is none."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens generated before, -2 to 2; the prompt does not count."""
    frequency_penalty: float = 0.0
    """Taken off the logits once for each time the token was generated, -2 to 2; the prompt does not count."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Token id -> what is added to its logit; -inf forbids it."""
    bad_words: tuple[BadWord, ...] = ()
    """Strings, or sequences of token ids, that are never completed: the last token is forbidden where the
    ones before it stand at the end of prompt and output. A string counts in its tokens with and without a
    space before it; another way of cutting it into tokens is not caught (as in vLLM)."""
    max_tokens: int = 256
    """Most tokens to generate."""
    min_tokens: int = 0
    """End tokens and stop_token_ids are forbidden, and stop strings pass, before this many tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end the output; the text ends before the first of them."""
    include_stop_str_in_output: bool = False
    """Let the text end with the stop string, or the text of the stop token, instead of before it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, besides the model's own end-of-sequence tokens."""
    ignore_eos: bool = False
    """Go on after the model's own end-of-sequence tokens."""
    logprobs: int | None = None
    """Report each emitted token's log-probability and the k likeliest; 0: the emitted one's only. They
    are of the raw logits (log-softmax before penalties, temperature and filters), vLLM's default."""
    seed: int | None = None
    """Seeds the request's own random generator; None draws a fresh seed."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        check_integer("n", self.n, low=1)
        _check_number("temperature", self.temperature, low=0.0)
        check_integer("top_k", self.top_k, low=0)
        _check_number("top_p", self.top_p, low=0.0, high=1.0, above_low=True)
        _check_number("min_p", self.min_p, low=0.0, high=1.0)
        _check_number("repetition_penalty", self.repetition_penalty, low=0.0, above_low=True)
        _check_number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        _check_number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        object.__setattr__(self, "bad_words", _checked_words(self.bad_words))
        check_integer("max_tokens", self.max_tokens, low=1)
        check_integer("min_tokens", self.min_tokens, low=0)
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens = {self.max_tokens}, got {self.min_tokens}"
            )
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise ValueError(f"stop must be non-empty strings, got {self.stop!r}")
        for name in ("include_stop_str_in_output", "ignore_eos"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {value!r}")
        for token in self.stop_token_ids:
            check_integer("stop_token_ids", token, low=0)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, low=0)
        if self.seed is not None:
            check_integer("seed", self.seed, low=0, high=2**63 - 1)

    @property
    def greedy(self) -> bool:
        """Whether the target's law is a one-hot."""
        return self.temperature == 0.0

    def check_vocabulary(self, width: int) -> None:
        """Raise where a token id lies outside a vocabulary of `width` entries.

        Raises:
            ValueError: naming the field and the id.
        """
        words = [token for word in self.bad_words if not isinstance(word, str) for token in word]
        for name, tokens in (
            ("logit_bias", self.logit_bias),
            ("bad_words", words),
            ("stop_token_ids", self.stop_token_ids),
        ):
            for token in tokens:
                if token >= width:
                    raise ValueError(f"{name} must have token ids in [0, {width}), got {token}")
        if self.logprobs is not None and self.logprobs > width:
            raise ValueError(f"logprobs must be an integer in [0, {width}], got {self.logprobs}")


def _checked_bias(bias: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {bias!r}")
    for token, value in bias.items():
        check_integer("logit_bias's token ids", token, low=0)
        if value != -math.inf:
            _check_number(f"logit_bias[{token}]", value, low=-math.inf)
    return dict(bias)


def _checked_words(words: Sequence[str | Sequence[int]]) -> tuple[BadWord, ...]:
    return tuple(_checked_word(word) for word in ((words,) if isinstance(words, str) else words))


def _checked_word(word: str | Sequence[int]) -> BadWord:
    if isinstance(word, str):
        if not word.strip():
            raise ValueError(f"bad_words must be strings that are not blank, got {word!r}")
        return word
    if not isinstance(word, Sequence) or not word:
        raise ValueError(f"bad_words must be strings or sequences of token ids, got {word!r}")
    tokens: tuple[int, ...] = tuple(word)  # type: ignore[arg-type]  # no str here
    for token in tokens:
        check_integer("bad_words' token ids", token, low=0)
    return tokens


def refuse_fields(params: SamplingParams, names: Sequence[str], where: str) -> None:
    """Raise where a field differs from its default.

    Args:
        where: ends the sentence "… is not supported".

    Raises:
        ValueError: naming the field and the value.
    """
    for name in names:
        if (value := getattr(params, name)) != getattr(SamplingParams(), name):
            raise ValueError(f"{name} is not supported {where}, got {value!r}")


def _check_number(
    name: str, value: float, *, low: float, high: float = math.inf, above_low: bool = False
) -> None:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    inside = numeric and math.isfinite(value) and low <= value <= high
    if not inside or (above_low and value == low):
        bracket = "(" if above_low or low == -math.inf else "["
        end = ")" if high == math.inf else "]"
        raise ValueError(
            f"{name} must be a number in {bracket}{low:g}, {high:g}{end}, got {value!r}"
        )


def check_integer(name: str, value: int, *, low: int, high: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        allowed = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
