"""Divergences between target and draft, and their sum over tokens without the logits of all tokens.

A divergence is a function of (target_logits [N, V], draft_logits [N, V]) that gives a loss per
token [N]. The target's logits are log-probabilities. With a cut head they cover the kept tokens only:
their exp adds up to the mass that the draft can propose, a softmax of them is the law renormalised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .alignment import Alignment
from .heads import LogitHead, at_least_float32, cap_logits, head_of
from .packing import Batch, supervised_states

Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def forward_kl(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return KL(p ‖ q) = Σ_x p(x) · (log p(x) − log q(x)) in nats. [N, V] each to [N].

    Tokens that the target excludes (logit −inf) add nothing, in value and gradient.
    """
    log_p = target_logits.log_softmax(-1)
    log_q = draft_logits.log_softmax(-1)
    excluded = log_p == -torch.inf
    return (log_p.exp() * (log_p - log_q).masked_fill(excluded, 0.0)).sum(-1)


def log_acceptance(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return log α = log Σ_x min(p(x), q(x)), p not renormalised. [N, V] each to [N]."""
    return torch.minimum(target_logits, draft_logits.log_softmax(-1)).logsumexp(-1)


def total_variation(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return 1 − α, the share of drafts that is rejected: TV(p, q) over the whole vocabulary."""
    return 1.0 - log_acceptance(target_logits, draft_logits).exp()


def negative_log_acceptance(
    target_logits: torch.Tensor, draft_logits: torch.Tensor
) -> torch.Tensor:
    """Return −log α. Its gradient does not vanish where nothing is accepted yet."""
    return -log_acceptance(target_logits, draft_logits)


def lk_hybrid(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return λ·KL + (1 − λ)·TV with λ = exp(−3 α) of each token, a constant for the gradient.

    Source: LK losses, arXiv 2602.23881.
    """
    alpha = log_acceptance(target_logits, draft_logits).exp()
    weight = torch.exp(-3.0 * alpha.detach())
    return weight * forward_kl(target_logits, draft_logits) + (1.0 - weight) * (1.0 - alpha)


class Loss(NamedTuple):
    """A divergence to train with."""

    divergence: Divergence
    whole: bool  # needs the target's law over the whole vocabulary, not only over what is kept


LOSSES = {
    "kl": Loss(forward_kl, whole=False),
    "tv": Loss(total_variation, whole=True),
    "nla": Loss(negative_log_acceptance, whole=True),
    "lk": Loss(lk_hybrid, whole=True),
}


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
        log_sums: [N], log Σ exp of the target's logits, divided by the temperature, over its whole
            vocabulary; None: over these V rows.
        temperature: divides the logits of both.
    """
    target_logits = _log_probs(target_head.logits(target_hidden) / temperature, log_sums)
    draft_logits = draft_head.logits(draft_hidden) / temperature
    return divergence(target_logits, draft_logits).sum()


@torch.no_grad()
def _log_probs(logits: torch.Tensor, log_sums: torch.Tensor | None) -> torch.Tensor:
    if log_sums is None:
        return logits.log_softmax(-1)
    return logits - log_sums[:, None]


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
        target_logits = _log_probs(
            target_head.logits(target_hidden[chunk]) / temperature,
            None if log_sums is None else log_sums[chunk],
        )  # [n, V]
        draft_logits = cap_logits(at_least_float32(raw), draft_head.softcap) / temperature
        return divergence(target_logits, draft_logits).sum()

    total: torch.Tensor = _ChunkedLinearLoss.apply(  # type: ignore[no-untyped-call]
        draft_hidden, draft_head.weight, draft_head.bias, chunk_loss, chunk_tokens
    )
    return total


class _ChunkedLinearLoss(torch.autograd.Function):
    """Σ over chunks of loss(hidden · weightᵀ + bias)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,  # [N, d]
        weight: torch.Tensor,  # [V, d]
        bias: torch.Tensor | None,  # [V]
        chunk_loss: Callable[[torch.Tensor, slice], torch.Tensor],
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
                raw = F.linear(low_hidden, low_weight, low_bias)  # [n, V]
                with torch.enable_grad():
                    loss = chunk_loss(raw.requires_grad_(), chunk)
                    (grad,) = torch.autograd.grad(loss, raw)  # [n, V]
                total += loss.detach()
                grad_hidden[chunk] = grad @ low_weight
                if grad_weight is not None:
                    grad_weight += grad.T @ low_hidden
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled = [None if grad is None else grad * grad_total for grad in ctx.saved_tensors]
        return *scaled, None, None


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
