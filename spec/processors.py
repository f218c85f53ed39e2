"""Custom logits processors, transformers' protocol, run over the rows of a block.

The rule: within one output a processor is called once for each position, in order, with all tokens
before it, exactly as `generate` would call it; tokens that were drafted and rejected leave no trace.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class ProcessorChain:
    """The processors of one output, with their state after each position of the block at hand.

    State is kept by `copy.deepcopy`: every position is computed by a copy of the state before it, and
    the copies of rejected positions are dropped. The objects that were passed in are never called,
    so they may serve many requests. What cannot be copied is refused. A processor without state may
    define `__deepcopy__` to return itself and saves the copy; what is heavy and never changes (a
    compiled grammar) is shared in the same way. Plain functions are shared: they must not keep state.

    The draft's laws go through the processors too, on copies of their own: a draft that knows a
    grammar is believed more often, and no state of the target's is touched.
    """

    def __init__(self, processors: Sequence[Processor], prompt: Sequence[int], device: object):
        """Copy the processors for one output.

        Raises:
            ValueError: naming the processor that is not callable or cannot be copied.
        """
        self._after = [copied(processors)]  # [k]: the state after k more positions
        self._length = len(prompt)
        self._ids = torch.tensor([list(prompt)], dtype=torch.int64, device=device)  # [1, capacity]

    def __call__(self, scores: torch.Tensor, drafted: Sequence[int], first: int) -> torch.Tensor:
        """Return the processed scores [N, V]; row i follows what was committed and drafted[: first + i].

        Rows before `first` must have been asked for since the last commit.

        Raises:
            ValueError: if a processor gives another shape, or leaves no token.
        """
        rows = scores.shape[0]
        self._write(drafted[: first + rows - 1])
        del self._after[first + 1 :]
        processed = []
        for row in range(rows):
            state = copied(self._after[first + row])
            ids = self._ids[:, : self._length + first + row]  # [1, L]
            processed.append(_run(state, ids, scores[row : row + 1].clone()))
            self._after.append(state)
        return torch.cat(processed)

    def commit(self, tokens: Sequence[int]) -> None:
        """Keep the state after these tokens' positions; positions never asked for are like a prompt's."""
        self._write(tokens)
        self._length += len(tokens)
        self._after = [self._after[min(len(tokens), len(self._after) - 1)]]

    def _write(self, tokens: Sequence[int]) -> None:
        """Put tokens after the committed ones; the buffer doubles where it is full."""
        end = self._length + len(tokens)
        if end > self._ids.shape[1]:
            longer = self._ids.new_zeros(1, 2 * end)
            longer[:, : self._length] = self._ids[:, : self._length]
            self._ids = longer
        self._ids[0, self._length : end] = self._ids.new_tensor(list(tokens))


def copied(processors: Sequence[Processor]) -> list[Processor]:
    """Return deep copies, made together so that what two of them share stays shared.

    Raises:
        ValueError: naming what is not callable or cannot be copied.
    """
    for processor in processors:
        if not callable(processor):
            raise ValueError(f"logits_processors must be callables, got {processor!r}")
    try:
        return copy.deepcopy(list(processors))
    except Exception as error:
        raise ValueError(
            f"logits_processors: {[type(each).__name__ for each in processors]} cannot be copied, and "
            "every drafted position needs a copy of their state; define __deepcopy__ (one that "
            f"returns self says there is no state): {error}"
        ) from error


def _run(processors: Sequence[Processor], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    shape = scores.shape
    for processor in processors:
        scores = processor(ids, scores)
        if scores.shape != shape:
            raise ValueError(
                f"logits_processors: {type(processor).__name__} must return scores of shape "
                f"{tuple(shape)}, got {tuple(scores.shape)}"
            )
    if not bool(torch.isfinite(scores).any()) or bool(scores.isnan().any()):
        names = [type(each).__name__ for each in processors]
        raise ValueError(f"logits_processors: {names} left no token after {ids.shape[1]} tokens")
    return scores
