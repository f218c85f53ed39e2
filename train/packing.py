"""Examples as a body reads them: side by side, or in shared rows where a prompt is fed once.

A shared row is the tree of its examples' tokens laid flat. A token attends to those on its way from the
root and stands at the position that it has in its example, so that every hidden state is what it
would be in a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from ..spec.batch_masks import Masks, layer_windows, mask_bias, ragged_obstacle
from .batches import Example, prompt_groups
from .heads import eval_mode, hidden_states

Collate = Callable[[Sequence[Example]], "Batch"]
"""Makes one batch of at least one example."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Examples on a device; what is behind a row's end is padding that nobody looks at."""

    input_ids: torch.Tensor  # [B, T]
    positions: torch.Tensor  # [N], supervised positions of the flattened [B·T], example by example
    position_ids: torch.Tensor | None = None  # [B, T]; None: rows count from 0
    mask: Masks | None = None  # [B, 1, T, T], or one for each kind of layer; None: causal


def collate_for(model: Any) -> Collate:
    """Return what makes batches for a model on its device: packed where it can read them, else padded."""
    device = next(model.parameters()).device
    if packing_obstacle(model) is not None:
        return partial(collate, device=device)
    return _packing_for(model)


def packing_obstacle(model: Any) -> str | None:
    """Return why a model does not read shared rows as rows of their own, or None where it does.

    What is known by name is refused; for the rest, two answers to a prompt are tried.
    """
    obstacle = ragged_obstacle(model)
    if obstacle is not None:
        return obstacle
    device, name = next(model.parameters()).device, type(model).__name__
    size = model.get_input_embeddings().weight.shape[0]
    answers = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 6, 4, 5, 2]]  # of different length, so one is not last
    trial = [Example(torch.tensor(tokens) % size, len(tokens) - 3) for tokens in answers]
    with torch.no_grad(), eval_mode(model):
        alone = supervised_states(model, collate(trial, device))  # [N, d]
        try:
            packed = supervised_states(model, _packing_for(model)(trial))  # [N, d]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a foreign forward makes of a mask and positions
            return f"{name} takes no mask and positions of its own for each token: {error}"
    off, scale = (packed - alone).abs().max().item(), alone.abs().max().item()
    if not off <= torch.finfo(model.dtype).eps ** 0.5 * scale:  # so that NaN is refused too
        return f"{name} has other states in a shared row: {off:.3g} apart, of up to {scale:.3g}"
    return None


def supervised_states(model: Any, batch: Batch) -> torch.Tensor:
    """Return what the head reads at the supervised positions, example by example: [N, d]."""
    hidden = hidden_states(model, batch.input_ids, batch.position_ids, batch.mask)  # [B, T, d]
    return hidden.flatten(0, 1)[batch.positions]


def collate(examples: Sequence[Example], device: torch.device) -> Batch:
    """Return examples side by side, each in a row of its own."""
    return _lay_out(examples, [[example] for example in examples], device, {}, None)


def pack(
    examples: Sequence[Example],
    device: torch.device,
    windows: dict[str, int | None],
    additive: torch.dtype | None,
) -> Batch:
    """Return examples in shared rows; where nothing comes of it, what `collate` returns.

    Args:
        windows: kinds of attention layers and how far back each looks, in tokens; None: over everything.
        additive: None gives bool masks; a dtype gives masks to be added to the scores.
    """
    return _lay_out(examples, shared_rows(examples), device, windows, additive)


def shared_rows(examples: Sequence[Example]) -> list[list[Example]]:
    """Return which examples share a row: those of a prompt, and prompts while there is room.

    No row is longer than the largest prompt with its answers: masks grow with the square of that.
    """
    groups = [[examples[index] for index in group] for group in prompt_groups(examples)]
    sized = [(len(_tree(group).tokens), group) for group in groups]
    sized.sort(key=lambda pair: pair[0], reverse=True)
    rows: list[list[Example]] = []
    room: list[int] = []  # tokens left in each row
    for size, group in sized:
        row = next((row for row, left in enumerate(room) if size <= left), None)
        if row is None:
            rows.append(list(group))
            room.append(sized[0][0] - size)
        else:
            rows[row].extend(group)
            room[row] -= size
    return rows


class _Tree(NamedTuple):
    """The tokens that examples are fed, what they begin with in common once."""

    tokens: list[int]
    paths: list[torch.Tensor]  # for each example, where its tokens are: [T − 1]

    @property
    def is_chain(self) -> bool:
        """Say whether one example holds all tokens: then causal attention is right as it is."""
        return any(len(path) == len(self.tokens) for path in self.paths)


def _tree(examples: Sequence[Example]) -> _Tree:
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) to place; parents come first
    paths = []
    for example in examples:
        path = []
        at = -1
        for token in example.input_ids.tolist():
            at = nodes.setdefault((at, token), len(nodes))
            path.append(at)
        paths.append(torch.tensor(path))
    return _Tree([token for _, token in nodes], paths)


def _lay_out(
    examples: Sequence[Example],
    rows: Sequence[Sequence[Example]],
    device: torch.device,
    windows: dict[str, int | None],
    additive: torch.dtype | None,
) -> Batch:
    """Return the batch of these rows, its supervised positions in the order of the examples."""
    trees = [_tree(row) for row in rows]
    length = max(len(tree.tokens) for tree in trees)
    input_ids = torch.zeros(len(rows), length, dtype=torch.int64)  # any id pads
    supervised: dict[Example, torch.Tensor] = {}
    for index, (row, tree) in enumerate(zip(rows, trees, strict=True)):
        input_ids[index, : len(tree.tokens)] = torch.tensor(tree.tokens)
        for example, path in zip(row, tree.paths, strict=True):
            supervised[example] = path[example.positions] + index * length
    positions = torch.cat([supervised[example] for example in examples])
    if all(tree.is_chain for tree in trees):
        return Batch(input_ids.to(device), positions.to(device))
    position_ids, seen = _tree_attention(trees, length)
    position_ids, seen = position_ids.to(device), seen.to(device)
    mask = _window_masks(windows, position_ids, seen, additive)
    return Batch(input_ids.to(device), positions.to(device), position_ids, mask)


def _tree_attention(trees: Sequence[_Tree], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where each token stands [B, T], and which tokens each one looks at [B, T, T]."""
    position_ids = torch.zeros(len(trees), length, dtype=torch.int64)
    # Padding looks at itself: no softmax is over nothing.
    seen = torch.eye(length, dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, tree in enumerate(trees):
        for path in tree.paths:
            position_ids[row, path] = torch.arange(len(path))
            seen[row, path[:, None], path] = torch.ones(len(path), len(path)).tril().bool()
    return position_ids, seen


def _window_masks(
    windows: dict[str, int | None],
    position_ids: torch.Tensor,  # [B, T]
    seen: torch.Tensor,  # [B, T, T]
    additive: torch.dtype | None,
) -> Masks:
    ages = position_ids[:, :, None] - position_ids[:, None, :]  # [B, T, T]
    masks = {
        kind: mask_bias((seen if window is None else seen & (ages < window))[:, None], additive)
        for kind, window in windows.items()
    }  # [B, 1, T, T] each
    return next(iter(masks.values())) if len(masks) == 1 else masks


def _packing_for(model: Any) -> Collate:
    parameter = next(model.parameters())
    eager = model.config.get_text_config()._attn_implementation == "eager"
    return partial(
        pack,
        device=parameter.device,
        windows=layer_windows(model),
        additive=parameter.dtype if eager else None,
    )
