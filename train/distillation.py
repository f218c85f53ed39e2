"""Distil a draft from a target: load what a run needs, start it or take it up, train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from ..spec import (
    DraftInfo,
    load_causal_lm,
    load_tokenizer,
    model_fingerprint,
    pack_linears,
    target_width,
    tokenizer_hash,
)
from ..spec.cached import context_length
from .calibrating import calibrate_folder, calibration_metrics
from .checkpoint import newest_checkpoint
from .config import DistillConfig
from .deepspeed_engine import check_resumable, settle_deepspeed
from .loop import Run
from .reading import read_training_data, saved_states
from .result import DistillResult
from .run_record import open_record, write_record
from .sharded import settle_fsdp
from .stopping import stop_requests
from .supervision import open_cache
from .teacher import Teacher
from .tracking import progress_line, start_tracker


def distill(config: DistillConfig, *, target: Any = None, tokenizer: Any = None) -> DistillResult:
    """Train a draft, or go on with the run in `config.output`, and return what came of it.

    Args:
        target: the target, if it is loaded already; training runs on its kind of device.
        tokenizer: the target's, if it is loaded already.

    Raises:
        ValueError: naming what does not fit: a field, the target, the corpus, or another run that
            is already in the output folder.
        Stopped: a KeyboardInterrupt, where SIGTERM or SIGINT ended the run; its last step is saved.
    """
    accelerator = _make_accelerator(config, target)
    check_resumable(accelerator, newest_checkpoint(Path(config.output)))
    if tokenizer is None:
        tokenizer = load_tokenizer(config.target)
    if target is None:
        dtype = "bfloat16" if config.mixed_precision == "bf16" else "float32"
        target = load_causal_lm(config.target, device=str(accelerator.device), dtype=dtype)
        pack_linears(target)
    corpus = read_training_data(config, tokenizer, context=context_length(target))
    fingerprint = model_fingerprint(target)
    saved = saved_states(config, fingerprint)
    teacher = Teacher(
        target,
        width=target_width(target, tokenizer),
        cache_gb=config.teacher_cache_gb,
        saved=saved,
    )
    teacher.check(corpus.train.examples[0])
    sources = corpus.sources | {
        "target_fingerprint": fingerprint,
        "tokenizer": tokenizer_hash(tokenizer),
    }
    output = Path(config.output)
    circumstances = {
        "processes": accelerator.num_processes,
        "device": str(accelerator.device),
        "corpus_manifest": corpus.manifest_hash,
        "saved_states": 0 if saved is None else len(saved),
    }
    record = open_record(config, sources, circumstances)
    checkpoint = newest_checkpoint(output)
    accelerator.wait_for_everyone()  # all have looked before the main process writes
    if accelerator.is_main_process:
        output.mkdir(parents=True, exist_ok=True)
        write_record(config, record)
    # Dropout can only draw from torch's global generators: it gets a fork of them.
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(config.seed + accelerator.process_index)
        cache = open_cache(config, accelerator, teacher, corpus.train.examples, fingerprint)
        run = Run(config, accelerator, teacher, tokenizer, corpus, sources, checkpoint, cache)
        try:
            start_tracker(accelerator, config, record)
            with (
                stop_requests() as request,
                progress_line(accelerator, config.steps, run.state.step) as progress,
            ):
                run.train(progress, request)
            _calibrate(run)
        finally:
            accelerator.end_training()
    return run.result()


def _calibrate(run: Run) -> None:
    """Find the temperatures that the best draft should draw at, unless an earlier attempt has."""
    folder, config = run.result().folder, run.config
    info = DraftInfo.load(folder)
    wanted = config.serving_temperatures and info is not None and not info.draft_temperatures
    if wanted and run.accelerator.is_main_process:
        rows = run.corpus.dev.examples
        found = calibrate_folder(run.teacher, folder, rows, config.serving_temperatures)
        run.log.add(run.state.step, calibration_metrics(found))
    run.accelerator.wait_for_everyone()


def _make_accelerator(config: DistillConfig, target: Any) -> Accelerator:
    trackers = ["none", *map(str, get_available_trackers())]
    if config.report_to not in trackers:
        raise ValueError(
            f"report_to must be one of {', '.join(trackers)} (what is installed here), "
            f"got {config.report_to!r}"
        )
    accelerator = Accelerator(
        cpu=target is not None and target.device.type == "cpu",
        mixed_precision=config.mixed_precision,
        log_with=None if config.report_to == "none" else config.report_to,
        project_dir=config.output,
    )
    settle_fsdp(accelerator)
    settle_deepspeed(accelerator, config.max_grad_norm)
    if config.batch_rows < accelerator.num_processes:
        raise ValueError(
            f"batch_rows must be at least {accelerator.num_processes}, the number of processes, "
            f"got {config.batch_rows}"
        )
    return accelerator
