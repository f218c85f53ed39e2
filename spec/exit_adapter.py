"""What stands between a state and the target's head where something drafts with it: a small map.

At the start it changes nothing.
"""

from __future__ import annotations

import torch
from torch import nn


class ExitAdapter(nn.Module):
    """x to A·x + b + D·silu(U·x): what the head reads at an exit, made more like what it reads at the end."""

    def __init__(self, size: int, hidden: int = 0, seed: int = 0) -> None:
        """Make one that changes nothing.

        Args:
            size: d, of the states.
            hidden: rows of U; 0: no such term.
            seed: of U's first values, uniform as `nn.Linear`'s are.
        """
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.up = self.down = None
        if hidden:
            self.up = nn.Linear(size, hidden)
            self.down = nn.Linear(hidden, size, bias=False)
            nn.init.zeros_(self.down.weight)
            generator = torch.Generator().manual_seed(seed)
            for values in (self.up.weight, self.up.bias):
                nn.init.uniform_(values, -(size**-0.5), size**-0.5, generator=generator)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return [..., d] of [..., d]."""
        mapped: torch.Tensor = self.linear(states)
        if self.up is None or self.down is None:
            return mapped
        return mapped + self.down(nn.functional.silu(self.up(states)))  # type: ignore[no-any-return]

    @property
    def bytes(self) -> int:
        """Memory of its weights."""
        return sum(weight.numel() * weight.element_size() for weight in self.parameters())
