"""The statistics of the parity gate: pairs at the same positions, intervals by prompt, bounds of chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from .traced import Traced

RESAMPLES = 2000


def pairs_of(
    traced: Sequence[Traced], alphas: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return α in the loop and α teacher-forced at the positions the loop tested, of each prompt.

    Args:
        alphas: [supervised], teacher-forced at each token of each answer.

    Returns:
        Two lists of [tested] each, prompts without a tested position left out; positions past an
        answer's end are left out too: the teacher has not seen the tokens before them.
    """
    in_loop, forced = [], []
    for one, alpha in zip(traced, alphas, strict=True):
        rows = [row for row in one.tested if one.place(row) < len(alpha)]
        if rows:
            in_loop.append(torch.tensor([row.acceptance_prob for row in rows]).double())
            forced.append(alpha[[one.place(row) for row in rows]])
    return in_loop, forced


def interval(parts: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over all tokens, by resampling prompts.

    Args:
        parts: a value a token, [tokens] a prompt.
    """
    low, high = np.quantile(_resampled(parts), [0.025, 0.975])
    return float(low), float(high)


def standard_error(parts: Sequence[torch.Tensor]) -> float:
    """Return the standard error of the same mean."""
    return float(_resampled(parts).std())


def surprise(traced: Sequence[Traced], *, false_alarms: float) -> tuple[int, float, float]:
    """Return how many tested tokens were accepted, how many were expected, and how far off may be chance.

    Whether a token is accepted has probability α given all before it, so accepted − Σ α is a martingale
    of steps below 1 and variance V = Σ α(1 − α): it is off by t or more with a probability of at most
    2·exp(−t² / (2V + 2t/3)) (Freedman 1975), however few tokens there are.

    Args:
        false_alarms: the probability that it is off by more than what is returned.
    """
    rows = [row for one in traced for row in one.tested]
    accepted = sum(row.accepted for row in rows)
    expected = sum(row.acceptance_prob for row in rows)
    variance = sum(row.acceptance_prob * max(0.0, 1 - row.acceptance_prob) for row in rows)
    third = math.log(2 / false_alarms) / 3
    return accepted, expected, third + math.sqrt(third * third + 6 * third * variance)


def _resampled(parts: Sequence[torch.Tensor]) -> np.ndarray:
    """Return the mean of each resample of prompts: [RESAMPLES]."""
    sums = np.array([(float(part.sum()), len(part)) for part in parts])  # [prompts, 2]
    chosen = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    totals = sums[chosen].sum(1)  # [RESAMPLES, 2]
    means: np.ndarray = totals[:, 0] / totals[:, 1]
    return means
