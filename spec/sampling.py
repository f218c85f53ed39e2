"""From logits to the law that tokens are drawn from.

Greedy is the one-hot law: it passes through the same verifier as everything else.
"""

from __future__ import annotations

import torch

from .params import SamplingParams
from .searches import ascending, best_tokens, kth_largest


def token_probs(
    logits: torch.Tensor, params: SamplingParams, *, temperature_factor: float = 1.0
) -> torch.Tensor:
    """Return the law of the next token, row by row.

    Temperature, top-k, top-p and min-p are applied in transformers' order. Ties at the edge of top-k
    are all kept, as there.

    Args:
        logits: [N, V], after penalties; at least one finite entry in each row.
        temperature_factor: multiplies the temperature (a draft may be drawn cooler or hotter).

    Returns:
        [N, V], in float32, or float64 where the logits are.
    """
    if params.greedy:
        best = best_tokens(logits)[:, None]  # [N, 1]
        return torch.zeros_like(logits, dtype=precision(logits)).scatter_(-1, best, 1.0)
    logits = logits.to(precision(logits)) / (params.temperature * temperature_factor)
    if 0 < params.top_k < logits.shape[-1]:
        smallest = kth_largest(logits, params.top_k)  # [N, 1]
        logits = torch.where(logits < smallest, -torch.inf, logits)
    if params.top_p < 1.0:
        logits = filter_top_p(logits, params.top_p)
    probs = logits.softmax(-1)
    if params.min_p > 0.0:
        floor = params.min_p * probs.amax(-1, keepdim=True)  # [N, 1]
        probs = probs.masked_fill(probs < floor, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def filter_top_p(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return logits [N, V] with -inf for the least likely tokens of no more than 1 − top_p in all.

    Sums ascend as in transformers. Of equal tokens those of lower ids go first, where its sort leaves
    that open.
    """
    ordered = ascending(logits)  # [N, V]
    sums = ordered.softmax(-1).cumsum(-1)  # [N, V]
    edge = sums.new_full((len(sums), 1), 1.0 - top_p)
    removed = torch.searchsorted(sums, edge, right=True)  # [N, 1]: how many go
    removed.clamp_(max=logits.shape[-1] - 1)  # the likeliest stays
    smallest = ordered.gather(-1, removed)  # [N, 1], that is kept
    below = logits < smallest
    equal = removed - torch.searchsorted(ordered, smallest)  # [N, 1]: of the smallest, that go too
    if not logits.is_cpu or bool((equal > 0).any()):  # a device is not made to wait for the answer
        ties = logits == smallest
        below |= ties & (ties.cumsum(-1) <= equal)
    return torch.where(below, -torch.inf, logits)


def penalize_repetition(logits: torch.Tensor, penalty: float, seen: torch.Tensor) -> torch.Tensor:
    """Return logits [N, V] with the repetition penalty of each row's own history.

    Args:
        penalty: positive logits of seen tokens are divided by it, negative ones multiplied.
        seen: [N, V], bool: the token stands in the row's history.

    Source: Keskar et al. 2019 (CTRL), in the form transformers uses.
    """
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized, logits)


def precision(logits: torch.Tensor) -> torch.dtype:
    """Return the dtype that laws are computed in: float64 where the logits are, else float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32
