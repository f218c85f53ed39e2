"""`foredraft plan`: what drafts of several sizes would cost and gain, before any is trained.

Costs are measured: each draft is built from the target's layers and run. Its α is that of its closed-form
start on held-out rows of a corpus, and what training is expected to add, as it is told or by a pilot. Speed
follows from both, for the best fixed γ, as if each token were accepted with chance α whatever came before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ..controller import LatencyConfig, RoundCosts, best_fixed_gamma, measure_latency
from ..data.files import write_json
from ..spec import (
    ModelDrafter,
    SpeculativeDecoder,
    load_causal_lm,
    load_tokenizer,
    pack_linears,
    settle_cpu,
    target_width,
)
from ..spec.cached import context_length
from ..train import DistillConfig
from ..train.alignment import Alignment, state_map
from ..train.batches import Example, read_examples
from ..train.divergences import loss_for
from ..train.draft import best_tokens, end_tokens, first_layers, prepare_draft, rank_tokens
from ..train.evaluation import evaluate
from ..train.losses import DraftLoss
from ..train.packing import collate_for
from ..train.teacher import Teacher
from .bar import Bar
from .config import PlanCommand
from .packaged import resolve_target
from .piloting import run_pilot

OPTIMIZER_BYTES = 12  # a trained weight's gradient and AdamW's two averages, in float32
LOGIT_TENSORS = 6  # tensors [chunk, V_draft] that a loss needs at once
LATENCY = LatencyConfig(repeats=9, max_passes=1, contexts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDraft:
    """A size of draft, what it costs and what it is expected to gain."""

    layers: int
    head_tokens: int  # V_draft
    parameters: int
    decoding_bytes: int  # its weights as they are decoded with
    training_bytes: int  # its weights, their gradients and averages, and logits of a chunk
    step_seconds: float  # of a draft step
    cost_ratio: float  # c
    coverage: float  # mass of the target's law that it can propose, on held-out text
    alpha_start: float  # at temperature 1, before training
    alpha: float  # expected after it
    break_even: float  # α below which no γ > 0 pays
    gamma: int  # the best fixed one at `alpha`
    speedup: float  # over plain decoding, with it
    training_seconds: float  # for the tokens asked for


@dataclass(slots=True)
class _Target:
    model: Any
    teacher: Teacher
    tokenizer: Any
    width: int
    train: list[Example]
    dev: list[Example]
    scores: torch.Tensor  # [V], how often a token is expected


def run_plan(config: PlanCommand) -> None:
    """`foredraft plan`"""
    settle_cpu()
    console = Console()
    with Bar(console) as update:
        planned = plan(config, lambda done, wanted: update(done, wanted, "drafts"))
    best = max(planned, key=lambda draft: draft.speedup)
    print_plan(planned, best, config, console)
    output = Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_json(output, {"drafts": [asdict(draft) for draft in planned], "best": asdict(best)})


def plan(
    config: PlanCommand, progress: Callable[[int, int], None] = lambda done, wanted: None
) -> list[PlannedDraft]:
    """Return the drafts of the grid, in its order.

    Raises:
        ValueError: naming what does not fit.
    """
    target = _load(config)
    planned: list[PlannedDraft] = []
    costs: list[RoundCosts] = []
    verify: tuple[float, ...] = ()
    count = len(config.layers) * len(config.head_tokens)
    for layers in config.layers:
        alignment = None
        for head_tokens in config.head_tokens:
            draft, alignment = _plan_one(target, config, layers, head_tokens, alignment, verify)
            planned.append(draft.planned)
            costs.append(draft.costs)
            verify = draft.costs.verify  # measured once: it is the target's alone
            progress(len(planned), count)
    if config.pilot_tokens == 0:
        return planned
    best = max(planned, key=lambda draft: draft.speedup)
    gain = run_pilot(
        config, best.layers, None if best.head_tokens >= target.width else best.head_tokens,
        target.train, target=target.model, tokenizer=target.tokenizer,
    ).gain(config.tokens)  # fmt: skip
    return [_expecting(gain, *one) for one in zip(planned, costs, strict=True)]


def _expecting(gain: float, planned: PlannedDraft, costs: RoundCosts) -> PlannedDraft:
    """Return a draft with what is expected of it where training adds `gain` to its α."""
    alpha = min(planned.alpha_start + gain, planned.coverage)
    gamma, speedup = _best(costs, alpha)
    return replace(planned, alpha=alpha, gamma=gamma, speedup=speedup)


@dataclass(frozen=True, slots=True)
class _Measured:
    planned: PlannedDraft
    costs: RoundCosts


def _load(config: PlanCommand) -> _Target:
    name = resolve_target(config.target)
    model = load_causal_lm(name)
    pack_linears(model)
    tokenizer = load_tokenizer(name)
    width = target_width(model, tokenizer)
    settings = _distil_config(config, config.layers[0], None)
    corpus = read_examples(settings, tokenizer, context=context_length(model))
    teacher = Teacher(model, width=width, cache_gb=settings.teacher_cache_gb)
    train = list(corpus.train.examples[: config.rows])
    scores = rank_tokens(teacher, train, seed=0, chunk_tokens=settings.chunk_tokens)
    dev = list(corpus.dev.examples[: config.rows])
    return _Target(model, teacher, tokenizer, width, train, dev, scores)


def _distil_config(config: PlanCommand, layers: int, head_tokens: int | None) -> DistillConfig:
    return DistillConfig(
        target=config.target,
        corpus=config.corpus,
        layers=layers,
        head_tokens=head_tokens,
        loss=config.loss,
        chunk_tokens=256,
    )


def _plan_one(
    target: _Target,
    config: PlanCommand,
    layers: int,
    head_tokens: int,
    alignment: Alignment | None,
    verify: tuple[float, ...],
) -> tuple[_Measured, Alignment]:
    whole = head_tokens >= target.width
    settings = _distil_config(config, layers, None if whole else head_tokens)
    kept = None
    if not whole:
        always = end_tokens(target.model, target.tokenizer)
        kept = best_tokens(target.scores, head_tokens, always)
    draft = prepare_draft(first_layers(target.model, layers), kept, settings)
    collate = collate_for(draft.model)
    if alignment is None:  # the same for every head
        alignment = state_map(draft.model, target.teacher, target.train, collate)
    draft.align(alignment)
    columns = draft.columns(target.width)
    metrics = evaluate(
        target.teacher, draft.model, columns, target.dev,
        collate=collate, batch_rows=8, chunk_tokens=settings.chunk_tokens,
    )  # fmt: skip
    rate = _tokens_per_second(target, draft.model, columns, settings)
    trained = sum(p.numel() for p in draft.model.parameters() if p.requires_grad)
    parameters = sum(p.numel() for p in draft.model.parameters())
    model = draft.model.eval().requires_grad_(False)
    pack_linears(model, draft=True)
    drafter = ModelDrafter(model, width=target.width, kept=kept)
    decoder = SpeculativeDecoder(target.model, target.tokenizer, drafter)
    prompt = target.dev[0].tokens.tolist()
    gamma_max = 2 if verify else config.gamma_max
    table = measure_latency(decoder, gamma_max, prompt=prompt, config=LATENCY)
    verify = verify or table.verify_seconds
    costs = RoundCosts(draft_step=table.draft_step_seconds, verify=verify)
    alpha_start = metrics["eval/T1/alpha_tf"]
    logits = LOGIT_TENSORS * settings.chunk_tokens * len(columns) * 4
    planned = PlannedDraft(
        layers=layers,
        head_tokens=len(columns),
        parameters=parameters,
        decoding_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        training_bytes=4 * parameters + OPTIMIZER_BYTES * trained + logits,
        step_seconds=table.draft_step_seconds,
        cost_ratio=table.draft_step_seconds / verify[0],
        coverage=metrics["eval/T1/coverage"],
        alpha_start=alpha_start,
        alpha=alpha_start,
        break_even=_break_even(costs),
        gamma=0,
        speedup=1.0,
        training_seconds=config.tokens / rate,
    )
    return _Measured(_expecting(config.gain, planned, costs), costs), alignment


def _best(costs: RoundCosts, alpha: float) -> tuple[int, float]:
    """Return the best fixed γ where every token is accepted with chance α, and its speedup."""
    gamma, rate = best_fixed_gamma([alpha] * costs.gamma_max, costs)
    return gamma, rate * costs.plain


def _break_even(costs: RoundCosts) -> float:
    """Return the least α, in hundredths, at which some γ > 0 is faster than plain decoding; 1 if none is."""
    for hundredth in range(100):
        if _best(costs, hundredth / 100)[0] > 0:
            return hundredth / 100
    return 1.0


def _tokens_per_second(
    target: _Target, model: Any, columns: torch.Tensor, settings: DistillConfig
) -> float:
    """Return supervised tokens a second of training: forward and backward of a batch, after another."""
    loss = DraftLoss(
        model,
        target.teacher.head.rows(columns),
        loss_for(settings).divergence,
        temperature=1.0,
        chunk_tokens=settings.chunk_tokens,
    )
    collate = collate_for(model)
    seconds, tokens = 0.0, 0
    for part in _batches(target.train, settings.batch_rows):
        hidden = target.teacher.hidden(part)
        law = loss_for(settings).law
        sums = target.teacher.log_sums(
            part, hidden, law, columns, chunk_tokens=settings.chunk_tokens, temperature=1.0
        )
        begun = time.perf_counter()
        loss(collate(part), hidden, sums)[0].backward()
        seconds = time.perf_counter() - begun
        tokens = sum(example.supervised for example in part)
        model.zero_grad(set_to_none=True)
    return tokens / seconds


def _batches(examples: list[Example], rows: int) -> Iterator[list[Example]]:
    """Yield two batches of at most so many rows; the same one twice where there are few."""
    yield examples[:rows]
    yield examples[rows : 2 * rows] or examples[:rows]


def print_plan(
    planned: list[PlannedDraft], best: PlannedDraft, config: PlanCommand, console: Console
) -> None:
    """Print the grid and what is recommended."""
    table = Table(box=None, pad_edge=False)
    names = ("layers", "head", "M param.", "decode MB", "train MB", "step ms", "c", "coverage")
    for name in (*names, "α start", "α", "pays from α", "γ", "speedup", "training"):
        table.add_column(name, justify="right")
    for draft in planned:
        table.add_row(
            str(draft.layers),
            str(draft.head_tokens),
            f"{draft.parameters / 1e6:.1f}",
            f"{draft.decoding_bytes / 1e6:.0f}",
            f"{draft.training_bytes / 1e6:.0f}",
            f"{1e3 * draft.step_seconds:.1f}",
            f"{draft.cost_ratio:.2f}",
            f"{draft.coverage:.3f}",
            f"{draft.alpha_start:.3f}",
            f"{draft.alpha:.3f}",
            f"{draft.break_even:.2f}",
            str(draft.gamma),
            f"{draft.speedup:.2f}×",
            f"{draft.training_seconds / 60:.0f} min",
            style="bold" if draft is best else None,
        )
    console.print(table)
    console.print(
        f"α start: measured on held-out rows before training; α: with the {best.alpha - best.alpha_start:.2g} "
        f"that training is expected to add{' by the pilot' if config.pilot_tokens else ''}. "
        f"Training: {config.tokens} supervised tokens."
    )
    if best.speedup <= 1.0:
        console.print("None of these is expected to be faster than plain decoding.")
    else:
        console.print(
            f"Recommended: --layers {best.layers} --head_tokens {best.head_tokens}, "
            f"{best.speedup:.2f}× at γ = {best.gamma}"
        )
