"""The accept/reject step in plain torch: what the Triton kernels must equal, and what runs on a CPU."""

from __future__ import annotations

import torch


def verify_block_reference(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    drafted: torch.Tensor,
    drafted_count: torch.Tensor,
    temperature: torch.Tensor,
    uniforms: torch.Tensor,
    draft_temperature: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `verify_block`. Computes in float32, or in float64 where the logits are."""
    rows = torch.arange(len(drafted), device=drafted.device)  # [B]
    places = torch.arange(drafted.shape[1], device=drafted.device)  # [γ]
    tested = drafted.masked_fill(places >= drafted_count[:, None], 0)  # [B, γ]
    p = _laws(target_logits, temperature)  # [B, γ+1, V]
    q = torch.zeros_like(p)  # [B, γ+1, V]; its last row is never drafted from
    q[:, :-1].scatter_(-1, tested[..., None], 1.0)
    if draft_logits is not None:
        drawn = temperature if draft_temperature is None else draft_temperature  # [B]
        laws = _laws(draft_logits, drawn)  # [B, γ, V]
        q[:, :-1] = torch.where(drawn[:, None, None] > 0.0, laws, q[:, :-1])

    p_tested = p[:, :-1].gather(-1, tested[..., None])[..., 0]  # [B, γ]
    q_tested = q[:, :-1].gather(-1, tested[..., None])[..., 0]  # [B, γ]
    kept = (uniforms[:, :-1] < p_tested / q_tested) & (places < drafted_count[:, None])
    accepted = kept.long().cumprod(-1).sum(-1)  # [B]

    rejected = accepted < drafted_count  # [B]
    rest = p[rows, accepted] - q[rows, accepted] * rejected[:, None]  # [B, V]
    rest = rest.clamp(min=0.0)
    rest = torch.where(rest.sum(-1, keepdim=True) > 0.0, rest, p[rows, accepted])
    return accepted, _invert(rest, uniforms[rows, accepted + rejected])


def _laws(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return the law of each row [B, N, V]; the one-hot of the largest logit where temperature is 0."""
    logits = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    sampled = temperature[:, None, None] > 0.0  # [B, 1, 1]
    laws = (logits / temperature[:, None, None].masked_fill(~sampled, 1.0)).softmax(-1)
    best = torch.zeros_like(laws).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where(sampled, laws, best)


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Draw an index of each row of weights [B, V] with its uniform [B]; never one of weight 0."""
    cumulative = weights.double().cumsum(-1)  # [B, V]
    beyond = cumulative > uniforms[:, None] * cumulative[:, -1:]
    return (beyond & (weights > 0.0)).to(torch.uint8).argmax(-1)  # the first
