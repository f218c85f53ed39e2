"""A good start in closed form: the map from the draft's last states to the target's.

A draft cut after a few layers ends in states that the target's head was not made for. The linear map
that brings them closest to the target's own last states is a least-squares problem; multiplied into
the head it costs nothing when decoding, and no text is learned by heart by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .batches import Example, micro_batches
from .heads import at_least_float32, eval_mode
from .packing import Collate, supervised_states
from .teacher import Teacher

BATCH_ROWS = 8
RIDGE = 10.0  # added to the diagonal of Σ h hᵀ: a few thousand tokens need no more


class Alignment(NamedTuple):
    """The map from a draft's last states to its target's."""

    matrix: torch.Tensor  # A [d_target, d_draft], float64
    variance: float  # of the target's states about their mean, a dimension's on average

    def distance(self, hidden: torch.Tensor, target_hidden: torch.Tensor) -> torch.Tensor:
        """Return Σ over tokens of |A·h − h_target|² / (d · variance): 1 a token for a map to the mean.

        Args:
            hidden: [N, d_draft].
            target_hidden: [N, d_target], takes no gradient.
        """
        hidden = at_least_float32(hidden)
        mapped = hidden @ self.matrix.to(hidden).T  # [N, d_target]
        off = mapped - target_hidden.to(mapped)
        return off.square().mean(-1).sum() / self.variance


@torch.no_grad()
def state_map(
    model: Any, teacher: Teacher, examples: Sequence[Example], collate: Collate
) -> Alignment:
    """Return the A for which A·h is closest to the target's state.

    Ridge regression over the supervised positions of the examples, in float64.

    Args:
        model: the draft, on the teacher's device.
        collate: makes batches for it.
    """
    size = model.get_output_embeddings().weight.shape[1]
    gram = RIDGE * torch.eye(size, dtype=torch.float64)
    cross = torch.zeros(size, teacher.head.weight.shape[1], dtype=torch.float64)
    moments = torch.zeros(3, teacher.head.weight.shape[1], dtype=torch.float64)  # Σ 1, Σ h, Σ h²
    with eval_mode(model):
        for part in micro_batches(examples, BATCH_ROWS):
            ours = supervised_states(model, collate(part)).double().cpu()  # [N, d]
            theirs = teacher.hidden(part).double().cpu()  # [N, d_target]
            gram += ours.T @ ours
            cross += ours.T @ theirs
            moments += torch.stack([torch.ones_like(theirs), theirs, theirs**2]).sum(1)
    mean, square = moments[1:] / moments[0]
    return Alignment(torch.linalg.solve(gram, cross).T, float((square - mean**2).mean()))
