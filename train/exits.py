"""Trains the adapter of an exit: first in closed form, then by the losses that drafts are trained with.

The target does not change and the adapter reads each position by itself, so the states on both sides of it
are computed once; a step is the adapter and the head on some tokens.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..spec import (
    DraftInfo,
    SelfDrafter,
    load_causal_lm,
    load_tokenizer,
    model_fingerprint,
    pack_linears,
    target_width,
    tokenizer_hash,
)
from ..spec.cached import context_length
from ..spec.exit_adapter import ExitAdapter
from ..spec.exit_folder import save_exit
from .alignment import BATCH_ROWS, RIDGE
from .batches import Example, micro_batches
from .config import DistillConfig
from .divergences import log_acceptance, loss_for
from .draft import best_tokens, end_tokens
from .exit_config import ExitConfig
from .losses import chunked_divergence
from .packing import collate_for, supervised_states
from .reading import read_training_data, saved_states
from .schedule import learning_rate
from .teacher import Teacher

CHUNK = 1024  # tokens whose logits exist at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitResult:
    """What came of training an exit."""

    folder: Path
    untrained: float
    """α on held-out rows of the target's own norm and head at the exit."""
    aligned: float
    """α of the least-squares map."""
    alpha: float
    """α of what was saved, the best of all."""
    bytes: int
    """Memory of the adapter."""
    share: float
    """Of the target's memory."""
    seconds: float
    """Wall time of the steps and their measurements."""


class _States(NamedTuple):
    """Both sides of the adapter at N supervised positions."""

    exits: torch.Tensor  # [N, d], normed, what the adapter reads
    ends: torch.Tensor  # [N, d], what the head reads of the target
    log_sums: torch.Tensor | None  # [N], see `Teacher.log_sums`


def train_exit(config: ExitConfig, *, target: Any = None, tokenizer: Any = None) -> ExitResult:
    """Train an exit of a target on the text of a corpus, write its folder and return what came of it.

    Args:
        target: if it is loaded already.
        tokenizer: the target's, if it is loaded already.

    Raises:
        ValueError: naming what does not fit: a field, the corpus, or a target that cannot be split.
    """
    if tokenizer is None:
        tokenizer = load_tokenizer(config.target)
    if target is None:
        target = load_causal_lm(config.target)
        pack_linears(target)
    shared = config.distilling()
    width = target_width(target, tokenizer)
    first = SelfDrafter(target, config.layer, width=width).cached.model
    corpus = read_training_data(shared, tokenizer, context=context_length(target))
    train, dev = corpus.train.examples[: config.train_rows], corpus.dev.examples
    fingerprint = model_fingerprint(target)
    teacher = Teacher(target, width=width, saved=saved_states(shared, fingerprint))
    teacher.check(train[0])
    columns = _columns(config, teacher, tokenizer, train)  # [V']
    states = _read(first, teacher, train, columns, shared)
    held_out = _read(first, teacher, dev, None, shared)

    adapter = ExitAdapter(states.exits.shape[1], config.hidden, config.seed).to(teacher.device)
    untrained = held_out_alpha(teacher, adapter, held_out.exits, held_out.ends)
    adapter = adapter.to(states.exits.dtype)
    _align(adapter, states)
    aligned = held_out_alpha(teacher, adapter, held_out.exits, held_out.ends)
    begun = time.perf_counter()
    adapter, alpha = _fit(config, teacher, adapter, aligned, states, held_out, columns)
    seconds = time.perf_counter() - begun
    share = adapter.bytes / sum(weight.nbytes for weight in target.parameters())
    save_exit(
        config.output,
        adapter,
        DraftInfo(
            target=config.target,
            target_fingerprint=fingerprint,
            tokenizer_hash=tokenizer_hash(tokenizer),
            exit_layer=config.layer,
            metrics={
                "untrained/T1/alpha_tf": untrained,
                "aligned/T1/alpha_tf": aligned,
                "eval/T1/alpha_tf": alpha,
                "memory_share": share,
            },
        ),
    )
    return ExitResult(
        folder=Path(config.output),
        untrained=untrained,
        aligned=aligned,
        alpha=alpha,
        bytes=adapter.bytes,
        share=share,
        seconds=seconds,
    )


@torch.no_grad()
def held_out_alpha(
    teacher: Teacher, adapter: ExitAdapter, exits: torch.Tensor, ends: torch.Tensor
) -> float:
    """Return the mean of Σ min(p, q) over the whole vocabulary, at temperature 1.

    Args:
        exits: [N, d], what the adapter reads.
        ends: [N, d], what the head reads of the target.
    """
    total = 0.0
    for ours, theirs in zip(torch.split(exits, CHUNK), torch.split(ends, CHUNK), strict=True):
        target_logits = teacher.logits(theirs).log_softmax(-1)  # [n, V]
        total += float(log_acceptance(target_logits, teacher.logits(adapter(ours))).exp().sum())
    return total / len(exits)


def _columns(
    config: ExitConfig, teacher: Teacher, tokenizer: Any, examples: Sequence[Example]
) -> torch.Tensor:
    """Return the tokens [V'] that the loss looks at: the most frequent of the corpus, ascending."""
    if config.head_tokens is None or config.head_tokens >= teacher.width:
        return torch.arange(teacher.width)
    tokens = torch.cat([example.tokens for example in examples])
    counts = torch.bincount(tokens, minlength=teacher.width)[: teacher.width].double()
    return best_tokens(counts, config.head_tokens, end_tokens(teacher.model, tokenizer))


@torch.no_grad()
def _read(
    first: Any,
    teacher: Teacher,
    examples: Sequence[Example],
    columns: torch.Tensor | None,
    shared: DistillConfig,
) -> _States:
    """Run the first layers over examples; the target's own states are the corpus's where it has them.

    Args:
        columns: the tokens that the loss looks at; None: no loss is wanted.
    """
    collate, law = collate_for(first), loss_for(shared).law
    exits, ends, sums = [], [], []
    for part in micro_batches(examples, BATCH_ROWS):
        exits.append(supervised_states(first, collate(part)).clone())  # [n, d]
        ends.append(teacher.hidden(part))
        if columns is not None:
            log_sums = teacher.log_sums(
                part, ends[-1], law, columns, chunk_tokens=CHUNK, temperature=1.0
            )
            sums += [] if log_sums is None else [log_sums]
    return _States(torch.cat(exits), torch.cat(ends), torch.cat(sums) if sums else None)


@torch.no_grad()
def _align(adapter: ExitAdapter, states: _States) -> None:
    """Set A and b to the ridge regression of the target's states on the exit's, in float64."""
    size = states.exits.shape[1]
    gram = RIDGE * torch.eye(size + 1, dtype=torch.float64)
    cross = torch.zeros(size + 1, size, dtype=torch.float64)
    for ours, theirs in zip(
        torch.split(states.exits, CHUNK), torch.split(states.ends, CHUNK), strict=True
    ):
        x = torch.nn.functional.pad(ours.double().cpu(), (0, 1), value=1.0)  # [n, d + 1]
        gram += x.T @ x
        cross += x.T @ theirs.double().cpu()
    solution = torch.linalg.solve(gram, cross).T  # [d, d + 1]
    adapter.linear.weight.copy_(solution[:, :size])
    adapter.linear.bias.copy_(solution[:, size])


def _fit(
    config: ExitConfig,
    teacher: Teacher,
    adapter: ExitAdapter,
    alpha: float,
    states: _States,
    held_out: _States,
    columns: torch.Tensor,
) -> tuple[ExitAdapter, float]:
    """Return the adapter that was best on held-out rows, the one given included, and its α."""
    shared = config.distilling()
    head = teacher.head.rows(columns)
    divergence = loss_for(shared).divergence
    best, trained = copy.deepcopy(adapter), adapter.float().requires_grad_(True)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=config.learning_rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(config.seed)
    begun = time.perf_counter()
    order = torch.empty(0, dtype=torch.int64)
    for step in range(config.steps):
        seconds = time.perf_counter() - begun
        out_of_time = config.max_seconds is not None and seconds >= config.max_seconds
        if not out_of_time:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(shared, step, seconds)
            if len(order) < config.batch_tokens:
                order = torch.cat([order, torch.randperm(len(states.exits), generator=generator)])
            batch, order = order[: config.batch_tokens], order[config.batch_tokens :]
            loss = chunked_divergence(
                trained(states.exits[batch].float()),
                head,
                states.ends[batch],
                head,
                divergence,
                log_sums=None if states.log_sums is None else states.log_sums[batch],
                chunk_tokens=CHUNK,
            )
            optimizer.zero_grad()
            (loss / len(batch)).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trained.parameters(), shared.max_grad_norm)
            optimizer.step()
        if out_of_time or step + 1 == config.steps or (step + 1) % config.eval_every == 0:
            now = copy.deepcopy(trained).to(states.exits.dtype)
            found = held_out_alpha(teacher, now, held_out.exits, held_out.ends)
            if found > alpha:
                best, alpha = now, found
        if out_of_time:
            break
    return best, alpha
