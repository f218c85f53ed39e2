"""The optimizer of a draft."""

from __future__ import annotations

import torch

from .config import DistillConfig


def make_optimizer(loss: torch.nn.Module, config: DistillConfig) -> torch.optim.Optimizer:
    """Return AdamW over what is trained, with decay on matrices only."""
    trained = [weight for weight in loss.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in trained if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in trained if w.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
