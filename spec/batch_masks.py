"""Which keys each query of each row may see, and which models take such a mask."""

from __future__ import annotations

from typing import Any

import torch

Masks = torch.Tensor | dict[str, torch.Tensor]
MASKABLE = ("sdpa", "eager")  # attention that takes a mask of any shape
# Their attention finds the query's position from the length of the keys, whatever the mask says.
POSITION_FROM_LENGTH = ("gpt_neo", "codegen")


def ragged_obstacle(model: Any) -> str | None:
    """Return why rows of different length cannot share a forward of this model, or None where they can."""
    config = model.config.get_text_config()
    name = type(model).__name__
    attention = getattr(config, "_attn_implementation", None)
    if attention not in MASKABLE:
        return f"{name} uses {attention} attention, which takes no mask of its own for each row"
    kinds = set(layer_windows(model)) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"{name} has layers of kind {', '.join(sorted(kinds))}"
    if config.model_type in POSITION_FROM_LENGTH:
        return f"{name} takes positions from the length of the cache"
    growing = _rope_types(getattr(config, "rope_parameters", None)) & {"dynamic", "longrope"}
    if growing:
        return f"{name} has {growing.pop()} rotary positions, which follow the longest row"
    return None


def layer_windows(model: Any) -> dict[str, int | None]:
    """Return the kinds of attention layers and how far back each looks; None: over everything."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"]
    return {kind: window if kind == "sliding_attention" else None for kind in kinds}


def row_masks(
    windows: dict[str, int | None], queries: torch.Tensor, length: int, additive: torch.dtype | None
) -> Masks:
    """Return what each query sees: the keys up to its own position, no older than the window.

    Args:
        windows: of `layer_windows`.
        queries: [n, Q], positions; a query at p sees at least key p, so that no softmax is empty.
        length: keys.
        additive: None gives bool masks; a dtype gives masks to be added to the scores.

    Returns:
        [n, 1, Q, length], or one for each kind of layer where there are several.
    """
    at = queries[:, None, :, None]  # [n, 1, Q, 1]
    keys = torch.arange(length, device=queries.device)  # [length]
    causal = keys <= at  # [n, 1, Q, length]
    masks = {
        kind: mask_bias(causal if window is None else causal & (keys > at - window), additive)
        for kind, window in windows.items()
    }
    return next(iter(masks.values())) if len(masks) == 1 else masks


def mask_bias(seen: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a bool mask as it is (dtype None), or as what to add to scores of that dtype."""
    if dtype is None:
        return seen
    lowest = torch.finfo(dtype).min
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, lowest)


def _rope_types(parameters: Any) -> set[str]:
    """Return the kinds of rotary positions: one set of parameters, or one for each kind of layer."""
    if not isinstance(parameters, dict):
        return set()
    if "rope_type" in parameters:
        return {parameters["rope_type"]}
    return set().union(*map(_rope_types, parameters.values()))
