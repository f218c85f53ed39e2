"""Simulated texts as dense traces: what `controller_sim` plays, at every position."""

from __future__ import annotations

import numpy as np

from controller_sim import SIGNALS, STEPS, Text
from foredraft.data import DenseText

GAMMA = 6


def dense(
    length: int,
    *,
    mean: float = 0.4,
    slope: float = 1.7,
    seed: int = 0,
    id: str = "a",
    domain: str = "d",
) -> DenseText:
    """Return a simulated text as dense traces; off the text the draft's looks are drawn anew."""
    text = Text.make(length=length + GAMMA, mean=mean, slope=slope, seed=seed)
    right = text.coins < text.chances  # [length + Γ]
    rng = np.random.default_rng(seed + 1)
    ahead = np.arange(length)[:, None] + np.arange(GAMMA)  # [N, Γ]
    limit = np.arange(length)[::-1]
    on_text = np.cumprod(right[ahead], axis=1).astype(bool)
    seen = np.concatenate([np.ones((length, 1), dtype=bool), on_text[:, :-1]], axis=1)
    steps = np.where(seen, text.looks[ahead], rng.integers(0, STEPS, ahead.shape))
    drafted = np.arange(GAMMA) < limit[:, None]
    table = np.array([tuple(look) for look in SIGNALS])
    return DenseText(
        id=id,
        domain=domain,
        prompt_length=7,
        width=10,
        tokens=np.arange(length) % 10,
        gamma_limit=limit,
        accepted_length=(on_text & drafted).sum(1),
        drafts=np.where(drafted, 1, -1),
        looks=np.where(drafted[..., None], table[steps], np.nan),
        acceptance_prob=np.zeros((length, GAMMA)),
        target_looks=table[rng.integers(0, STEPS, length)],
    )
