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
from .heads import LogitHead, divided, head_of
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
    with torch.no_grad():
        target_logits = _log_probs(target_head.logits(target_hidden), log_sums, temperature)
    draft_logits = divided(draft_head.logits(draft_hidden), temperature)  # [N, V]
    return divergence(target_logits, draft_logits).sum()


def _log_probs(
    logits: torch.Tensor, log_sums: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    """Return the target's logits [n, V], no longer needed, as log-probabilities: [n, V]."""
    logits = divided(logits, temperature)
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
    of size [N, V] is kept for the backward. Within a chunk the divergence is shown few tokens at once: the
    many tensors of the size of its logits that it makes stay small, and on a CPU in its cache.
    """

    def target_products(tokens: slice) -> torch.Tensor:
        return target_head.products(target_hidden[tokens])

    def loss(target: torch.Tensor, draft: torch.Tensor, tokens: slice) -> torch.Tensor:
        sums = None if log_sums is None else log_sums[tokens]
        target_logits = _log_probs(target_head.from_products(target), sums, temperature)  # [n, V]
        draft_logits = divided(draft_head.from_products(draft), temperature)  # [n, V]
        return divergence(target_logits, draft_logits).sum()

    total: torch.Tensor = _ChunkedLinearLoss.apply(  # type: ignore[no-untyped-call]
        draft_hidden, draft_head.weight, draft_head.bias, target_products, loss, chunk_tokens
    )
    return total


# Logits that a thread of a CPU works on at once: 2 MiB in float32, which its cache holds, and far below the
# sizes that the C library takes from the system, and gives back, each time.
BLOCK_LOGITS = 1 << 19

TargetProducts = Callable[[slice], torch.Tensor]  # of tokens: [n, V]
BlockLoss = Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor]  # of both products [n, V]


class _ChunkedLinearLoss(torch.autograd.Function):
    """Σ over chunks of loss(target_products, hidden · weightᵀ + bias)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,  # [N, d]
        weight: torch.Tensor,  # [V, d]
        bias: torch.Tensor | None,  # [V]
        target_products: TargetProducts,
        loss: BlockLoss,
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
        # Chunks are added up in float32, though FSDP2 hands out weights in bfloat16.
        grad_weight = (
            torch.zeros_like(weight, dtype=total.dtype) if ctx.needs_input_grad[1] else None
        )
        grad_bias = None if bias is None else torch.zeros_like(bias)
        with torch.autocast(device, enabled=False):
            for start in range(0, hidden.shape[0], chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                low_hidden = hidden[chunk].to(dtype)  # [n, d]
                target = target_products(chunk)  # [n, V]
                draft = F.linear(low_hidden, low_weight, low_bias)  # [n, V]
                total += _turn_into_gradient(draft, target, loss, start)
                del target
                grad_hidden[chunk] = draft @ low_weight
                if grad_weight is not None:
                    _add_product(grad_weight, draft.T, low_hidden)
                if grad_bias is not None:
                    grad_bias += draft.sum(0)
                del draft  # the next chunk's products take its place
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled = [None if grad is None else grad * grad_total for grad in ctx.saved_tensors]
        return *scaled, None, None, None


def _turn_into_gradient(
    draft: torch.Tensor,  # [n, V]
    target: torch.Tensor,  # [n, V]
    loss: BlockLoss,
    first: int,
) -> torch.Tensor:
    """Return the loss of a chunk, and leave its gradient where the draft's products were.

    Args:
        first: which of all tokens is the chunk's first.
    """
    dtype = torch.promote_types(draft.dtype, torch.float32)
    total = torch.zeros((), dtype=dtype, device=draft.device)
    rows = _block_rows(draft)
    for start in range(0, len(draft), rows):
        block = slice(start, min(start + rows, len(draft)))
        products = draft[block].requires_grad_()  # [rows, V]
        with torch.enable_grad():
            value = loss(target[block], products, slice(first + start, first + block.stop))
            (grad,) = torch.autograd.grad(value, products)
        draft[block] = grad
        total += value.detach()
    return total


def _block_rows(logits: torch.Tensor) -> int:
    """Return how many rows of [n, V] the divergence is shown at once: all of them on an accelerator."""
    if logits.device.type != "cpu":
        return len(logits)
    return max(1, BLOCK_LOGITS * torch.get_num_threads() // logits.shape[1])


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
        self._no_split_modules = draft._no_split_modules  # what FSDP2 shards one by one
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
