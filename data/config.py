"""Settings of what this package writes.

Imports neither torch nor transformers, so that a command's `--help` is quick.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusConfig:
    """How the target answers the prompts of a corpus.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    temperatures: tuple[float, ...] = (0.0, 0.7)
    """Each prompt is answered once per temperature; 0 is greedy."""
    max_new_tokens: int = 128
    """Most tokens of an answer; longer ones are cut and marked "length"."""
    batch_size: int = 32
    """Prompts answered at once."""
    seed: int = 0
    """Seeds the sampled answers."""
    top_p: float = 1.0
    """Sampled answers draw from the smallest set of likeliest tokens with at least this mass."""
    top_k: int = 0
    """Sampled answers draw from so many likeliest tokens; 0: from all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperatures", _checked_temperatures(self.temperatures))
        check_integer("top_k", self.top_k, low=0)
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p!r}")
        check_integer("max_new_tokens", self.max_new_tokens, low=1)
        check_integer("batch_size", self.batch_size, low=1)
        check_integer("seed", self.seed, low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """How decode traces are recorded.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    gamma: int = 4
    """Tokens drafted in every round."""
    max_tokens: int = 64
    """Most tokens of an answer."""
    temperatures: tuple[float, ...] = (0.0,)
    """Each prompt is decoded once per temperature; 0 is greedy."""
    seed: int = 0
    """Seeds the sampled answers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperatures", _checked_temperatures(self.temperatures))
        check_integer("gamma", self.gamma, low=1)
        check_integer("max_tokens", self.max_tokens, low=2)  # with 1 there is no room for a draft
        check_integer("seed", self.seed, low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """How dense traces are recorded.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    gamma_max: int = 8
    """Tokens drafted from every position."""
    max_tokens: int = 128
    """Most tokens of a text; longer ones are cut, shorter ones end by themselves."""
    texts_per_part: int = 16
    """Texts written at once; an interruption loses no more than these."""

    def __post_init__(self) -> None:
        check_integer("gamma_max", self.gamma_max, low=1)
        check_integer("max_tokens", self.max_tokens, low=2)
        check_integer("texts_per_part", self.texts_per_part, low=1)


def check_integer(name: str, value: int, *, low: int, high: int | None = None) -> None:
    """Raise ValueError unless `value` is an integer in [low, high]."""
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < low or (high is not None and value > high):
        end = "" if high is None else f" and <= {high}"
        raise ValueError(f"{name} must be an integer >= {low}{end}, got {value!r}")


def _checked_temperatures(values: tuple[float, ...]) -> tuple[float, ...]:
    numeric = isinstance(values, tuple | list) and all(
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0.0 <= value < math.inf  # NaN fails this too
        for value in values
    )
    if not numeric or not values or len(set(values)) < len(values):
        raise ValueError(
            f"temperatures must be distinct numbers in [0, inf), one or more, got {values!r}"
        )
    return tuple(float(value) for value in values)
