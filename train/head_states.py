"""What heads say at each depth of a round, on text that is given, beside what the target says there.

An EAGLE head is unrolled as the loop unrolls it: at depth k it reads the state that it said itself at depth
k − 1, and attends to what it read of the target's states up to the round's start and of its own since.

Source of the unrolled training: EAGLE-3's training-time test, Li et al. 2025 (arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from transformers import DynamicCache

from ..spec import EagleHead, MedusaHeads, with_heads
from ..spec.batch_masks import Masks, layer_windows, mask_bias, ragged_obstacle
from ..spec.cached import cache_argument
from ..spec.eagle import eagle_outputs
from .batches import Example

RIDGE = 10.0  # added to the diagonal of Σ x xᵀ, as for the start of a draft


class HeadTrainer(Protocol):
    """Heads in training."""

    @property
    def heads(self) -> EagleHead | MedusaHeads:
        """Their weights."""

    def skipped(self, depth: int) -> int:
        """Return how many of a row's states come before the first that `depth` (from 1) is held against."""

    def drafted(
        self, examples: Sequence[Example], states: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return what the heads say at each depth, example by example: [N_k, d] each.

        Args:
            examples: each with at least a supervised token.
            states: [supervised, d] each, the target's.
        """

    def align(self, batches: Iterator[tuple[list[Example], list[torch.Tensor]]]) -> None:
        """Start from the least-squares maps to the target's states."""


class EagleTrainer:
    """An EAGLE head, unrolled."""

    def __init__(self, target: Any, depth: int) -> None:
        """Make a head for a target.

        Raises:
            ValueError: if the target takes no masks, or its layers do not run by themselves; names it.
        """
        obstacle = ragged_obstacle(target)
        if obstacle is not None:
            raise ValueError(
                f"kind: an EAGLE head cannot be trained beside this target: {obstacle}"
            )
        self.heads = EagleHead(target)
        self._model = with_heads(target, self.heads)
        self._cache_argument = cache_argument(target)
        self._windows = layer_windows(target)
        eager = target.config.get_text_config()._attn_implementation == "eager"
        self._additive = target.dtype if eager else None
        self._depth = depth

    def skipped(self, depth: int) -> int:
        return depth - 1

    def drafted(
        self, examples: Sequence[Example], states: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        said = []
        for depth, outputs in enumerate(self._outputs(examples, states, self._depth), start=1):
            found = self.heads.out(outputs)
            rows = [
                found[row, example.first - 1 + self.skipped(depth) : len(example.input_ids)]
                for row, example in enumerate(examples)
            ]
            said.append(torch.cat(rows))
        return said

    def align(self, batches: Iterator[tuple[list[Example], list[torch.Tensor]]]) -> None:
        def pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for examples, states in batches:
                [outputs] = self._outputs(examples, states, 1)
                for row, (example, theirs) in enumerate(zip(examples, states, strict=True)):
                    yield outputs[row, example.first - 1 : len(example.input_ids)], theirs

        _align(self.heads.out, pairs())

    def _outputs(
        self, examples: Sequence[Example], states: Sequence[torch.Tensor], depth: int
    ) -> Iterator[torch.Tensor]:
        """Yield what the map out of the layer reads at each depth: [B, T, 2·d]."""
        device, size = states[0].device, states[0].shape[1]
        length = max(len(example.input_ids) for example in examples)
        tokens = torch.zeros(len(examples), length, dtype=torch.int64)  # any id pads
        features = torch.zeros(len(examples), length, size, dtype=states[0].dtype, device=device)
        for row, (example, theirs) in enumerate(zip(examples, states, strict=True)):
            tokens[row, : len(example.input_ids)] = example.input_ids
            # The state at a position stands beside the token after it.
            features[row, example.first : len(example.input_ids)] = theirs[:-1]
        tokens = tokens.to(device)
        positions = torch.arange(length, device=device)[None].expand(len(examples), -1)
        cache = DynamicCache()
        for step in range(1, depth + 1):
            outputs = eagle_outputs(
                self._model,
                tokens,
                features,
                attention_mask=self._mask(length, step, device),
                position_ids=positions,
                **{self._cache_argument: cache},
            )
            yield outputs
            if step < depth:
                said = self.heads.out(outputs)  # [B, T, d]
                features = torch.cat([torch.zeros_like(said[:, :1]), said[:, :-1]], dim=1)

    def _mask(self, length: int, depth: int, device: torch.device) -> Masks:
        """Return what each token sees of the keys of depths 1 … `depth`: [1, 1, T, depth · T].

        A token that is the k-th of its round sees what was read before the round, and of each drafted
        token before it the key of that token's own depth.
        """
        ages = torch.arange(length)[:, None] - torch.arange(length)  # [T, T]
        seen = [ages >= depth - 1, *(ages == depth - each for each in range(2, depth + 1))]
        whole = torch.cat(seen, dim=-1).to(device)
        ages = ages.repeat(1, depth).to(device)
        masks = {
            kind: mask_bias(
                (whole if window is None else whole & (ages < window))[None, None], self._additive
            )
            for kind, window in self._windows.items()
        }
        return next(iter(masks.values())) if len(masks) == 1 else masks


class MedusaTrainer:
    """Medusa heads: block k of the state at a position is held against the state k positions later."""

    def __init__(self, target: Any, depth: int) -> None:
        """Make heads for a target."""
        self.heads = MedusaHeads(target, depth)

    def skipped(self, depth: int) -> int:
        return depth

    def drafted(
        self, examples: Sequence[Example], states: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        return [
            block(torch.cat([each[: max(0, len(each) - depth)] for each in states]))
            for depth, block in enumerate(self.heads.adapters, start=1)
        ]

    def align(self, batches: Iterator[tuple[list[Example], list[torch.Tensor]]]) -> None:
        rows = [each for _, states in batches for each in states]
        for depth, block in enumerate(self.heads.adapters, start=1):
            _align(
                block.linear,
                ((each[:-depth], each[depth:]) for each in rows if len(each) > depth),
            )


@torch.no_grad()
def _align(linear: torch.nn.Linear, pairs: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Set a linear layer to the ridge regression over pairs (input [n, i], output [n, o]), in float64."""
    outputs, inputs = linear.weight.shape
    gram = RIDGE * torch.eye(inputs + 1, dtype=torch.float64)
    cross = torch.zeros(inputs + 1, outputs, dtype=torch.float64)
    for given, wanted in pairs:
        x = torch.nn.functional.pad(given.double().cpu(), (0, 1), value=1.0)  # [n, i + 1]
        gram += x.T @ x
        cross += x.T @ wanted.double().cpu()
    solution = torch.linalg.solve(gram, cross).T  # [o, i + 1]
    linear.weight.copy_(solution[:, :inputs])
    linear.bias.copy_(solution[:, inputs])
