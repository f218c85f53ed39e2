"""All randomness of a request, behind two questions.

Every random choice of the loop is one of these, so a test can enumerate them instead of sampling.
"""

from __future__ import annotations

from typing import Protocol

import torch

from .one_hot import Laws, OneHot

SPREAD = 0x9E3779B1  # odd, near 2³² / golden ratio: multiples of it lie far apart modulo 2³²


class Draws(Protocol):
    """Where chance enters."""

    def token(self, probs: torch.Tensor) -> int:
        """Draw an index from a law [V] that sums to 1 up to rounding."""

    def accepts(self, probability: float) -> bool:
        """Return True with this probability; always for 1 or more, never for 0."""


class GeneratorDraws:
    """Draws from one `torch.Generator` of the request's own; the global generator is never touched."""

    def __init__(self, seed: int | None) -> None:
        self.generator = torch.Generator()
        if seed is None:
            self.generator.seed()
        else:
            # The generator reads the low 32 bits only: seeds above them are folded in.
            self.generator.manual_seed((seed ^ ((seed >> 32) * SPREAD)) & 0xFFFFFFFF)

    def token(self, probs: torch.Tensor) -> int:
        """Invert the cumulative law in float64: an index of probability 0 is never drawn."""
        cumulative = probs.cumsum(-1, dtype=torch.float64)  # [V]
        drawn = self._uniform() * cumulative[-1]
        return int(torch.searchsorted(cumulative, drawn, right=True))

    def accepts(self, probability: float) -> bool:
        # u lies in [0, 1), so `<` never takes a token of probability 0; `<=` would.
        return bool(self._uniform() < probability)

    def _uniform(self) -> torch.Tensor:
        return torch.rand((), generator=self.generator, dtype=torch.float64)


def drawn(laws: Laws, row: int, draws: Draws) -> int:
    """Draw from one of the laws; a one-hot one leaves nothing to chance."""
    return laws.tokens[row] if isinstance(laws, OneHot) else draws.token(laws[row])
