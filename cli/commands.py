"""What the subcommands do, besides the demo: each one thing, on folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ..controller import AdaptiveLookahead, ChainLookahead
from ..data import CorpusConfig, DenseConfig, TraceConfig, load_prompts, write_corpus
from ..spec import (
    SamplingParams,
    SpeculativeDecoder,
    load_causal_lm,
    load_tokenizer,
    pack_linears,
    render_chat,
    settle_cpu,
)
from ..train import DistillConfig
from ..train.__main__ import run as train
from ..train.export import export_draft
from . import fitting
from .bar import Bar
from .comparing import compare, interleave_domains, make_arms
from .config import CompareCommand, CorpusCommand, ExportCommand, FitCommand, GenerateCommand
from .machine import describe_drafter, describe_run
from .packaged import resolve_target
from .report_html import write_report
from .report_table import print_table


def run_corpus(config: CorpusCommand) -> None:
    """`foredraft corpus`"""
    settle_cpu()
    name = resolve_target(config.target)
    prompts = [
        prompt
        for split in config.splits
        for prompt in load_prompts(config.prompts, domains=config.domains, split=split)
    ]
    settings = CorpusConfig(
        temperatures=config.temperatures,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens,
        batch_size=config.batch_size,
    )
    model = load_causal_lm(name, device=config.device, dtype=config.dtype)
    pack_linears(model)
    with Bar(Console()) as update:
        manifest = write_corpus(
            model,
            load_tokenizer(name),
            prompts,
            config.output,
            settings,
            keep_states=config.keep_states,
            progress=lambda done, wanted, tokens: update(done, wanted, f"{tokens} tokens"),
        )
    print(f"{config.output}: {manifest.rows} rows, {manifest.response_tokens} tokens")


def run_train(config: DistillConfig) -> None:
    """`foredraft train`: one process; `accelerate launch -m foredraft.train` takes the same settings."""
    train(config)


def run_fit(config: FitCommand) -> None:
    """`foredraft fit`"""
    settle_cpu()
    decoder = SpeculativeDecoder.from_pretrained(
        resolve_target(config.target), draft=config.draft, device=config.device, dtype=config.dtype
    )
    prompts = load_prompts(
        config.prompts,
        domains=config.domains,
        split="dev",
        limit_per_domain=config.prompts_per_domain,
    )
    folder = Path(config.output)
    traces = folder / "traces"
    sampled = tuple(value for value in config.temperatures if value > 0.0)
    with Bar(Console()) as update:
        if len(sampled) < len(config.temperatures):
            dense = DenseConfig(gamma_max=config.gamma_max, max_tokens=config.max_tokens)
            print(
                fitting.trace_everywhere(
                    decoder,
                    prompts,
                    traces,
                    dense,
                    lambda done, wanted: update(done, wanted, "texts"),
                )
            )
        if sampled:
            settings = TraceConfig(
                gamma=config.gamma, max_tokens=config.max_tokens, temperatures=sampled
            )
            print(
                fitting.trace(
                    decoder,
                    prompts,
                    traces,
                    settings,
                    progress=lambda done, wanted, rows: update(done, wanted, f"{rows} drafted"),
                )
            )
    print(fitting.fit(decoder, traces, folder, config.gamma_max, report_to=config.report_to))


def run_compare(config: CompareCommand) -> None:
    """`foredraft compare`"""
    settle_cpu()
    console = Console()
    decoder = SpeculativeDecoder.from_pretrained(
        resolve_target(config.target),
        draft=config.draft,
        lookahead=config.lookahead,
        device=config.device,
        dtype=config.dtype,
    )
    adaptive = None if config.lookahead is None else decoder.lookahead
    prompts = load_prompts(
        config.prompts,
        domains=config.domains,
        split="test",
        limit_per_domain=config.prompts_per_domain,
    )
    with Bar(console) as update:
        comparison = compare(
            decoder,
            make_arms(config.gammas, adaptive),
            interleave_domains(prompts),
            SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens, seed=0),
            dtype=config.dtype,
            repeats=config.repeats,
            max_seconds=config.max_seconds,
            reference=config.reference,
            progress=lambda done, wanted: update(done, wanted, "prompts"),
        )
    lookahead = None if config.lookahead is None else Path(config.lookahead)
    fitted = isinstance(adaptive, AdaptiveLookahead | ChainLookahead)
    report = replace(
        describe_run(decoder, config.target),
        draft=describe_drafter(decoder.drafter, config.draft),
        latency=fitting.describe_latency(lookahead) if lookahead and fitted else None,
        comparison=comparison,
    )
    print_table(report, console)
    if comparison.reference_equal is not None:
        console.print(
            f"plain decoding equals transformers' generate, token for token, on "
            f"{comparison.reference_equal}/{comparison.prompts} prompts"
        )
    console.print(f"report: {write_report(report, Path(config.output))}")


def run_generate(config: GenerateCommand) -> None:
    """`foredraft generate`"""
    settle_cpu()
    given = config.lookahead
    decoder = SpeculativeDecoder.from_pretrained(
        resolve_target(config.target),
        draft=config.draft,
        lookahead=int(given) if given is not None and given.isdigit() else given,
        device=config.device,
        dtype=config.dtype,
    )
    prompt = render_chat(decoder.tokenizer, [{"role": "user", "content": config.prompt}])
    params = SamplingParams(
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_tokens,
        seed=config.seed,
    )
    for piece in decoder.stream(prompt, params):
        print(piece, end="", flush=True)
    print()


def run_export(config: ExportCommand) -> None:
    """`foredraft export`"""
    settle_cpu()
    target = tokenizer = None
    if config.target is not None:
        name = resolve_target(config.target)
        target, tokenizer = load_causal_lm(name), load_tokenizer(name)
    folder = export_draft(
        config.draft,
        config.output,
        dtype=config.dtype,
        held_out=config.held_out,
        target=target,
        tokenizer=tokenizer,
    )
    print(f"{folder}: see its README.md")
