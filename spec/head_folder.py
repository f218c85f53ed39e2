"""The folder of trained heads: `heads.safetensors` and `foredraft.json`, which says of which kind and target.

Embedding, norm and head are the target's and not in it; of a cut head the map to its tokens is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .draft_folder import DraftInfo, load_kept_tokens, save_kept_tokens
from .eagle import EagleHead
from .fingerprint import model_fingerprint, tokenizer_hash
from .head_drafter import HeadDrafter, Heads, with_heads
from .medusa import MedusaHeads
from .packed import pack_linears

HEADS_FILE = "heads.safetensors"
EAGLE, MEDUSA = "eagle", "medusa"
KINDS = (EAGLE, MEDUSA)


def save_heads(
    folder: str | Path, heads: Heads, info: DraftInfo, kept: torch.Tensor | None
) -> None:
    """Write heads, their weights at once: a training that is killed leaves whole ones.

    Args:
        info: with its `heads` and `kept_tokens`.
        kept: [V_draft], the tokens that they can propose; None: all.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    state = {name: each.detach().cpu().contiguous() for name, each in heads.state_dict().items()}
    part = Path(folder) / f".{HEADS_FILE}"
    save_file(state, part)
    os.replace(part, Path(folder) / HEADS_FILE)
    if kept is not None:
        save_kept_tokens(folder, kept)
    info.save(folder)


def load_heads(
    folder: str | Path, info: DraftInfo, target: Any, tokenizer: Any = None
) -> tuple[Heads, torch.Tensor | None]:
    """Return the heads of a folder, on the target's device and in its dtype, and the tokens of a cut head.

    Args:
        tokenizer: the target's; None: not checked.

    Raises:
        ValueError: if the folder is not whole, or of another target or tokenizer.
    """
    path = Path(folder) / HEADS_FILE
    if info.heads not in KINDS:
        raise ValueError(f"{folder}: heads must be one of {', '.join(KINDS)}, got {info.heads!r}")
    if not path.is_file():
        raise ValueError(f"{path}: missing, but foredraft.json says heads = {info.heads}")
    if tokenizer is not None and tokenizer_hash(tokenizer) != info.tokenizer_hash:
        raise ValueError(
            f"{folder}: made for a tokenizer of hash {info.tokenizer_hash}, the target's has "
            f"{tokenizer_hash(tokenizer)}"
        )
    state = load_file(path)
    weight = next(target.parameters())
    # In another dtype the same weights have other sums.
    if weight.dtype == next(iter(state.values())).dtype:
        fingerprint = model_fingerprint(target)
        if fingerprint != info.target_fingerprint:
            raise ValueError(
                f"{folder}: made for {info.target} (fingerprint {info.target_fingerprint}), the target's "
                f"fingerprint is {fingerprint}"
            )
    heads: Heads
    if info.heads == EAGLE:
        heads = EagleHead(target)
    else:
        heads = MedusaHeads(target, sum(name.endswith(".linear.bias") for name in state))
    try:
        heads.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path}: not heads for {type(target).__name__}: {error}") from error
    return heads.eval().requires_grad_(False), load_kept_tokens(folder, info)


def find_head_drafter(
    draft: str, target: Any, tokenizer: Any = None, *, width: int
) -> HeadDrafter | None:
    """Return the drafter that the folder of trained heads means; None for any other name.

    On a CPU their linear layers may be packed, rounded to float16 where that is faster (`pack_linears`).

    Raises:
        ValueError: see `load_heads` and `HeadDrafter`.
    """
    info = DraftInfo.load(draft)
    if info is None or info.heads is None:
        return None
    heads, kept = load_heads(draft, info, target, tokenizer)
    part = with_heads(target, heads, kept)
    pack_linears(part, draft=True)
    return HeadDrafter(target, part, width=width, kept=kept, temperature=info.temperature)
