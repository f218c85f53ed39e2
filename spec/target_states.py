"""A target that keeps its last hidden states, for drafters that read them: nothing runs twice for it.

The states are what the target's own forward hands to its head, final norm included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .cached import TOLERANCE, CachedModel


class StatesTarget(CachedModel):
    """A model in its cache, with the state of each covered token beside it.

    States above `cover` are stale, like the keys there: a rollback is a change of length.
    """

    states: torch.Tensor  # [capacity, d]

    def __init__(self, model: Any, *, width: int | None = None) -> None:
        """Wrap a model, and try whether its head on its states says what it says.

        Args:
            model: a causal LM in eval mode.
            width: see `CachedModel`.

        Raises:
            ValueError: if that is not so, or its state cannot be rolled back; names the model.
        """
        super().__init__(model, width=width)
        weight = model.get_output_embeddings().weight
        self.states = weight.new_zeros(0, weight.shape[1])
        self._try()

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        if len(self.states) < capacity:
            self.states = self.states.new_zeros(capacity, self.states.shape[1])

    @torch.inference_mode()
    def advance(self, new: Sequence[int], keep: int = 1) -> torch.Tensor:
        begin = self.cover
        seen: list[torch.Tensor] = []
        hook = self.model.base_model.register_forward_hook(
            lambda module, args, output: seen.append(output.last_hidden_state)
        )
        try:
            logits = super().advance(new, keep)
        finally:
            hook.remove()
        if len(seen) != 1:
            raise RuntimeError("its forward does not call its body as a whole")
        self.states[begin : self.cover] = seen[0][0]  # of [1, Q, d]
        return logits

    @torch.no_grad()
    def _try(self) -> None:
        name = type(self.model).__name__
        rows = int(self.model.get_output_embeddings().weight.shape[0])
        tokens = [(7 * position + 3) % rows for position in range(3)]
        self.reset(len(tokens))
        try:
            logits = self.advance(tokens, keep=3).float()  # [3, V]
            found = head_logits(self.model, self.states[:3])[:, : self.width].float()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ValueError(f"{name} does not show its last hidden states: {error}") from error
        off, spread = float((found - logits).abs().max()), float(logits.std())
        if not off <= TOLERANCE * spread:
            raise ValueError(
                f"{name} changes its logits after its head, so that heads on its hidden states cannot "
                f"draft: they are {off:.2g} apart where their spread is {spread:.2g}"
            )


def head_logits(model: Any, states: torch.Tensor) -> torch.Tensor:
    """Return the logits [..., V] of states [..., d], by the model's own head."""
    logits: torch.Tensor = model.get_output_embeddings()(states)
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)
