"""Puts decoded rows together into what transformers' `generate` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput


@dataclass(slots=True)
class ResultRow:
    """One row of the result."""

    tokens: list[int] = field(default_factory=list)  # generated, the end token included
    scores: list[torch.Tensor] = field(default_factory=list)  # [1, V] a token, where asked
    logits: list[torch.Tensor] = field(default_factory=list)  # [1, V] a token, where asked


def result_of(input_ids: torch.Tensor, rows: Sequence[ResultRow], config: GenerationConfig) -> Any:
    """Return what `generate` returns: rows that ended early are filled with the pad token."""
    longest = max(len(row.tokens) for row in rows)
    pad = None if config._pad_token_tensor is None else int(config._pad_token_tensor)
    filled = [row.tokens + [pad or 0] * (longest - len(row.tokens)) for row in rows]
    tokens = torch.tensor(filled, dtype=input_ids.dtype, device=input_ids.device)
    sequences = torch.cat([input_ids, tokens], -1)  # [B, L + longest]
    if not config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(
        sequences=sequences,
        scores=_steps([row.scores for row in rows], longest, pad, input_ids.device)
        if config.output_scores
        else None,
        logits=_steps([row.logits for row in rows], longest, pad, input_ids.device)
        if config.output_logits
        else None,
    )


def _steps(
    rows: Sequence[Sequence[torch.Tensor]], longest: int, pad: int | None, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """Return [B, V] for each step. A row that has ended is sure of its padding."""
    filler = torch.full_like(rows[0][0], -torch.inf)  # [1, V]
    if pad is not None and pad < filler.shape[-1]:
        filler[0, pad] = 0.0
    return tuple(
        torch.cat([row[step] if step < len(row) else filler for row in rows]).to(device)
        for step in range(longest)
    )
