"""A causal LM as two parts: a body that gives hidden states and a head that gives logits.

Logits of a whole batch never exist: bodies run on batches, heads on chunks of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ..spec.batch_masks import Masks


class LogitHead(NamedTuple):
    """What turns hidden states into logits; rows may be a part of the vocabulary."""

    weight: torch.Tensor  # [V, d]
    bias: torch.Tensor | None  # [V]
    softcap: float | None  # logits become softcap · tanh(logits / softcap)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, V] of hidden states [N, d], in float32 or better."""
        return self.from_products(self.products(hidden))

    def products(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden [N, d] · weightᵀ + bias, what logits are made of: [N, V], in the head's dtype."""
        return F.linear(hidden.to(self.weight.dtype), self.weight, self.bias)

    def from_products(self, products: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, V] that products [N, V] stand for, in float32 or better."""
        return cap_logits(at_least_float32(products), self.softcap)

    def rows(self, tokens: torch.Tensor) -> LogitHead:
        """Return the head of the vocabulary entries `tokens` [V'] alone, as a copy."""
        tokens = tokens.to(self.weight.device)
        bias = None if self.bias is None else self.bias[tokens]
        return LogitHead(self.weight[tokens], bias, self.softcap)

    def first(self, width: int) -> LogitHead:
        """Return the head of the first `width` entries, as a view."""
        if width == self.weight.shape[0]:
            return self  # no slice for a backward to undo
        bias = None if self.bias is None else self.bias[:width]
        return LogitHead(self.weight[:width], bias, self.softcap)


def head_of(model: Any) -> LogitHead:
    """Return the head of a causal LM; the tensors are the model's own.

    Raises:
        ValueError: if the model has none.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise ValueError(f"{type(model).__name__} has no language-model head")
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return LogitHead(head.weight, head.bias, softcap)


def hidden_states(
    model: Any,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    mask: Masks | None = None,
) -> torch.Tensor:
    """Return what the head reads, final norm included: [B, T, d].

    Rows are padded on the right, where a causal model cannot look: no mask is needed. One of ones
    says so; without any, transformers guesses from the padding id.

    Args:
        input_ids: [B, T].
        position_ids: [B, T], where each token stands; None: rows count from 0.
        mask: [B, 1, T, T], which tokens each one looks at, bool or to be added to the scores, or one for
            each kind of layer; None: those before it.
    """
    # A model that knows no position_ids is not asked for any.
    where = {} if position_ids is None else {"position_ids": position_ids}
    output = model.base_model(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids) if mask is None else mask,
        use_cache=False,
        **where,
    )
    return output.last_hidden_state  # type: ignore[no-any-return]


@torch.no_grad()
def check_split(model: Any, input_ids: torch.Tensor) -> None:
    """Raise where body and head do not reproduce the model (scaled logits, several heads, …).

    Args:
        input_ids: [B, T].

    Raises:
        ValueError: naming the model type.
    """
    with eval_mode(model):
        whole = at_least_float32(model(input_ids=input_ids, use_cache=False).logits)  # [B, T, V]
        parts = head_of(model).logits(hidden_states(model, input_ids))
    error, scale = (whole - parts).abs().max().item(), whole.abs().max().item()
    if not error <= torch.finfo(model.dtype).eps ** 0.5 * scale:
        raise ValueError(
            f"{type(model).__name__} (model type {model.config.model_type!r}): its head on its "
            f"last hidden states gives logits that differ from the model's by up to {error:.3g}; "
            "models that change logits after the head are not supported"
        )


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Turn dropout off while the block runs."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def cap_logits(logits: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Return logits bounded by ±softcap, or themselves where there is none."""
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def divided(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return logits divided by the temperature, or themselves where it is 1: no copy for nothing."""
    return logits if temperature == 1.0 else logits / temperature


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return half-precision tensors in float32, others as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
