"""Trains heads on a target's last hidden states: in closed form first, then through the target's own head.

The states are those that a corpus keeps, so that no target body runs; a row without is read once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..spec import (
    DraftInfo,
    EagleHead,
    MedusaHeads,
    load_causal_lm,
    load_tokenizer,
    model_fingerprint,
    pack_linears,
    target_width,
    tokenizer_hash,
)
from ..spec.cached import context_length
from ..spec.head_folder import save_heads
from .batches import Example, micro_batches, prompt_groups, rows_of_step
from .config import DistillConfig
from .divergences import loss_for
from .draft import choose_kept_tokens
from .head_config import HeadConfig
from .head_judging import Judge
from .head_states import EagleTrainer, HeadTrainer, MedusaTrainer
from .reading import read_training_data, saved_states
from .schedule import learning_rate
from .teacher import Teacher

ALIGN_ROWS = 160  # that the start is fitted on: some ten thousand tokens
CACHE_GB = 2.0  # for states that the corpus does not keep


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadResult:
    """What came of training heads."""

    folder: Path
    start: list[float]
    """α at each depth on held-out rows, of the start in closed form."""
    alphas: list[float]
    """Of what was saved: the best by tokens accepted of a whole draft."""
    bytes: int
    """Memory of the heads."""
    share: float
    """Of the target's memory."""
    seconds: float
    """Wall time of the steps and their measurements."""
    steps: int
    """Optimizer steps taken."""


def train_heads(
    config: HeadConfig,
    *,
    target: Any = None,
    tokenizer: Any = None,
    progress: Callable[[int, float, list[float]], None] | None = None,
) -> HeadResult:
    """Train heads of a target on the text of a corpus, write their folder and return what came of it.

    Args:
        target: if it is loaded already.
        tokenizer: the target's, if it is loaded already.
        progress: told (steps done, seconds, α at each depth) at each evaluation.

    Raises:
        ValueError: naming what does not fit: a field, the corpus, or the target.
    """
    if tokenizer is None:
        tokenizer = load_tokenizer(config.target)
    if target is None:
        target = load_causal_lm(config.target)
        pack_linears(target)
    shared = config.distilling()
    width = target_width(target, tokenizer)
    corpus = read_training_data(shared, tokenizer, context=context_length(target))
    train = [last_turn(one) for one in corpus.train.examples[: config.train_rows]]
    dev = [last_turn(one) for one in corpus.dev.examples]
    fingerprint = model_fingerprint(target)
    teacher = Teacher(
        target, width=width, cache_gb=CACHE_GB, saved=saved_states(shared, fingerprint)
    )
    teacher.check(train[0])
    trainer: HeadTrainer
    if config.kind == "eagle":
        trainer = EagleTrainer(target, config.depth)
    else:
        trainer = MedusaTrainer(target, config.depth)
    kept = choose_kept_tokens(shared, teacher, tokenizer, target, train)
    judge = Judge(teacher, trainer, kept, loss_for(shared))
    trainer.align(_batches(teacher, train[:ALIGN_ROWS], config.batch_rows))
    share = _bytes(trainer.heads) / sum(weight.nbytes for weight in target.parameters())

    def keep(heads: EagleHead | MedusaHeads, alphas: Sequence[float]) -> None:
        metrics = {f"eval/T1/alpha_tf_{k}": alpha for k, alpha in enumerate(alphas, start=1)}
        info = DraftInfo(
            target=config.target,
            target_fingerprint=fingerprint,
            tokenizer_hash=tokenizer_hash(tokenizer),
            kept_tokens=None if kept is None else len(kept),
            heads=config.kind,
            metrics=metrics | {"memory_share": share},
        )
        save_heads(config.output, heads, info, kept)

    fit = _Fit(config, shared, judge, train, dev, keep, progress)
    fit.run()
    return HeadResult(
        folder=Path(config.output),
        start=fit.start,
        alphas=fit.best,
        bytes=_bytes(trainer.heads),
        share=share,
        seconds=fit.seconds,
        steps=fit.steps,
    )


def last_turn(example: Example) -> Example:
    """Return an example in which only the last turn is supervised: a request's prompt has no states."""
    if len(example.spans) < 2:
        return example
    first, end = example.spans[-1]
    return Example(example.tokens[:end], end - first)


def accepted_tokens(alphas: Sequence[float]) -> float:
    """Return α₁ + α₁·α₂ + …: the tokens accepted of a draft of that length."""
    total, alive = 0.0, 1.0
    for alpha in alphas:
        alive *= alpha
        total += alive
    return total


class _Fit:
    """The steps, the measurements between them, and the best so far."""

    def __init__(
        self,
        config: HeadConfig,
        shared: DistillConfig,
        judge: Judge,
        train: Sequence[Example],
        dev: Sequence[Example],
        keep: Callable[[EagleHead | MedusaHeads, Sequence[float]], None],
        progress: Callable[[int, float, list[float]], None] | None,
    ) -> None:
        self._config, self._shared, self._judge = config, shared, judge
        self._train, self._dev, self._keep, self._progress = train, dev, keep, progress
        self._heads = judge.trainer.heads
        self.steps, self.seconds = 0, 0.0
        self.start: list[float] = []
        self.best: list[float] = []

    def run(self) -> None:
        config, shared, heads = self._config, self._shared, self._heads
        self._measure()
        heads.requires_grad_(True)
        optimizer = torch.optim.AdamW(
            heads.parameters(), lr=config.learning_rate, betas=shared.betas, weight_decay=0.0
        )
        weights = torch.tensor([config.depth_decay**k for k in range(config.depth)])
        weights = weights.to(self._judge.teacher.device) / weights.sum()
        variance = _variance(self._judge.teacher, self._train[:ALIGN_ROWS])
        groups = prompt_groups(self._train)
        begun = time.perf_counter()
        while self.steps < config.steps:
            seconds = time.perf_counter() - begun
            if config.max_seconds is not None and seconds >= config.max_seconds:
                break
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(shared, self.steps, seconds)
            rows = rows_of_step(config.seed, self.steps, groups, config.batch_rows)
            found = self._judge.losses([self._train[row] for row in rows], variance)
            divergence, distance = (found * weights).sum(-1)
            optimizer.zero_grad()
            (divergence + config.state_weight * distance).backward()
            torch.nn.utils.clip_grad_norm_(heads.parameters(), shared.max_grad_norm)
            optimizer.step()
            self.steps += 1
            self.seconds = time.perf_counter() - begun
            if self.steps % config.eval_every == 0 and self.steps < config.steps:
                self._measure()
        if self.steps:
            self._measure()
        self.seconds = time.perf_counter() - begun

    def _measure(self) -> None:
        """Measure α on the held-out rows, and save what is better than all before."""
        alphas = self._judge.alphas(self._dev, self._config.batch_rows)
        if not self.start:
            self.start = alphas
        if not self.best or accepted_tokens(alphas) > accepted_tokens(self.best):
            self.best = alphas
            self._keep(self._heads, alphas)
        if self._progress is not None:
            self._progress(self.steps, self.seconds, alphas)


def _batches(
    teacher: Teacher, examples: Sequence[Example], size: int
) -> Iterator[tuple[list[Example], list[torch.Tensor]]]:
    for part in micro_batches(examples, size):
        yield part, [teacher.hidden([example]) for example in part]


@torch.no_grad()
def _variance(teacher: Teacher, examples: Sequence[Example]) -> float:
    """Return the variance of the target's states about their mean, a dimension's on average."""
    states = teacher.hidden(examples).double()  # [N, d]
    return float(states.var(dim=0, correction=0).mean())


def _bytes(heads: torch.nn.Module) -> int:
    return sum(weight.numel() * weight.element_size() for weight in heads.parameters())
