"""The law that one request's tokens are drawn from (a stand-in with the interface of the contract)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .params import SamplingParams
from .sampling import penalize_repetition, token_probs


class TokenLaw:
    """Penalties over the request's own history, then temperature and filters."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        width: int,
        eos_token_ids: Sequence[int],
        device: torch.device,
    ) -> None:
        self._params = params
        self._history = list(prompt)

    def probs(
        self,
        logits: torch.Tensor,
        drafted: Sequence[int],
        first: int = 0,
        *,
        temperature_factor: float = 1.0,
    ) -> torch.Tensor:
        """[N, V] from raw logits [N, V]; row i follows the committed tokens and drafted[: first + i]."""
        seen = [*self._history, *drafted[:first]]
        penalty = self._params.repetition_penalty
        logits = penalize_repetition(logits, penalty, seen, drafted[first:])
        return token_probs(logits, self._params, temperature_factor=temperature_factor)

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens follow what was committed."""
        self._history += tokens
