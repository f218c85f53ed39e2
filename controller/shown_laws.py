"""Logits that have given signals: what a replay shows a policy in place of a row that was not kept.

A row of 50,000 logits for every look would be gigabytes; three numbers of it are recorded. The row made here
has the same top-1 probability, margin and entropy, up to float32; nothing else of it is the draft's.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from ..data.signals import MARGIN_MAX, Signals

TOKENS_MAX = 1 << 18  # no vocabulary is larger
_BISECTIONS = 50


def shown_law(look: Signals) -> torch.Tensor:
    """Return logits [n] in float32, the likeliest first at 0, with the signals of `look`; NaN gives NaN.

    n is as small as the entropy allows, so that reading the row costs little.
    """
    if math.isnan(look.top1_logprob):
        return torch.full((2,), math.nan)
    count, many, single, few = _rest(*look)
    row = torch.full((2 + count,), few)
    row[0] = 0.0
    row[1] = -look.margin
    if count:
        row[2 : 2 + many[0]] = many[1]
        row[2 + many[0]] = single
    return row


@lru_cache(maxsize=1 << 20)
def _rest(
    top1_logprob: float, margin: float, entropy: float
) -> tuple[int, tuple[int, float], float, float]:
    """Return the tokens after the first two: how many, (how many as likely as the second, their logit), one
    between, and the logit of all others.

    In weights relative to the likeliest token: the rest weighs W in sum and Σ −w·log w = D, no w above
    the second's. Between "as few tokens as can be" and "all alike" a mixture has any D between theirs.
    """
    second = math.exp(-margin)
    total = math.exp(-top1_logprob)
    rest = min(math.expm1(-top1_logprob) - second, TOKENS_MAX * second)  # W
    if margin >= MARGIN_MAX or rest <= 1e-9:
        return 0, (0, 0.0), 0.0, 0.0
    wanted = (entropy + top1_logprob) * total - second * margin  # D
    least = max(rest * math.exp(min(wanted / rest, 40.0)), rest / second)
    count = min(TOKENS_MAX, math.ceil(least) + 1)
    full = min(
        int(rest / second), count - 1
    )  # tokens as likely as the second, with all else in one
    left = rest - full * second
    alike = rest / count

    def weights(mixing: float) -> tuple[float, float, float]:
        few = mixing * alike
        return (1 - mixing) * second + few, (1 - mixing) * left + few, few

    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        many, single, few = weights(middle)
        spread = full * _term(many) + _term(single) + (count - full - 1) * _term(few)
        low, high = (middle, high) if spread < wanted else (low, middle)
    many, single, few = (max(math.log(max(w, 1e-80)), -180.0) for w in weights(0.5 * (low + high)))
    return count, (full, many), single, few


def _term(weight: float) -> float:
    return -weight * math.log(weight) if weight > 0.0 else 0.0
