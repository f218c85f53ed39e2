"""Text of the draft's own for a share of the rows: it goes on from somewhere in a row, the teacher judges that.

What is verified when decoding is written by the draft after text of the target; so is this. The draft writes
every so many steps, and what it wrote is kept beside the checkpoints: a resumed run reads it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from ..data.files import write_lines
from ..spec import SamplingParams, decode_rows, eos_token_ids, full_attention
from ..spec.cached import context_length
from .batches import Example, rows_of_step
from .config import DistillConfig
from .draft import Draft
from .heads import eval_mode
from .teacher import Teacher

FOLDER = "on-policy"
ROWS = 32  # written at a time


class OnPolicyText:
    """The draft's own text in a run: written every `on_policy_every` steps, mixed into each step's rows."""

    def __init__(
        self,
        config: DistillConfig,
        accelerator: Accelerator,
        teacher: Teacher,
        draft: Draft,
        examples: Sequence[Example],
        *,
        resumed: bool,
    ) -> None:
        """Hold what is needed to write; a run that is not resumed forgets what another left in its folder.

        Raises:
            ValueError: if the draft cannot write many rows at once.
        """
        if not full_attention(draft.model):
            raise ValueError(
                f"on_policy_share must be 0 for {type(draft.model).__name__}: rows of different length "
                "need full attention"
            )
        self._config, self._accelerator, self._teacher = config, accelerator, teacher
        self._draft, self._examples = draft, examples
        self._folder = Path(config.output) / FOLDER
        self._rows = round(config.on_policy_share * config.batch_rows)  # of each step
        self._number = -1  # of what is held
        self._held: list[Example] = []
        if not resumed and accelerator.is_main_process:
            shutil.rmtree(self._folder, ignore_errors=True)

    def mix(self, step: int, batch: list[Example]) -> list[Example]:
        """Return the rows of a step (from 0), the last of them replaced by the draft's text.

        To be called by all processes, with the draft as it is before the step.
        """
        since = step - self._config.on_policy_after
        if since < 0:
            return batch
        number, place = divmod(since, self._config.on_policy_every)
        if number != self._number:
            self._teacher.forget(self._held)
            self._number, self._held = number, self._pool(number)
        mine = self._held[place * self._rows : (place + 1) * self._rows]
        return [*batch[: len(batch) - len(mine)], *mine]

    def _pool(self, number: int) -> list[Example]:
        """Return the text for the steps until the draft writes again: read, or written by the main process."""
        rows: list[Any] = []
        if self._accelerator.is_main_process:
            path = self._folder / f"text-{number:06d}.jsonl"
            if not path.is_file():
                self._folder.mkdir(parents=True, exist_ok=True)
                write_lines(path, self._write(number))
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = broadcast_object_list([rows])[0]
        return [Example(torch.tensor(row["tokens"]), row["supervised"]) for row in rows]

    def _write(self, number: int) -> list[dict[str, Any]]:
        """Let the draft go on from a random supervised position of each of so many rows."""
        config = self._config
        each = tuple((row,) for row in range(len(self._examples)))
        wanted = self._rows * config.on_policy_every
        rng = np.random.default_rng([config.seed, number, 1])
        chosen = [self._examples[row] for row in rows_of_step(config.seed, number, each, wanted)]
        starts = [one.tokens[: int(rng.choice(one.positions)) + 1].tolist() for one in chosen]
        params = SamplingParams(temperature=config.temperature, max_tokens=config.on_policy_tokens)
        contexts = (context_length(self._teacher.model), context_length(self._draft.model))
        limit = min(config.max_length, *contexts)
        written: list[dict[str, Any]] = [{}] * len(starts)
        with eval_mode(self._draft.model), whole_logits(self._draft, self._teacher.width):
            for row in decode_rows(
                self._draft.model,
                starts,
                [params] * len(starts),
                seeds=rng.integers(0, 2**62, size=len(starts)).tolist(),
                rows=ROWS,
                eos_token_ids=eos_token_ids(self._teacher.model),
                width=self._teacher.width,
            ):
                start = starts[row.index]
                tokens = [*start, *row.token_ids][:limit]
                written[row.index] = {"tokens": tokens, "supervised": len(tokens) - len(start)}
        return written


@contextmanager
def whole_logits(draft: Draft, width: int) -> Iterator[None]:
    """Let a draft with a cut head give logits over the whole vocabulary, −inf for the rest."""
    if draft.kept is None:
        yield
        return
    head = draft.model.get_output_embeddings()
    draft.model.set_output_embeddings(_Spread(head, draft.kept.to(head.weight.device), width))
    try:
        yield
    finally:
        draft.model.set_output_embeddings(head)


class _Spread(torch.nn.Module):
    """A cut head whose logits are put where their tokens are."""

    def __init__(self, head: torch.nn.Module, kept: torch.Tensor, width: int) -> None:
        super().__init__()
        self.head, self.kept, self.width = head, kept, width
        self.weight = head.weight  # some models look at its dtype

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(hidden)  # [.., V_draft]
        whole = logits.new_full((*logits.shape[:-1], self.width), -torch.inf)
        return whole.index_copy(-1, self.kept, logits)
