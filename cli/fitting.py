"""From a decoder and prompts to a lookahead: traces, latencies, predictor, all in one folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..controller import (
    AdaptiveLookahead,
    FitReport,
    LatencyTable,
    RoundCosts,
    choose_predictor,
    fit_predictor,
    fit_predictor_from_dense,
    measure_latency,
)
from ..controller.oracle import yardsticks
from ..data import (
    CorpusConfig,
    DenseConfig,
    DenseText,
    Prompt,
    TraceConfig,
    read_corpus,
    read_dense_traces,
    read_trace_texts,
    read_traces,
    record_dense_traces,
    record_traces,
    write_corpus,
)
from ..data.manifests import MANIFEST_FILE
from ..spec import ModelDrafter, SpeculativeDecoder, encode_text, model_fingerprint
from ..train import evaluate_draft
from .fit_summary import FIT_FILE, choice_content, fit_line, log_fit, write_fit
from .report_data import Latency, LoopAlpha, Predictor, ReliabilityBin

FAMILIES = ("linear", "trees")  # of predictors; the first is kept unless another is clearly quicker
GREEDY, DENSE = (
    "greedy",
    "dense",
)  # folders beside decode traces: greedy answers, what is drafted in them
Progress = Callable[[int, int, int], None]


def trace(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    folder: Path,
    config: TraceConfig,
    progress: Progress | None = None,
) -> str:
    """Record decode traces and return a line about them."""
    manifest = record_traces(decoder, prompts, folder, config, progress=progress)
    return (
        f"{manifest.requests} requests, {manifest.rows} drafted tokens, {manifest.tested} tested, "
        f"{manifest.accepted} accepted"
    )


def trace_everywhere(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    folder: Path,
    config: DenseConfig,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Let the target answer greedily, record what is drafted at every position; return a line about it."""
    settings = CorpusConfig(temperatures=(0.0,), max_new_tokens=config.max_tokens)
    texts = folder / GREEDY
    write_corpus(decoder.target.model, decoder.tokenizer, prompts, texts, settings)
    rows = read_corpus(texts, complete_only=False)
    record_dense_traces(decoder, rows, folder / DENSE, config, progress=progress)
    positions = sum(len(row.response_ids) for row in rows)
    return f"{len(rows)} greedy answers, drafted from each of {positions} positions"


def fit(
    decoder: SpeculativeDecoder,
    traces: Path,
    folder: Path,
    gamma_max: int,
    *,
    report_to: str = "none",
) -> str:
    """Measure this machine, fit the predictor, write the lookahead folder; return a line about it.

    Args:
        traces: what `trace` recorded, or `trace_everywhere`, or both: then the sampled texts of the one and
            all of the other.
        report_to: "wandb" also logs the figures there.
    """
    target = model_fingerprint(decoder.target.model)
    draft = model_fingerprint(drafter_of(decoder).cached.model)
    prompt = encode_text(decoder.tokenizer, "The quick brown fox jumps over the lazy dog. ")
    table = measure_latency(decoder, gamma_max, prompt=prompt, target=target, draft=draft)
    report, choice = _fit_predictor(traces, target, draft, table.costs(gamma_max))
    AdaptiveLookahead(report.predictor, table, gamma_max=gamma_max).save(folder)
    write_fit(report, choice, folder)
    logged = f"; {log_fit(report, choice, folder)}" if report_to == "wandb" else ""
    verify = "/".join(f"{1e3 * seconds:.0f}" for seconds in table.verify_seconds)
    return (
        f"{fit_line(report, choice)}; draft step {1e3 * table.draft_step_seconds:.1f} ms, "
        f"verify 1…{gamma_max + 1} tokens {verify} ms{logged}"
    )


def _fit_predictor(
    traces: Path, target: str, draft: str, costs: RoundCosts
) -> tuple[FitReport, dict[str, Any] | None]:
    """Return the predictor, and how it was chosen: by replay, where there are texts enough for it."""
    decoded = read_traces(traces) if (traces / MANIFEST_FILE).is_file() else None
    if (traces / DENSE).is_dir():
        texts = read_dense_traces(traces / DENSE)
        if len({text.id for text in texts}) < 2:
            report = fit_predictor_from_dense(texts, sampled=decoded, target=target, draft=draft)
            return report, None
        within = _within(costs, texts)
        choice = choose_predictor(
            texts,
            {"measured": within},
            families=FAMILIES,
            sampled=decoded,
            target=target,
            draft=draft,
        )
        return choice.report, choice_content(choice, within, yardsticks(texts, within))
    if decoded is None:
        raise ValueError(f"traces: {traces} holds none")
    return fit_predictor(decoded, target=target, draft=draft), None


def _within(costs: RoundCosts, texts: Sequence[DenseText]) -> RoundCosts:
    """Return the costs of as many tokens as were drafted in the texts."""
    most = min(costs.gamma_max, *(text.gamma_max for text in texts))
    return replace(costs, verify=costs.verify[: most + 1])


def describe_latency(folder: Path) -> Latency:
    """Return the table of a lookahead folder for the report."""
    table = LatencyTable.load(folder / "latency.json")
    return Latency(
        draft_step_ms=1e3 * table.draft_step_seconds,
        verify_ms=[1e3 * seconds for seconds in table.verify_seconds],
        overhead_ms=1e3 * table.overhead_seconds,
        context_length=table.context_length,
        contended=table.contended,
    )


def describe_predictor(folder: Path) -> Predictor | None:
    """Return the out-of-fold quality of a lookahead folder's predictor for the report."""
    content: dict[str, Any] = json.loads((folder / FIT_FILE).read_text())
    figures = {name: content[name] for name in ("auc", "log_loss", "ece_raw", "ece")}
    if not all(math.isfinite(value) for value in figures.values()):
        return None  # too few traces to judge
    bins = [
        ReliabilityBin(
            predicted=row["predicted"], observed=row["observed"], count=int(row["count"])
        )
        for row in content["reliability"]
        if row["count"]
    ]
    return Predictor(rows=int(content["rows"]), reliability=bins, **figures)


def loop_alpha(decoder: SpeculativeDecoder, traces: Path) -> LoopAlpha | None:
    """Return α as the loop saw it at temperature 1, and teacher-forced on the very same text."""
    columns = read_traces(traces)
    chosen = columns["tested"] & (columns["temperature"] == 1.0)
    tested, accepted = int(chosen.sum()), int((columns["accepted"] & chosen).sum())
    rows = [row for row in read_trace_texts(traces) if row.temperature == 1.0]
    if not tested or not rows:
        return None
    drafter = drafter_of(decoder)
    metrics = evaluate_draft(
        decoder.target.model,
        drafter.cached.model,
        drafter.kept,
        rows,
        width=decoder.target.width,
        draft_temperature=drafter.temperature.factor(1.0),
    )
    low, high = _wilson(accepted, tested)
    return LoopAlpha(
        alpha=accepted / tested,
        low=low,
        high=high,
        tested=tested,
        teacher_forced=metrics["eval/T1/alpha_tf"],
    )


def drafter_of(decoder: SpeculativeDecoder) -> ModelDrafter:
    """Return the decoder's draft model.

    Raises:
        ValueError: if it drafts otherwise or not at all.
    """
    if not isinstance(decoder.drafter, ModelDrafter):
        raise ValueError(f"draft must be a draft model, got {decoder.drafter!r}")
    return decoder.drafter


def _wilson(hits: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z, share = 1.96, hits / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials)
    half *= math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return centre - half, centre + half
