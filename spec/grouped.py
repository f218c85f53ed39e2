"""Attention of few queries over many rows' caches, for CPUs: one small product a key/value head.

torch's CPU kernel for scaled-dot-product attention takes one query head at a time, which for single
queries over ragged rows reads the keys of a group once for each of its heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

NAME = "foredraft_grouped"


def attend(
    module: Any,
    query: torch.Tensor,  # [B, H, Q, D]
    key: torch.Tensor,  # [B, KV, K, D]
    value: torch.Tensor,  # [B, KV, K, D_value]
    attention_mask: torch.Tensor | None,  # [B or 1, 1, Q, K], bool
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Return [B, Q, H, D_value], in the shape of transformers' attention functions."""
    rows, heads, queries, size = query.shape
    groups = key.shape[1]
    grouped = query.reshape(rows, groups, -1, size)  # [B, KV, H/KV · Q, D]
    scores = (grouped @ key.transpose(2, 3)) * (size**-0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores.view(rows, heads, queries, -1).masked_fill(~attention_mask, -torch.inf)
        scores = scores.view(rows, groups, -1, key.shape[2])
    mixed = scores.softmax(-1) @ value  # [B, KV, H/KV · Q, D_value]
    return mixed.view(rows, heads, queries, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def grouped_attention(model: Any) -> Iterator[None]:
    """Let a model that attends by sdpa on a CPU attend by groups while the block runs; others as they do.

    A model that runs under sdpa has no soft cap, sink or bias in its attention, so only rounding changes.
    Every query must be allowed at least one key.
    """
    config = model.config.get_text_config()
    before = config._attn_implementation
    on_cpu = next(model.parameters()).device.type == "cpu"
    if before != "sdpa" or not on_cpu:
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
