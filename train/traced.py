"""Answers decoded at temperature 1, each with what the loop saw at every token that it tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..data import Prompt, TraceRecorder, TraceRow
from ..spec import FixedLookahead, SamplingParams, SpeculativeDecoder
from .batches import Example


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """One answer."""

    example: Example  # prompt and answer, the answer supervised
    tested: list[TraceRow]  # of the drafted tokens that were tested

    def place(self, row: TraceRow) -> int:
        """Return which of the answer's tokens stands where a drafted one was tested, from 0."""
        return row.context_length + row.depth - 1 - self.example.first


def decode_traced(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    *,
    gamma: int,
    max_tokens: int,
    seed: int,
) -> list[Traced]:
    """Return an answer a prompt, less the empty ones; prompt i is sampled with seed + i."""
    answers = []
    for index, prompt in enumerate(prompts):
        recorder = TraceRecorder(FixedLookahead(gamma))
        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, seed=seed + index)
        output = decoder.with_lookahead(recorder).chat([prompt.messages], params)[0]
        tokens = [*output.prompt_token_ids, *output.token_ids]
        if output.token_ids and output.prompt_token_ids:
            example = Example(torch.tensor(tokens), len(output.token_ids), prompt.id)
            answers.append(Traced(example, [row for row in recorder.rows if row.tested]))
    return answers
