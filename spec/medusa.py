"""Medusa-style heads: K maps of the target's last state, one for each of the tokens that follow the next.

All laws of a round are there at once, and none knows what was drafted before it.

Source: Medusa, Cai et al. 2024 (arXiv 2401.10774).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from .cached import CachedModel
from .exit_adapter import ExitAdapter
from .target_states import StatesTarget, head_logits


class MedusaHeads(nn.Module):
    """The weights: K blocks x to A·x + b + D·silu(U·x), each read by the target's head."""

    layers: Sequence[nn.Module] = ()

    def __init__(self, target: Any, count: int) -> None:
        """Make heads that say what the target says of the next token.

        Args:
            target: a causal LM.
            count: K.
        """
        super().__init__()
        weight = target.get_output_embeddings().weight
        size = int(weight.shape[1])
        self.blocks = nn.ModuleList(ExitAdapter(size, size, seed) for seed in range(count))
        self.to(weight.device, weight.dtype)

    @property
    def adapters(self) -> list[ExitAdapter]:
        """The blocks, as what they are."""
        return cast(list[ExitAdapter], list(self.blocks))

    def forward(self, state: torch.Tensor, count: int) -> torch.Tensor:
        """Return what the first `count` blocks make of states [..., d]: [count, ..., d]."""
        return torch.stack([block(state) for block in self.blocks[:count]])


class MedusaModel(CachedModel):
    """Medusa heads beside the target whose states they read. There is nothing to cache: they read one state."""

    def __init__(self, model: Any, target: StatesTarget, *, width: int | None) -> None:
        """Hold the heads.

        Args:
            model: of `with_heads`, with Medusa heads.
            target: whose states they read.
            width: see `CachedModel`.
        """
        super().__init__(model, width=width)
        self._target = target
        self._length = 0  # tokens that were committed when this round began
        self._gamma = 0
        self._logits: torch.Tensor | None = None  # [γ, V_draft], of this round

    def begin(self, start: int) -> None:
        """Begin a sequence. States of a prompt are states like any other here."""
        self._logits = None

    def begin_round(self, length: int, gamma: int) -> None:
        """Begin a round after `length` committed tokens, in which at most `gamma` laws will be wanted."""
        self._length, self._gamma, self._logits = length, gamma, None

    @torch.inference_mode()
    def advance(self, new: Sequence[int], keep: int = 1) -> torch.Tensor:
        assert keep == 1, f"keep = {keep}: heads have one law a token"
        end = self._cache.cover = self.cover + len(new)
        if self._logits is None:
            # The target's state before the last token: of a prompt of one token there is none.
            states = self._target.states
            state = (
                states[self._length - 2] if self._length > 1 else states.new_zeros(states.shape[1])
            )
            self._logits = head_logits(self.model, self.model.heads(state, self._gamma))
        depth = end - self._length
        return self._logits[depth : depth + 1, : self.width]  # [1, V]
