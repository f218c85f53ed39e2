"""A good start in closed form: the map from the draft's last states to the target's.

A draft cut after a few layers ends in states that the target's head was not made for. The linear map
that brings them closest to the target's own last states is a least-squares problem; multiplied into
the head it costs nothing when decoding, and no text is learned by heart by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .batches import Example, micro_batches
from .heads import eval_mode
from .packing import collate_for, supervised_states
from .teacher import Teacher

BATCH_ROWS = 8
RIDGE = 10.0  # added to the diagonal of Σ h hᵀ: a few thousand tokens need no more


@torch.no_grad()
def state_map(model: Any, teacher: Teacher, examples: Sequence[Example]) -> torch.Tensor:
    """Return the matrix A [d_target, d_draft] for which A·h is closest to the target's state.

    Ridge regression over the supervised positions of the examples, in float64.

    Args:
        model: the draft, on the teacher's device.
    """
    size = model.get_output_embeddings().weight.shape[1]
    gram = RIDGE * torch.eye(size, dtype=torch.float64)
    cross = torch.zeros(size, teacher.head.weight.shape[1], dtype=torch.float64)
    collate = collate_for(model)
    with eval_mode(model):
        for part in micro_batches(examples, BATCH_ROWS):
            ours = supervised_states(model, collate(part)).double().cpu()  # [N, d]
            theirs = teacher.hidden(part).double().cpu()  # [N, d_target]
            gram += ours.T @ ours
            cross += ours.T @ theirs
    matrix: torch.Tensor = torch.linalg.solve(gram, cross).T
    return matrix
