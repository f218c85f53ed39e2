"""`foredraft bench`: every drafter with every policy beside plain decoding, in blocks that resume."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ..data import Prompt, load_prompts
from ..spec import (
    load_causal_lm,
    load_tokenizer,
    model_fingerprint,
    pack_linears,
    settle_cpu,
    target_width,
)
from .bar import Bar
from .bench_arms import ArmMaker, BenchArm
from .bench_compare import print_comparison, read_bench
from .bench_config import BenchCommand
from .bench_data import BenchReport, Sample
from .bench_figures import make_cells, verify_costs
from .bench_ledger import Ledger, block_key
from .bench_measuring import measure_block, warm_up
from .bench_page import write_bench
from .bench_plan import Block, blocks_of, make_plans
from .bench_policies import Policies
from .bench_prompts import prompt_tokens, prompts_of_block
from .bench_table import print_bench
from .bench_wandb import log_bench
from .machine import commit, describe_machine, describe_target, describe_versions
from .packaged import resolve_target
from .report_words import duration

FIT_PROMPTS = 2  # of each domain, for a lookahead that is fitted on the spot


def run_bench(config: BenchCommand) -> None:
    """`foredraft bench`"""
    console = Console()
    if config.compare:
        before, after = config.compare
        print_comparison(read_bench(before), read_bench(after), console)
        return
    settle_cpu()
    report = measure(config, console)
    print_bench(report, console)
    console.print(f"dashboard: {write_bench(report, Path(config.output))}", soft_wrap=True)
    if config.report_to == "wandb":
        console.print(log_bench(report, Path(config.output)))


def measure(config: BenchCommand, console: Console) -> BenchReport:
    """Measure what is not in the output folder yet, and return the figures of all of it.

    Raises:
        ValueError: naming what is asked for and cannot be done. An arm that cannot be made is no error:
            it is among the report's refusals.
    """
    name = resolve_target(config.target)
    prompts = load_prompts(config.prompts, domains=config.domains, split="test")
    domains = list(dict.fromkeys(prompt.domain for prompt in prompts))
    plans = make_plans(config, domains)
    model = load_causal_lm(name, device=config.device, dtype=config.dtype)
    pack_linears(model)
    tokenizer = load_tokenizer(name)
    maker = ArmMaker(
        model,
        tokenizer,
        _policies(config, console),
        folder=Path(config.output),
        device=config.device,
        dtype=config.dtype,
        memory_gb=config.memory_gb,
    )
    arms = {plan.condition.name: maker.arms(plan) for plan in plans}
    bench = _Bench(config, tokenizer, prompts, arms, _origin(config, model))
    blocks = blocks_of(plans, config.prompts_per_domain, config.repeats)
    samples = bench.run(blocks, console)
    return BenchReport(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command="foredraft " + " ".join(sys.argv[1:]),
        commit=commit(),
        machine=describe_machine(config.device),
        versions=describe_versions(),
        target=describe_target(model, config.target, target_width(model, tokenizer)),
        settings=_plain(asdict(config)),
        conditions=[plan.condition for plan in plans],
        blocks=bench.done,
        wanted=len(blocks),
        cells=make_cells(samples, _about(arms)),
        verify=verify_costs(samples),
        refusals=maker.refusals,
    )


@dataclass(slots=True)
class _Bench:
    """Runs the blocks that are still to do."""

    config: BenchCommand
    tokenizer: Any
    prompts: Sequence[Prompt]
    arms: dict[str, list[BenchArm]]  # condition -> arms
    origin: dict[str, Any]  # what every figure depends on
    done: int = 0

    def run(self, blocks: Sequence[Block], console: Console) -> list[Sample]:
        """Return the samples of all finished blocks, those of earlier runs included."""
        ledger = Ledger(Path(self.config.output))
        keys = [block_key(block, [self.origin, self._identities(block)]) for block in blocks]
        left = sum(b.work for b, key in zip(blocks, keys, strict=True) if ledger.find(key) is None)
        samples: list[Sample] = []
        warm: set[tuple[str, int]] = set()
        begun, worked = time.perf_counter(), 0
        with Bar(console) as update:
            for block, key in zip(blocks, keys, strict=True):
                found = ledger.find(key)
                spent = time.perf_counter() - begun
                limit = self.config.max_seconds
                if found is None and limit is not None and worked and spent > limit:
                    continue
                if found is None:
                    arms, prompts = self.arms[block.condition], self._prompts(block)
                    if (block.condition, block.rows) not in warm:
                        warm_up(arms, prompts)
                        warm.add((block.condition, block.rows))
                    found = measure_block(arms, block, prompts, self.config.seed)
                    ledger.add(key, found)
                    worked += block.work
                    left -= block.work
                samples += found
                self.done += 1
                update(self.done, len(blocks), self._note(block, begun, worked, left))
        if not samples:
            raise ValueError("max_seconds left no time to measure one block")
        return samples

    def _note(self, block: Block, begun: float, worked: int, left: int) -> str:
        where = f"{block.condition}, {block.domain}"
        if not worked or not left:
            return where
        seconds = (time.perf_counter() - begun) * left / worked
        return f"{where}, {duration(seconds)} left"

    def _prompts(self, block: Block) -> list[list[int]]:
        own = [prompt for prompt in self.prompts if prompt.domain == block.domain]
        return [
            prompt_tokens(self.tokenizer, prompt, block.prompt_tokens, own)
            for prompt in prompts_of_block(own, block.index, block.rows)
        ]

    def _identities(self, block: Block) -> list[tuple[str, str, str, str]]:
        return [
            (arm.drafter, arm.policy, arm.about, arm.identity) for arm in self.arms[block.condition]
        ]


def _policies(config: BenchCommand, console: Console) -> Policies:
    try:
        dev = load_prompts(
            config.prompts, domains=config.domains, split="dev", limit_per_domain=FIT_PROMPTS
        )
    except ValueError:  # a set too small to have that split: the test prompts are not fitted on
        dev = load_prompts(split="dev", limit_per_domain=1)
    return Policies(
        folder=Path(config.output),
        lookahead=config.lookahead,
        prompts=dev,
        temperatures=tuple(dict.fromkeys(config.temperatures)),
        say=lambda line: console.print(line, markup=False, highlight=False),
    )


def _origin(config: BenchCommand, model: Any) -> dict[str, Any]:
    """Return what every figure depends on; another of any, and a block is measured anew."""
    return {
        "target": model_fingerprint(model),
        "prompts": config.prompts,
        "seed": config.seed,
        "dtype": config.dtype,
        "machine": asdict(describe_machine(config.device)),
        "versions": asdict(describe_versions()),
        "commit": commit(),
    }


def _about(arms: dict[str, list[BenchArm]]) -> dict[tuple[str, str, str], Any]:
    return {
        (condition, arm.drafter, arm.policy): (arm.about, arm.memory)
        for condition, own in arms.items()
        for arm in own
    }


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()
    }
