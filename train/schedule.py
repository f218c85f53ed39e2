"""The learning rate over a run that ends by steps or by time, whichever comes first."""

from __future__ import annotations

import math

from .config import DistillConfig


def learning_rate(config: DistillConfig, step: int, seconds: float) -> float:
    """Return the learning rate of step `step` (from 0): a linear rise, then half a cosine.

    How far the run is, is the larger of its share of steps and of time, so that the rate also ends
    low where time runs out first. A pure function of its arguments: the same for any number of
    processes, and nothing to save.

    Args:
        seconds: spent in training so far.
    """
    progress = (step + 1) / config.steps
    if config.max_seconds is not None:
        progress = max(progress, min(1.0, seconds / config.max_seconds))
    if progress < config.warmup_ratio:
        return config.learning_rate * progress / config.warmup_ratio
    share = (progress - config.warmup_ratio) / (1 - config.warmup_ratio)
    cosine = 0.5 * (1 + math.cos(math.pi * share))
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)
