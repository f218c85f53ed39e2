"""Whether sampled outputs follow the target's law: each token's randomised rank in it is uniform.

The target reads each output once more, whole and without a cache, so that a fault of the loop's cache,
its verifier or its draws shows. With p the law of a token given what stands before it, U = p(likelier
tokens) + V · p(as likely tokens), V uniform, is uniform on [0, 1] and independent from token to token
exactly where every token is drawn from p (Rosenblatt 1952). How far the U of n tokens may lie from
uniform by chance is bounded for every n: P(D > d) <= 2 exp(−2 n d²) (Massart 1990).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..spec import SamplingParams, token_probs

FALSE_ALARM = 1e-3  # odds that an arm whose law is right is called wrong


@torch.inference_mode()
def token_ranks(
    model: Any,
    width: int | None,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    seed: str,
) -> list[float]:
    """Return the randomised rank of each output token in the target's law, in [0, 1].

    Args:
        model: a causal LM in eval mode.
        width: V; None keeps all logits.
        params: temperature and filters; no penalties.
        seed: of V.
    """
    if not output:
        return []
    ids = torch.tensor([[*prompt, *output]], device=next(model.parameters()).device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(output) + 1).logits
    law = token_probs(logits[0, :-1, :width].float(), params)  # [N, V]
    drawn = law.gather(-1, ids[0, -len(output) :, None])  # [N, 1]
    above = (law * (law > drawn)).sum(-1)  # [N]
    equal = (law * (law == drawn)).sum(-1)  # [N]
    draws = random.Random(seed)
    return [
        min(1.0, high + draws.random() * width_)
        for high, width_ in zip(above.tolist(), equal.tolist(), strict=True)
    ]


def law_distance(ranks: Sequence[float]) -> tuple[float, float]:
    """Return the Kolmogorov–Smirnov distance of ranks from uniform and a bound on its odds by chance."""
    ordered = np.sort(np.asarray(ranks, dtype=float))
    count = len(ordered)
    steps = np.arange(count + 1) / count
    distance = float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    return distance, min(1.0, 2.0 * math.exp(-2.0 * count * distance * distance))
