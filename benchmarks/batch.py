"""Decodes the same mixed prompts one by one and in batches, interleaved in one run: where a batch pays.

    python benchmarks/batch.py --target smollm2 --draft runs/demo/draft/best --threads 1

Whole calls are timed, prompts and all. "gain" is the step from one batch size to the next: where it nears
1, a larger batch no longer pays.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import jsonargparse
from rich.console import Console
from rich.table import Table

from foredraft.cli.machine import provenance
from foredraft.cli.packaged import resolve_target
from foredraft.data import load_prompts
from foredraft.data.files import write_json
from foredraft.spec import (
    BatchDecoder,
    DecodeStats,
    FixedLookahead,
    RequestOutput,
    SamplingParams,
    SpeculativeDecoder,
    render_chat,
    settle_cpu,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBenchmark:
    """Compare batches with sequential calls, for each γ by itself."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    draft: str
    """Hub id or folder of its draft."""
    gammas: tuple[int, ...] = (0, 4)
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Batch sizes; "sequential" is always there."""
    prompts: int = 16
    """Of all domains, in turn; each arm decodes all of them."""
    max_tokens: int = 64
    temperature: float = 0.0
    repeats: int = 3
    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = None
    """Processor threads; none: torch's choice."""
    out: str | None = None
    """Where the figures go as JSON."""


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm of one γ. Seconds are the median of the repeats."""

    gamma: int
    rows: int  # 0: sequential calls
    seconds: float
    tokens_per_second: float
    speedup: float  # over sequential calls: the median of the repeats' ratios
    spread: tuple[float, float]  # of those ratios
    block_efficiency: float | None
    forwards_share: float  # of the rounds' time: draft and target forwards
    rows_equal: int  # outputs that equal the sequential ones token for token


def mixed_prompts(decoder: SpeculativeDecoder, count: int) -> list[list[int]]:
    """Return prompts of all domains in turn, as conversations of one turn."""
    by_domain: dict[str, list[list[int]]] = {}
    for prompt in load_prompts():
        by_domain.setdefault(prompt.domain, []).append(
            render_chat(decoder.tokenizer, prompt.messages)
        )
    longest = max(map(len, by_domain.values()))
    turns = (some[i] for i in range(longest) for some in by_domain.values() if i < len(some))
    return [tokens for tokens, _ in zip(turns, range(count), strict=False)]


def run(settings: BatchBenchmark) -> list[ArmFigures]:
    """Time all arms and return their figures."""
    decoder = SpeculativeDecoder.from_pretrained(
        resolve_target(settings.target),
        draft=settings.draft,
        device=settings.device,
        dtype=settings.dtype,
    )
    prompts = mixed_prompts(decoder, settings.prompts)
    params = SamplingParams(
        temperature=settings.temperature, max_tokens=settings.max_tokens, seed=0, ignore_eos=True
    )
    figures = []
    for gamma in settings.gammas:
        own = decoder.with_lookahead(FixedLookahead(gamma))
        arms: dict[int, Callable[..., list[RequestOutput]]] = {0: own.generate}
        arms |= {rows: BatchDecoder(own, rows=rows).generate for rows in settings.rows}
        figures += _time_arms(gamma, arms, prompts, params, settings.repeats)
    return figures


def _time_arms(
    gamma: int,
    arms: dict[int, Callable[..., list[RequestOutput]]],
    prompts: Sequence[list[int]],
    params: SamplingParams,
    repeats: int,
) -> list[ArmFigures]:
    seconds: dict[int, list[float]] = {rows: [] for rows in arms}
    outputs: dict[int, list[RequestOutput]] = {}
    for decode in arms.values():  # warm up
        decode(prompts[:1], SamplingParams(temperature=0.0, max_tokens=4))
    for _ in range(repeats):
        for rows, decode in arms.items():
            begun = time.perf_counter()
            outputs[rows] = decode(prompts, params)
            seconds[rows].append(time.perf_counter() - begun)
    figures = []
    for rows, own in seconds.items():
        stats = sum((output.stats for output in outputs[rows]), DecodeStats())
        ratios = [plain / mine for plain, mine in zip(seconds[0], own, strict=True)]
        tokens = sum(len(output.token_ids) for output in outputs[rows])
        equal = [a.token_ids == b.token_ids for a, b in zip(outputs[rows], outputs[0], strict=True)]
        figures.append(
            ArmFigures(
                gamma=gamma,
                rows=rows,
                seconds=statistics.median(own),
                tokens_per_second=tokens / statistics.median(own),
                speedup=statistics.median(ratios),
                spread=(min(ratios), max(ratios)),
                block_efficiency=stats.block_efficiency,
                forwards_share=(stats.draft_seconds + stats.verify_seconds) / stats.round_seconds,
                rows_equal=sum(equal),
            )
        )
    return figures


def print_figures(figures: Sequence[ArmFigures], prompts: int, console: Console) -> None:
    """Print one line an arm; rows "one": sequential calls."""
    table = Table("γ", "rows", "tok/s", "speedup", "(spread)", "gain", "τ", "fwd", "equal")
    before = 1.0
    for arm in figures:
        before = 1.0 if arm.rows == 0 else before
        tau = "–" if arm.block_efficiency is None else f"{arm.block_efficiency:.2f}"
        table.add_row(
            str(arm.gamma),
            str(arm.rows or "one"),
            f"{arm.tokens_per_second:.1f}",
            f"{arm.speedup:.2f}",
            f"{arm.spread[0]:.2f}–{arm.spread[1]:.2f}",
            f"{arm.speedup / before:.2f}",
            tau,
            f"{arm.forwards_share:.1%}",
            f"{arm.rows_equal}/{prompts}",
        )
        before = arm.speedup
    console.print(table)


def main() -> None:
    """Run from the command line."""
    settings: BatchBenchmark = jsonargparse.auto_cli(BatchBenchmark, as_positional=False)
    settle_cpu(settings.threads)
    figures = run(settings)
    print_figures(figures, settings.prompts, Console())
    if settings.out is not None:
        write_json(
            Path(settings.out),
            {
                "settings": asdict(settings),
                **provenance(settings.device),
                "arms": [asdict(arm) for arm in figures],
            },
        )


if __name__ == "__main__":
    main()
