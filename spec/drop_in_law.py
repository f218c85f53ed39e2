"""The law of a row of a transformers call: what the call's own logits processors make of the logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor
from transformers.generation import logits_process as stock

from .law import TokenLaw
from .params import SamplingParams
from .processors import Processor

# In the order of `generate`, which is that of `token_probs`.
WARPERS: tuple[tuple[type, str], ...] = (
    (stock.TemperatureLogitsWarper, "temperature"),
    (stock.TopKLogitsWarper, "top_k"),
    (stock.TopPLogitsWarper, "top_p"),
    (stock.MinPLogitsWarper, "min_p"),
)


class CallLaw(TokenLaw):
    """A TokenLaw that remembers the scores it last drew from: in a round, those of the target."""

    last_scores: torch.Tensor  # [N, V], processed

    def scores(self, logits: torch.Tensor, drafted: Sequence[int], first: int = 0) -> torch.Tensor:
        self.last_scores = super().scores(logits, drafted, first)
        return self.last_scores


def call_law(
    processors: Sequence[LogitsProcessor],
    input_ids: torch.Tensor,
    *,
    row: int,
    width: int,
    device: torch.device,
    greedy: bool,
    whole_scores: bool,
) -> CallLaw:
    """Return the law of one row; it sees the row's tokens as `generate` shows them, padding included.

    Args:
        input_ids: [B, L].
        width: V.
        greedy: tokens are the best of the processed scores, else drawn from them.
        whole_scores: `last_scores` are wanted as `generate` reports them, after all processors.
            Else the stock ones that a TokenLaw does by itself, and faster, are left to it.
    """
    params, rest = SamplingParams(temperature=0.0 if greedy else 1.0), list(processors)
    if not whole_scores:
        params, rest = lifted(rest, greedy=greedy)
    if len(input_ids) > 1:
        rest = [InRow(processor, row, len(input_ids)) for processor in rest]
    return CallLaw(
        params,
        input_ids[row].tolist(),
        width=width,
        eos_token_ids=(),
        device=device,
        processors=rest,
    )


def lifted(
    processors: Sequence[Processor], *, greedy: bool
) -> tuple[SamplingParams, list[Processor]]:
    """Return what the first and the last stock processors ask for as settings, and the others."""
    rest, settings = list(processors), {"temperature": 0.0 if greedy else 1.0}
    for kind, name in () if greedy else reversed(WARPERS):
        if rest and _is_plain(rest[-1], kind, name):
            settings[name] = getattr(rest.pop(), name)
    if rest and _is_plain(rest[0], stock.RepetitionPenaltyLogitsProcessor, "penalty"):
        settings["repetition_penalty"] = rest.pop(0).penalty  # type: ignore[attr-defined]
    return SamplingParams(**settings), rest  # type: ignore[arg-type]  # top_k is an int


def _is_plain(processor: Processor, kind: Any, name: str) -> bool:
    """Return whether it is of this very class, with nothing set but the one number."""
    of_class = type(processor) is kind
    return of_class and vars(processor) == vars(kind(getattr(processor, name)))


class InRow:
    """A processor that holds something for each row, asked about one of them.

    It is shown a batch in which every row is this one, and keeps its place.
    """

    def __init__(self, processor: Any, row: int, rows: int) -> None:
        self._processor, self._row, self._rows = processor, row, rows

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return [1, V] from [1, L] and [1, V]."""
        whole = self._processor(input_ids.expand(self._rows, -1), scores.repeat(self._rows, 1))
        return whole[self._row : self._row + 1]  # type: ignore[no-any-return]
