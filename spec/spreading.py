"""Spreads a draft's logits over the target's vocabulary."""

from __future__ import annotations

import torch

from .sampling import precision

MISSING = -1e30  # logit of what a draft cannot say: of probability 0 unless nothing else is allowed


def spread(logits: torch.Tensor, kept: torch.Tensor | None, width: int) -> torch.Tensor:
    """Return logits [N, V_draft] as [N, V]; what the draft cannot say is MISSING.

    Args:
        kept: [V_draft], the token each entry stands for; None: entry i is token i.
        width: V.
    """
    if kept is None and logits.shape[-1] == width:
        return logits
    whole = logits.new_full((len(logits), width), MISSING, dtype=precision(logits))
    if kept is None:
        whole[:, : logits.shape[-1]] = logits
    else:
        whole[:, kept] = logits.to(whole)
    return whole
