"""Tells rounding from error where two greedy outputs of one model differ.

Forwards of other shapes round differently, so in 16 bits two nearly equal logits may change places.
Such a difference is a tie; any other is a fault of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

ULPS = 8  # units in the last place of the top logit, in the model's dtype


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two outputs part, and how near the target's logits of the two tokens are there."""

    position: int  # in the output
    tokens: tuple[int, int]
    gap: float  # between the logits of the two tokens
    bound: float  # gaps up to here are rounding

    @property
    def tie(self) -> bool:
        """Whether rounding explains it."""
        return self.gap <= self.bound


@torch.inference_mode()
def first_difference(
    model: Any, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]
) -> Difference | None:
    """Return the first place where two greedy outputs of a model differ; None if one begins the other.

    The model reads the tokens before that place once more, in one forward. Of the two outputs at least
    one has the likeliest token there by its own rounding; both logits are within the bound of the top
    one where rounding explains the difference.

    Args:
        model: a causal LM in eval mode.
        prompt: of both outputs.
    """
    pairs = list(zip(ours, theirs, strict=False))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        return None
    ids = torch.tensor([[*prompt, *ours[:position]]], device=next(model.parameters()).device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]  # [V]
    tokens = ours[position], theirs[position]
    top = float(logits.max())
    gap = top - min(float(logits[token]) for token in tokens)
    return Difference(position, tokens, gap, ULPS * _ulp(top, logits.dtype))


def _ulp(value: float, dtype: torch.dtype) -> float:
    """Return the distance from a value to the next that the dtype can hold."""
    info = torch.finfo(dtype)
    if value == 0.0:
        return float(info.tiny)
    return float(info.eps) * 2.0 ** math.floor(math.log2(abs(value)))
