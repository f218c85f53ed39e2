"""How a run starts: its draft made as the config says, or all of it taken up from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from ..spec.cached import context_length
from .batches import Example
from .checkpoint import (
    TrainerState,
    load_alignment,
    load_rng,
    load_state,
    load_tensors,
    restore_adapters,
    write_rng,
)
from .config import DistillConfig
from .deepspeed_engine import load_engine
from .draft import Draft, choose_kept_tokens, load_draft, prepare_draft, starting_model
from .heads import check_split
from .sharded import load_optimizer_state
from .teacher import Teacher


def start_draft(
    config: DistillConfig,
    teacher: Teacher,
    tokenizer: Any,
    examples: Sequence[Example],
    checkpoint: Path | None,
) -> tuple[TrainerState, Draft]:
    """Return where the run stands and its draft: the checkpoint's, or from the beginning where there is none.

    Args:
        examples: the training rows.
    """
    if checkpoint is None:
        model = starting_model(config, teacher, tokenizer)
        kept = choose_kept_tokens(config, teacher, tokenizer, model, examples)
        # The main process's choice: scores may round differently elsewhere.
        return TrainerState(), prepare_draft(model, broadcast_object_list([kept])[0], config)
    draft = load_draft(checkpoint, config)
    draft.alignment = load_alignment(checkpoint)
    restore_adapters(checkpoint, draft)
    return load_state(checkpoint), draft


def restore_training(accelerator: Accelerator, optimizer: Any, checkpoint: Path) -> None:
    """Give a prepared optimizer, and this process's generators, the states of the checkpoint."""
    if not load_engine(accelerator, checkpoint):
        load_optimizer_state(optimizer, load_tensors(checkpoint)[0])
    rng_states = load_rng(checkpoint)
    if accelerator.process_index < len(rng_states):
        write_rng(rng_states[accelerator.process_index], accelerator.device)


def check_draft(draft: Any, examples: Sequence[Example], device: torch.device) -> None:
    """Raise where the draft cannot be trained on these examples.

    Raises:
        ValueError: naming its context and the longest row, or what cannot be split of it.
    """
    longest = max(len(example.input_ids) for example in examples)
    if longest > context_length(draft):
        raise ValueError(
            f"max_length must be at most {context_length(draft) + 1} for a draft with a context of "
            f"{context_length(draft)} tokens: the longest row feeds it {longest}"
        )
    check_split(draft, examples[0].input_ids[None].to(device))
