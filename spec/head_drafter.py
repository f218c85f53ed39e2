"""Drafts by heads on the target's last hidden states, EAGLE- or Medusa-style, with the target's own head.

No target forward is added: the states are those of the verification that was run before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .batch_drafter import RowsDrafter
from .draft_folder import cut_head
from .draft_temperature import DraftTemperature
from .drafter import ModelDrafter, Proposal
from .draws import Draws
from .eagle import EagleHead, EagleModel
from .law import TokenLaw
from .medusa import MedusaHeads, MedusaModel
from .policy import LookaheadPolicy
from .split import with_layers
from .target_states import StatesTarget

Heads = EagleHead | MedusaHeads


def with_heads(target: Any, heads: Heads, kept: torch.Tensor | None = None) -> Any:
    """Return heads as a causal LM: `heads` of it, their layers, and all else the target's own modules.

    Args:
        target: a causal LM; not changed.
        kept: [V_draft], ascending tokens that the heads can propose, whose rows of the target's head are
            copied; None: all.

    Raises:
        ValueError: if the target has no list of its layers, or a kept token lies outside its head.
    """
    model = with_layers(target, heads.layers)
    model.add_module("heads", heads)
    if kept is not None:
        cut_head(model, kept)
        model.get_output_embeddings().requires_grad_(False)
    return model


class HeadDrafter(ModelDrafter):
    """Drafts by heads; the decoder takes `target` for its target, whose states they read.

    At most K tokens a round by K Medusa heads. Rows of a batch are decoded one by one: a batch keeps no
    states.
    """

    def __init__(
        self,
        model: Any,
        part: Any,
        *,
        width: int,
        kept: torch.Tensor | None = None,
        temperature: float | DraftTemperature = 1.0,
    ) -> None:
        """Put heads beside a target.

        Args:
            model: the target.
            part: of `with_heads`, made of the target and `kept`.
            width: V, entries of the target's vocabulary.
            kept, temperature: see `ModelDrafter`.

        Raises:
            ValueError: if the target shows no states that its head reads, or heads of this kind do not run
                beside it; names it.
        """
        self.target = StatesTarget(model, width=width)
        super().__init__(part, width=width, kept=kept, temperature=temperature)
        heads: Heads = part.heads
        limit = self.cached.width
        self._driven: EagleModel | MedusaModel
        if isinstance(heads, EagleHead):
            self._driven = EagleModel(part, self.target, width=limit)
            self.gamma_max = None
        else:
            self._driven = MedusaModel(part, self.target, width=limit)
            self.gamma_max = len(heads.blocks)
        self.cached = self._driven

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self.begin(self.target.cover)

    def begin(self, start: int) -> None:
        """Let the target's states count from position `start`; a reset lets them from what is covered then."""
        self._driven.begin(start)

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        law: TokenLaw,
        draws: Draws,
    ) -> Proposal:
        if self.gamma_max is not None:
            gamma = min(gamma, self.gamma_max)
        self._driven.begin_round(len(tokens), gamma)
        return super().propose(tokens, gamma, policy, law, draws)

    def twin(self) -> HeadDrafter:
        return HeadDrafter(
            self.target.model,
            self.cached.model,
            width=self.width,
            kept=self.kept,
            temperature=self.temperature,
        )

    def for_rows(self, rows: int) -> RowsDrafter:
        raise ValueError(
            f"{self!r} reads the target's states, which a batch of {rows} rows does not keep"
        )

    def __repr__(self) -> str:
        kind = "eagle" if self.gamma_max is None else f"medusa, {self.gamma_max}"
        return f"HeadDrafter({kind})"
