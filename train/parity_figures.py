"""The statistics of the parity gate: pairs at the same positions, intervals by prompt, surprise."""

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


def surprise(traced: Sequence[Traced]) -> tuple[int, float, float]:
    """Return how many tested tokens were accepted, how many were expected, and the difference in σ.

    Whether a token is accepted has probability α given all before it, so the sum of (accepted − α) is
    a martingale, of variance Σ α(1 − α).
    """
    rows = [row for one in traced for row in one.tested]
    accepted = sum(row.accepted for row in rows)
    expected = sum(row.acceptance_prob for row in rows)
    # A sure draw may round a little off 1: no variance, and no surprise.
    variance = sum(max(0.0, row.acceptance_prob * (1 - row.acceptance_prob)) for row in rows)
    off = accepted - expected
    return accepted, expected, off / math.sqrt(variance) if variance > 1e-6 else round(off, 3)


def _resampled(parts: Sequence[torch.Tensor]) -> np.ndarray:
    """Return the mean of each resample of prompts: [RESAMPLES]."""
    sums = np.array([(float(part.sum()), len(part)) for part in parts])  # [prompts, 2]
    chosen = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    totals = sums[chosen].sum(1)  # [RESAMPLES, 2]
    means: np.ndarray = totals[:, 0] / totals[:, 1]
    return means
