"""A divergence summed over tokens without the logits of all tokens, and a draft and its loss as one module.

`dense_divergence` is the reference: all logits at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .alignment import Alignment
from .divergences import Divergence
from .heads import LogitHead, at_least_float32, cap_logits, divided, head_of
from .packing import Batch, supervised_states


def dense_divergence(
    draft_hidden: torch.Tensor,
    draft_head: LogitHead,
    target_hidden: torch.Tensor,
    target_head: LogitHead,
    divergence: Divergence,
    *,
    log_sums: torch.Tensor | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Return the sum of a divergence over N tokens, all logits at once: the reference.

    Args:
        draft_hidden: [N, d_draft].
        draft_head: of V rows.
        target_hidden: [N, d_target], takes no gradient.
        target_head: of the same V rows, takes no gradient.
        divergence: see `divergences`.
        log_sums: [N], log Σ exp of the target's logits, divided by the temperature, over its whole
            vocabulary; None: over these V rows; inf: none of its law is on them.
        temperature: divides the logits of both.
    """
    target_logits = _log_probs(target_head, target_hidden, log_sums, temperature)
    draft_logits = divided(draft_head.logits(draft_hidden), temperature)
    return divergence(target_logits, draft_logits).sum()


@torch.no_grad()
def _log_probs(
    head: LogitHead, hidden: torch.Tensor, log_sums: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    """Return the target's logits as log-probabilities: [n, V]."""
    logits = divided(head.logits(hidden), temperature)  # [n, V]
    return logits.log_softmax(-1) if log_sums is None else logits.sub_(log_sums[:, None])


def chunked_divergence(
    draft_hidden: torch.Tensor,
    draft_head: LogitHead,
    target_hidden: torch.Tensor,
    target_head: LogitHead,
    divergence: Divergence,
    *,
    log_sums: torch.Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
) -> torch.Tensor:
    """Return what `dense_divergence` does, value and gradient, with one chunk's logits at a time.

    The gradients of hidden states and head are made in the forward, chunk by chunk, so that nothing
    of size [N, V] is kept for the backward.
    """

    def chunk_loss(raw: torch.Tensor, chunk: slice) -> torch.Tensor:
        sums = None if log_sums is None else log_sums[chunk]
        target_logits = _log_probs(target_head, target_hidden[chunk], sums, temperature)  # [n, V]
        draft_logits = divided(cap_logits(at_least_float32(raw), draft_head.softcap), temperature)
        return divergence(target_logits, draft_logits).sum()

    total: torch.Tensor = _ChunkedLinearLoss.apply(  # type: ignore[no-untyped-call]
        draft_hidden, draft_head.weight, draft_head.bias, chunk_loss, chunk_tokens
    )
    return total


ChunkLoss = Callable[[torch.Tensor, slice], torch.Tensor]


class _ChunkedLinearLoss(torch.autograd.Function):
    """Σ over chunks of loss(hidden · weightᵀ + bias)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,  # [N, d]
        weight: torch.Tensor,  # [V, d]
        bias: torch.Tensor | None,  # [V]
        chunk_loss: ChunkLoss,
        chunk_tokens: int,
    ) -> torch.Tensor:
        # Products in the dtype that autocast would choose, sums in the parameters' own.
        device = hidden.device.type
        mixed = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if mixed else weight.dtype
        low_weight, low_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        total = torch.zeros(
            (), dtype=torch.promote_types(weight.dtype, torch.float32), device=hidden.device
        )
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = None if bias is None else torch.zeros_like(bias)
        with torch.autocast(device, enabled=False):
            for start in range(0, hidden.shape[0], chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                low_hidden = hidden[chunk].to(dtype)  # [n, d]
                loss, grad = _loss_and_gradient(low_hidden, low_weight, low_bias, chunk_loss, chunk)
                total += loss
                grad_hidden[chunk] = grad @ low_weight
                if grad_weight is not None:
                    _add_product(grad_weight, grad.T, low_hidden)
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
                del grad  # the next chunk's logits take its place
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled = [None if grad is None else grad * grad_total for grad in ctx.saved_tensors]
        return *scaled, None, None


def _loss_and_gradient(
    hidden: torch.Tensor,  # [n, d]
    weight: torch.Tensor,  # [V, d]
    bias: torch.Tensor | None,  # [V]
    chunk_loss: ChunkLoss,
    chunk: slice,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of a chunk and its gradient by the logits [n, V]."""
    raw = F.linear(hidden, weight, bias).requires_grad_()  # [n, V]
    with torch.enable_grad():
        loss = chunk_loss(raw, chunk)
        (grad,) = torch.autograd.grad(loss, raw)
    return loss.detach(), grad


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add left · right to the total in place; of one dtype, without a matrix for the product."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


class DraftLoss(torch.nn.Module):
    """A draft and its loss as one module, so that DDP and autocast see one forward."""

    def __init__(
        self,
        draft: Any,
        target_head: LogitHead,
        divergence: Divergence,
        *,
        temperature: float,
        chunk_tokens: int,
        alignment: Alignment | None = None,
    ) -> None:
        """Hold the draft and the rows of the target's head that stand for the draft's.

        Args:
            alignment: measures how far the draft's states are from the target's; None: not measured.
        """
        super().__init__()
        self.draft = draft
        self._target_head = target_head
        self._divergence = divergence
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens
        self.alignment = alignment

    def forward(
        self,
        batch: Batch,
        target_hidden: torch.Tensor,
        log_sums: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return sums over the supervised tokens, [2]: the divergence, the distance of states or 0.

        Args:
            batch: of N supervised positions.
            target_hidden: [N, d_target], the target's states at those positions.
            log_sums: [N], see `dense_divergence`.
        """
        hidden = supervised_states(self.draft, batch)  # [N, d]
        divergence = chunked_divergence(
            hidden,
            head_of(self.draft).first(len(self._target_head.weight)),
            target_hidden,
            self._target_head,
            self._divergence,
            log_sums=log_sums,
            temperature=self._temperature,
            chunk_tokens=self._chunk_tokens,
        )
        if self.alignment is None:
            return torch.stack([divergence, torch.zeros_like(divergence)])
        distance = self.alignment.distance(hidden, target_hidden)
        return torch.stack([divergence, distance.to(divergence)])
