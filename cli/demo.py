"""`foredraft demo`: the whole idea on a real model, in stages that resume.

prepare → corpus → distil → trace → fit → compare, then the table and the report.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console

from ..controller import AdaptiveLookahead
from ..data import (
    CorpusConfig,
    DenseConfig,
    TraceConfig,
    load_prompts,
    read_corpus,
    write_corpus,
)
from ..data.files import write_json
from ..spec import (
    FixedLookahead,
    SamplingParams,
    SpeculativeDecoder,
    full_attention,
    load_causal_lm,
    load_drafter,
    load_tokenizer,
    pack_linears,
    settle_cpu,
    target_width,
)
from ..train import DistillConfig, DistillResult, distill
from . import fitting
from .bar import Bar
from .comparing import compare, interleave_domains, make_arms
from .config import ENGLISH, DemoCommand
from .machine import describe_draft, describe_run
from .packaged import resolve_target
from .report_data import Comparison, Corpus, CurvePoint, DraftQuality, LoopAlpha, Report, Training
from .report_html import write_report
from .report_table import print_table
from .stages import Stages

# Shares of the time that each stage may take.
CORPUS, TRAIN, TRACE, COMPARE = 0.45, 0.38, 0.07, 0.10
DTYPE, DEVICE = "float32", "cpu"
TEMPERATURE = 1.0  # of the corpus: one answer each to many prompts teaches more than several to few
HELD_OUT = 36  # prompts of the corpus that are not trained on, as many of each domain
GAMMAS = (1, 2, 4)


class _TimeUp(Exception):
    """The corpus has used its share of the time; what is written is kept."""


def run_demo(config: DemoCommand) -> None:
    """Run or go on with the demo, print the table and write the report."""
    settle_cpu()
    demo = _Demo(config, Console())
    stages = Stages(demo.folder / "stages", demo.console)
    name = resolve_target(config.target)
    demo.load_target(name)
    key = asdict(config) | {"report_to": None, "prompts_per_domain": None, "max_tokens": None}
    stages.run("corpus", "The target writes its own training text", key, demo.write_corpus)
    stages.run("distil", "A draft learns from the target's logits", [], demo.distil)
    demo.load_draft()
    stages.run("trace", "The loop decodes and records what was accepted", [], demo.trace)
    stages.run("fit", "Latencies are measured, acceptance is learned", [], demo.fit)
    extent = [config.prompts_per_domain, config.max_tokens]
    stages.run("compare", "Held-out prompts, every arm in one run", extent, demo.compare)
    report = demo.report(stages)
    print_table(report, demo.console)
    page = write_report(report, demo.folder)
    demo.console.print(f"report: {page} (open it in a browser), {page.with_suffix('.json')}")


class _Demo:
    """The models and folders of a demo, and what each stage does."""

    def __init__(self, config: DemoCommand, console: Console) -> None:
        self.config = config
        self.console = console
        self.folder = Path(config.output)
        self.seconds = 60.0 * config.minutes
        self.model: Any = None
        self.tokenizer: Any = None
        self.decoder: SpeculativeDecoder
        self.distilled: DistillResult | None = None

    def load_target(self, name: str) -> None:
        self.model = load_causal_lm(name, device=DEVICE, dtype=DTYPE)
        pack_linears(self.model)
        self.tokenizer = load_tokenizer(name)

    def write_corpus(self) -> str:
        train = load_prompts(domains=ENGLISH, split="train")
        dev = interleave_domains(load_prompts(domains=ENGLISH, split="dev"))[:HELD_OUT]
        random.Random(0).shuffle(train)  # so that a corpus cut by time has all domains
        settings = CorpusConfig(
            temperatures=(TEMPERATURE,),
            max_new_tokens=self.config.max_new_tokens,
            batch_size=64,
        )
        deadline = time.perf_counter() + CORPUS * self.seconds

        def progress(done: int, wanted: int, tokens: int) -> None:
            update(done, wanted, f"{tokens} tokens")
            if time.perf_counter() > deadline and done > 8 * self.config.batch_rows:
                raise _TimeUp

        with Bar(self.console) as update, suppress(_TimeUp):
            write_corpus(
                self.model,
                self.tokenizer,
                dev + train,
                self.folder / "corpus",
                settings,
                keep_states=full_attention(self.model),
                progress=progress,
            )
        found = _corpus(self.folder / "corpus")
        return (
            f"{found.rows} answers, {found.tokens} tokens; "
            f"{found.complete_rows} ended by themselves"
        )

    def distil(self) -> str:
        self.distilled = distill(self._distil_config(), target=self.model, tokenizer=self.tokenizer)
        before, best = self.distilled.before, self.distilled.best
        return (
            f"α on held-out text at temperature 1: {before['eval/T1/alpha_tf']:.3f} before, "
            f"{best['eval/T1/alpha_tf']:.3f} after; the same token likeliest: "
            f"{before['eval/T1/top1']:.3f} before, {best['eval/T1/top1']:.3f} after"
        )

    def load_draft(self) -> None:
        if self.distilled is None:  # a finished run returns its result at once
            config = replace(self._distil_config(), report_to="none")
            self.distilled = distill(config, target=self.model, tokenizer=self.tokenizer)
        width = target_width(self.model, self.tokenizer)
        drafter = load_drafter(
            str(self.folder / "draft" / "best"),
            self.tokenizer,
            width=width,
            device=DEVICE,
            dtype=DTYPE,
        )
        self.decoder = SpeculativeDecoder(self.model, self.tokenizer, drafter)

    def trace(self) -> str:
        dev = interleave_domains(load_prompts(domains=ENGLISH, split="dev"))
        # A token takes about as long as plain decoding would; measure it and take as many prompts.
        begun = time.perf_counter()
        params = SamplingParams(temperature=0.0, max_tokens=16)
        self.decoder.with_lookahead(FixedLookahead(3)).chat([dev[0].messages], params)
        rate = 16 / (time.perf_counter() - begun)
        length = 40
        # Half of the time for answers at temperature 1, whose α is compared with training's, half for greedy
        # ones of twice the length, written in batches and drafted from at every position: a third a token.
        count = max(4, min(int(TRACE / 2 * self.seconds * rate / length), len(dev)))
        folder = self.folder / "traces"
        traces = TraceConfig(gamma=3, max_tokens=length, temperatures=(1.0,))
        dense = DenseConfig(gamma_max=min(5, self.config.gamma_max), max_tokens=2 * length)
        with Bar(self.console) as update:
            sampled = fitting.trace(
                self.decoder,
                dev[:count],
                folder,
                traces,
                progress=lambda done, wanted, rows: update(done, wanted, f"{rows} drafted"),
            )
            greedy = fitting.trace_everywhere(self.decoder, dev[: 2 * count], folder, dense)
        return f"{sampled}; {greedy}"

    def fit(self) -> str:
        line = fitting.fit(
            self.decoder,
            self.folder / "traces",
            self.folder / "lookahead",
            self.config.gamma_max,
        )
        alpha = fitting.loop_alpha(self.decoder, self.folder / "traces")
        if alpha is not None:
            write_json(self.folder / "loop_alpha.json", asdict(alpha))
            line += (
                f"; α in the loop at temperature 1: {alpha.alpha:.3f} ({alpha.low:.3f}–"
                f"{alpha.high:.3f}), teacher-forced on the same text: {alpha.teacher_forced:.3f}"
            )
        return line

    def compare(self) -> str:
        prompts = load_prompts(split="test", limit_per_domain=self.config.prompts_per_domain)
        with Bar(self.console) as update:
            comparison = compare(
                self.decoder,
                make_arms(GAMMAS, AdaptiveLookahead.load(self.folder / "lookahead")),
                interleave_domains(prompts),
                SamplingParams(temperature=0.0, max_tokens=self.config.max_tokens),
                dtype=DTYPE,
                max_seconds=COMPARE * self.seconds,
                progress=lambda done, wanted: update(done, wanted, ""),
            )
        write_json(self.folder / "comparison.json", asdict(comparison))
        adaptive = comparison.arms[-1]
        return (
            f"{comparison.prompts} prompts; adaptive {adaptive.speedup:.2f}× plain decoding "
            f"({adaptive.speedup_low:.2f}–{adaptive.speedup_high:.2f}), "
            f"{adaptive.equal_outputs}/{adaptive.outputs} outputs equal"
        )

    def report(self, stages: Stages) -> Report:
        assert self.distilled is not None
        best = _quality(self.distilled.best)
        comparison = (self.folder / "comparison.json").read_bytes()
        lookahead = self.folder / "lookahead"
        return replace(
            describe_run(self.decoder, self.config.target),
            draft=describe_draft(
                fitting.drafter_of(self.decoder),
                str(self.folder / "draft" / "best"),
                best.coverage,
            ),
            stages=stages.done,
            corpus=_corpus(self.folder / "corpus"),
            training=Training(
                curve=_curve(self.distilled.curve),
                before=_quality(self.distilled.before),
                best=best,
                alpha_loop=_loop_alpha(self.folder / "loop_alpha.json"),
            ),
            latency=fitting.describe_latency(lookahead),
            predictor=fitting.describe_predictor(lookahead),
            comparison=TypeAdapter(Comparison).validate_json(comparison),
        )

    def _distil_config(self) -> DistillConfig:
        return DistillConfig(
            target=self.model.name_or_path,
            corpus=str(self.folder / "corpus"),
            output=str(self.folder / "draft"),
            layers=self.config.layers,
            head_tokens=self.config.head_tokens,
            train_head=False,
            loss=self.config.loss,
            state_weight=self.config.state_weight,
            steps=self.config.steps,
            batch_rows=self.config.batch_rows,
            learning_rate=self.config.learning_rate,
            max_seconds=TRAIN * self.seconds,
            chunk_tokens=256,
            eval_every=max(1, self.config.steps // 4),
            eval_rows=HELD_OUT,
            eval_prompts=0,  # the comparison measures the loop
            save_every=max(1, self.config.steps // 4),
            keep=1,
            report_to=self.config.report_to,
            run_name="foredraft-demo",
        )


def _quality(metrics: dict[str, float]) -> DraftQuality:
    return DraftQuality(
        alpha=metrics["eval/T1/alpha_tf"],
        top1=metrics["eval/T1/top1"],
        kl=metrics["eval/T1/kl"],
        coverage=metrics.get("eval/T1/coverage"),
    )


def _curve(rows: list[dict[str, Any]]) -> list[CurvePoint]:
    """Return the curve of training; its seconds are those of the steps, evaluations not counted."""
    points = []
    tokens, seconds = 0, 0.0
    for row in rows:
        tokens = int(row.get("train/tokens", tokens))
        seconds += 1e-3 * (row.get("perf/teacher_ms", 0.0) + row.get("perf/draft_ms", 0.0))
        points.append(
            CurvePoint(
                step=int(row["step"]),
                tokens=tokens,
                seconds=seconds,
                loss=row.get("train/loss"),
                alpha=row.get("eval/T1/alpha_tf"),
                top1=row.get("eval/T1/top1"),
                kl=row.get("eval/T1/kl"),
            )
        )
    return points


def _corpus(folder: Path) -> Corpus:
    rows = read_corpus(folder, complete_only=False)
    domains = Counter(row.domain for row in rows)
    return Corpus(
        rows=len(rows),
        complete_rows=sum(row.finish_reason == "stop" for row in rows),
        tokens=sum(len(row.response_ids) for row in rows),
        prompts=len({row.prompt_id for row in rows}),
        domains=dict(sorted(domains.items())),
    )


def _loop_alpha(path: Path) -> LoopAlpha | None:
    return TypeAdapter(LoopAlpha).validate_json(path.read_bytes()) if path.is_file() else None
