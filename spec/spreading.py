"""Spreads a draft's logits over the target's vocabulary."""

from __future__ import annotations

import torch

from .sampling import precision

MISSING = -1e30  # logit of what a draft cannot say: of probability 0 unless nothing else is allowed


def spread(
    rows: torch.Tensor, kept: torch.Tensor | None, width: int, *, missing: float = MISSING
) -> torch.Tensor:
    """Return a draft's logits or laws [N, V_draft] as [N, V].

    Args:
        kept: [V_draft], the token each entry stands for; None: entry i is token i.
        width: V.
        missing: stands for what the draft cannot say; 0 where the rows are laws.
    """
    if kept is None and rows.shape[-1] == width:
        return rows
    whole = rows.new_full((len(rows), width), missing, dtype=precision(rows))
    if kept is None:
        whole[:, : rows.shape[-1]] = rows
        return whole
    return whole.index_copy_(1, kept, rows.to(whole))
