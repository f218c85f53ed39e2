"""What a draft is told about the examples of a step, and the loss that reads it: online or from a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.progress import Progress
from torch.utils.checkpoint import checkpoint

from .alignment import Alignment
from .batches import Example
from .config import DistillConfig
from .divergences import Loss, loss_for
from .heads import divided, head_of
from .losses import DraftLoss
from .packing import Batch, supervised_states
from .teacher import Teacher
from .teacher_cache import CacheOrigin, TeacherCache, write_teacher_cache
from .topk import TopK, coarse_laws

Answers = Callable[[Sequence[Example]], tuple[Any, ...]]
"""Returns what the loss reads beside the batch of these examples, on the teacher's device."""


def answers_for(
    config: DistillConfig, teacher: Teacher, columns: torch.Tensor, cache: TeacherCache | None
) -> Answers:
    """Return what asks the teacher, or the cache where there is one.

    Args:
        columns: [V_draft], the tokens that the draft can propose.
    """
    if cache is None:
        return partial(_ask, config, loss_for(config), teacher, columns)
    return partial(_look_up, cache, teacher.device)


def loss_module(
    config: DistillConfig,
    draft: Any,
    teacher: Teacher,
    columns: torch.Tensor,
    cache: TeacherCache | None,
    alignment: Alignment | None = None,
) -> torch.nn.Module:
    """Return the module of draft and loss that reads the answers: sums over supervised tokens, [2].

    Args:
        columns: [V_draft], the tokens that the draft can propose.
        alignment: measures how far the draft's states are from the target's; None: not measured.
    """
    chosen = loss_for(config)
    if cache is None:
        return DraftLoss(
            draft,
            teacher.head.rows(columns),
            chosen.divergence,
            temperature=config.temperature,
            chunk_tokens=config.chunk_tokens,
            alignment=alignment,
        )
    column_of = torch.full((teacher.width,), -1)
    column_of[columns.cpu()] = torch.arange(len(columns))
    return CachedLoss(
        draft,
        chosen,
        column_of.to(teacher.device),
        temperature=config.temperature,
        chunk_tokens=config.chunk_tokens,
    )


def _ask(
    config: DistillConfig,
    chosen: Loss,
    teacher: Teacher,
    columns: torch.Tensor,
    examples: Sequence[Example],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    hidden = teacher.hidden(examples)  # [N, d_target]
    log_sums = teacher.log_sums(
        examples, hidden, chosen.law, columns,
        chunk_tokens=config.chunk_tokens, temperature=config.temperature,
    )  # fmt: skip
    return hidden, log_sums


def _look_up(cache: TeacherCache, device: torch.device, examples: Sequence[Example]) -> tuple[TopK]:
    return (TopK(*(tensor.to(device) for tensor in cache.laws(examples))),)


class CachedLoss(torch.nn.Module):
    """A draft and its loss against cut laws as one module, so that DDP and autocast see one forward."""

    def __init__(
        self,
        draft: Any,
        chosen: Loss,
        column_of: torch.Tensor,
        *,
        temperature: float,
        chunk_tokens: int,
    ) -> None:
        """Hold the draft.

        Args:
            column_of: [V], the draft's column of each token, −1 where it has none.
            temperature: divides the draft's logits; the cut laws were made with it.
        """
        super().__init__()
        self.draft = draft
        self._no_split_modules = draft._no_split_modules  # what FSDP2 shards one by one
        self._chosen = chosen
        self._column_of = column_of
        self._columns = int((column_of >= 0).sum())
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens

    def forward(self, batch: Batch, top: TopK) -> torch.Tensor:
        """Return sums over the supervised tokens, [2]: the divergence, and 0 for the states not compared.

        A chunk's logits are made again in the backward: those of all tokens never exist.

        Args:
            batch: of N supervised positions.
            top: the target's cut laws at those positions.
        """
        hidden = supervised_states(self.draft, batch)  # [N, d]
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        for start in range(0, len(hidden), self._chunk_tokens):
            chunk = slice(start, start + self._chunk_tokens)
            part: torch.Tensor = checkpoint(
                self._divergence, hidden[chunk], top.part(chunk), use_reentrant=False
            )
            total = total + part
        return torch.stack([total, torch.zeros_like(total)])

    def _divergence(self, hidden: torch.Tensor, top: TopK) -> torch.Tensor:
        head = head_of(self.draft).first(self._columns)
        logits = divided(head.logits(hidden), self._temperature)  # [n, V_draft]
        target, draft = coarse_laws(top, logits, self._column_of, self._chosen.law)
        return self._chosen.divergence(target, draft).sum()


def open_cache(
    config: DistillConfig,
    accelerator: Accelerator,
    teacher: Teacher,
    examples: Sequence[Example],
    target_fingerprint: str,
) -> TeacherCache | None:
    """Return the cache that the config asks for, all examples in it; None with an online teacher.

    What it lacks is written first, each process its share.

    Raises:
        ValueError: as `write_teacher_cache` and `TeacherCache`.
    """
    if config.teacher == "online":
        return None
    folder = config.cache_folder or str(Path(config.output) / "teacher-cache")
    origin = CacheOrigin(target_fingerprint, teacher.width, config.cache_top_k, config.temperature)
    with Progress(disable=not accelerator.is_main_process) as bar:
        task = bar.add_task("teacher reads", total=None)
        write_teacher_cache(
            folder,
            teacher,
            examples,
            origin,
            part=accelerator.process_index,
            parts=accelerator.num_processes,
            chunk_tokens=config.chunk_tokens,
            progress=lambda done, wanted: bar.update(task, completed=done, total=wanted),
        )
    accelerator.wait_for_everyone()
    return TeacherCache(folder, origin)
