"""Accept, reject and draw in one step on the device that holds the logits.

`verify_block` is spec/verify.py for a batch of rows and without a read by the host: the reference is
plain torch, the Triton kernels do the same on CUDA where triton is installed.
"""

from __future__ import annotations

import importlib.util

import torch

from .verify_reference import verify_block_reference

HAS_TRITON = importlib.util.find_spec("triton") is not None

__all__ = ["HAS_TRITON", "draw_tokens", "verify_block", "verify_block_reference"]


def verify_block(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    drafted: torch.Tensor,
    drafted_count: torch.Tensor,
    temperature: torch.Tensor,
    uniforms: torch.Tensor,
    draft_temperature: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept a prefix of each row's drafted tokens and draw the token that follows it.

    p is softmax(target_logits / temperature) and q softmax(draft_logits / draft_temperature); where
    a temperature is 0 they are the one-hot laws of the largest logit (its first index) and of the
    drafted token. Filters (top-k, top-p, min-p, banned tokens) are applied before, as -inf in the
    logits; every row needs a finite entry, and none may be NaN or +inf.

    Args:
        target_logits: [B, γ+1, V]; row i follows the context and the first i drafted tokens.
        draft_logits: [B, γ, V], what the drafted tokens were drawn from; None: they were certain
            (prompt lookup), q is their one-hot law.
        drafted: [B, γ], int64; entries from `drafted_count` on are ignored.
        drafted_count: [B], int64, 0 to γ: tokens really drafted in each row.
        temperature: [B], float32.
        uniforms: [B, γ+1], float64 in [0, 1), independent of those that the drafted tokens were drawn
            with. They are used in the order of spec/verify.py: one for each test, the next to draw.
        draft_temperature: [B], float32; None: as `temperature`.

    Returns:
        The accepted lengths [B] and the tokens after them [B], int64.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1.
    """
    laws = (target_logits, draft_logits, drafted, drafted_count, temperature)
    if target_logits.is_cuda and HAS_TRITON:
        from .verify_triton import verify_block_triton  # triton is not everywhere

        return verify_block_triton(*laws, uniforms, draft_temperature)
    return verify_block_reference(*laws, uniforms, draft_temperature)


def draw_tokens(
    logits: torch.Tensor, temperature: torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """Draw a token for each row: `verify_block` where nothing was drafted, so with its very law.

    Args:
        logits: [B, V].
        temperature: [B], float32; 0 takes the largest logit.
        uniforms: [B], float64 in [0, 1).

    Returns:
        [B], int64.
    """
    none = torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)  # [B, 0]
    count = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)  # [B]
    _, tokens = verify_block(logits[:, None], None, none, count, temperature, uniforms[:, None])
    return tokens
