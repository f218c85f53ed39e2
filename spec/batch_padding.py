"""Takes the padding out of a batch of prompts: inside the loop rows have lengths, not padding."""

from __future__ import annotations

import torch


def strip_padding(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[list[int]]:
    """Return the tokens of each row, padded on either side or not at all.

    Args:
        input_ids: [B, L]; what stands in padded places does not matter.
        attention_mask: [B, L], 1 where a token is real.

    Raises:
        ValueError: if the shapes differ, or a row has no token or a hole inside; names the row.
    """
    if input_ids.ndim != 2 or attention_mask.shape != input_ids.shape:
        raise ValueError(
            "input_ids and attention_mask must both be [B, L], got "
            f"{tuple(input_ids.shape)} and {tuple(attention_mask.shape)}"
        )
    prompts = []
    rows = zip(input_ids.tolist(), attention_mask.bool().tolist(), strict=True)
    for index, (ids, real) in enumerate(rows):
        prompt = [token for token, is_real in zip(ids, real, strict=True) if is_real]
        if not prompt:
            raise ValueError(f"attention_mask: row {index} has no token")
        first = real.index(True)
        if not all(real[first : first + len(prompt)]):
            raise ValueError(f"attention_mask: row {index} has padding between its tokens")
        prompts.append(prompt)
    return prompts
