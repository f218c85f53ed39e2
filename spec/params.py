"""What a request asks for. Names are vLLM's, so that knowledge transfers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when to stop.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    temperature: float = 1.0
    """0 decodes greedily; below 1 sharpens, above 1 flattens."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens with at least this mass; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the likeliest; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of tokens seen before; 1 is none."""
    max_tokens: int = 256
    """Most tokens to generate."""
    stop: tuple[str, ...] = ()
    """Strings that end the output; the text ends before the first of them."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, besides the model's own end-of-sequence tokens."""
    ignore_eos: bool = False
    """Go on after the model's own end-of-sequence tokens."""
    seed: int | None = None
    """Seeds the request's own random generator; None draws a fresh seed."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        _check_number("temperature", self.temperature, low=0.0)
        _check_integer("top_k", self.top_k, low=0)
        _check_number("top_p", self.top_p, low=0.0, high=1.0, above_low=True)
        _check_number("min_p", self.min_p, low=0.0, high=1.0)
        _check_number("repetition_penalty", self.repetition_penalty, low=0.0, above_low=True)
        _check_integer("max_tokens", self.max_tokens, low=1)
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise ValueError(f"stop must be non-empty strings, got {self.stop!r}")
        for token in self.stop_token_ids:
            _check_integer("stop_token_ids", token, low=0)
        if self.seed is not None:
            _check_integer("seed", self.seed, low=0)

    @property
    def greedy(self) -> bool:
        """Whether the target's law is a one-hot."""
        return self.temperature == 0.0


def _check_number(
    name: str, value: float, *, low: float, high: float = math.inf, above_low: bool = False
) -> None:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    inside = numeric and math.isfinite(value) and low <= value <= high
    if not inside or (above_low and value == low):
        bracket = "(" if above_low else "["
        end = ")" if high == math.inf else "]"
        raise ValueError(
            f"{name} must be a number in {bracket}{low:g}, {high:g}{end}, got {value!r}"
        )


def _check_integer(name: str, value: int, *, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} must be an integer >= {low}, got {value!r}")
