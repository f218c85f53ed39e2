"""`foredraft advise`: a short bench of what a user has, and what follows from it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..data.files import replacing
from ..spec import settle_cpu
from .bench import measure
from .bench_advice import advice_text, advise
from .bench_config import AdviseCommand, BenchCommand
from .bench_page import write_bench
from .bench_table import print_bench
from .packaged import resolve_target

FILE = "advice.md"


def run_advise(config: AdviseCommand) -> None:
    """`foredraft advise`"""
    settle_cpu()
    console = Console()
    report = measure(bench_of(config), console)
    print_bench(report, console)
    text = advice_text(advise(report), report, resolve_target(config.target))
    folder = Path(config.output)
    page = write_bench(report, folder)
    with replacing(folder / FILE) as part:
        part.write_text(text, encoding="utf-8")
    print(f"\n{text}\n{folder / FILE}; figures: {page}")


def bench_of(config: AdviseCommand) -> BenchCommand:
    """Return the bench that an advice rests on."""
    return BenchCommand(
        target=config.target,
        drafters=config.drafters,
        policies=config.policies,
        lookahead=config.lookahead,
        prompts=config.prompts,
        domains=config.domains,
        prompts_per_domain=config.prompts_per_domain,
        max_tokens=(config.max_tokens,),
        batch_sizes=(config.batch_size,),
        temperatures=(config.temperature,),
        max_seconds=config.max_seconds,
        output=config.output,
        device=config.device,
        dtype=config.dtype,
    )
