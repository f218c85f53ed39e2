"""Where metrics go: metrics.jsonl always, a tracker through accelerate, a progress bar."""

from __future__ import annotations

import json
import netrc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from accelerate import Accelerator
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..data.files import replacing
from .config import DistillConfig
from .in_loop import TAU

FILE = "metrics.jsonl"
ALPHA = "eval/T1/alpha_tf"  # what picks the best checkpoint
RESUMES_OFFLINE = (
    0,
    31,
)  # W&B, from which `sync` joins an offline run's attempts (wandb/wandb#12110)


class MetricLog:
    """All metrics of a run, in memory and in metrics.jsonl; the main process alone writes."""

    def __init__(self, accelerator: Accelerator, output: Path, *, step: int | None) -> None:
        """Take up the log at `step`, without later lines: they will come again. None: start one."""
        self.rows: list[dict[str, Any]] = [] if step is None else read_metrics(output, until=step)
        self._accelerator = accelerator
        self._path = output / FILE
        if accelerator.is_main_process:
            with replacing(self._path) as part:
                part.write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def add(self, step: int, values: dict[str, float]) -> None:
        """Record metrics of a step."""
        row = {"step": step, **values}
        self.rows.append(row)
        if self._accelerator.is_main_process:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        self._accelerator.log(values, step=step)

    def note_best(self, step: int, best: dict[str, float]) -> None:
        """Tell the tracker the figures of the best checkpoint so far: what a sweep is to raise."""
        names = {"best/alpha_tf": ALPHA, "best/tau": TAU}
        values = {name: best[of] for name, of in names.items() if of in best}
        self._accelerator.log(values, step=step)

    def evaluation(self, step: int) -> dict[str, float]:
        """Return what was measured on held-out rows after `step` steps: empty where nothing was."""
        found = [row for row in self.rows if row["step"] == step and ALPHA in row]
        row = found[-1] if found else {}  # at step 0: after the head was aligned
        return {name: value for name, value in row.items() if name != "step"}


def read_metrics(output: Path, *, until: int) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl up to step `until`, without one cut by an interruption."""
    rows: list[dict[str, Any]] = []
    path = output / FILE
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if row["step"] <= until:
            rows.append(row)
    return rows


def start_tracker(accelerator: Accelerator, config: DistillConfig, record: dict[str, Any]) -> None:
    """Start the tracker that the config names; W&B never asks for a key and never waits for one.

    Its run has the id in run.yaml, so that an attempt goes on with the run of those before it. Steps made
    again since the last checkpoint it drops: they were the same.
    """
    if config.report_to == "none":
        return
    options = {}
    if config.report_to == "wandb" and accelerator.is_main_process:
        options["wandb"] = _wandb_options(config, record["id"])
        if options["wandb"]["mode"] == "offline":
            accelerator.print(
                f"no W&B key: metrics go to {config.output}/wandb; "
                f"`wandb sync {config.output}/wandb` uploads them, attempts of a run as one"
            )
    plain = {**record["config"], **record["sources"]}
    hyperparameters = {
        name: value if isinstance(value, int | float | str) else str(value)
        for name, value in plain.items()
    }
    accelerator.init_trackers("foredraft", config=hyperparameters, init_kwargs=options)
    for tracker in accelerator.trackers:
        if tracker.name == "wandb" and accelerator.is_main_process:
            for name in (ALPHA, TAU):  # the run's summary shows the highest, not the last
                tracker.run.define_metric(name, summary="max")


def _wandb_options(config: DistillConfig, run_id: str) -> dict[str, Any]:
    import wandb  # slow to import, so only where it is used

    mode = os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline")
    options: dict[str, Any] = {
        "name": config.run_name,
        "dir": config.output,
        "mode": mode,
        "settings": wandb.Settings(silent=True, console="off"),
    }
    if os.environ.get("WANDB_SWEEP_ID"):
        return options  # its agent says which run this is
    version = tuple(map(int, wandb.__version__.split(".")[:2]))
    if mode == "online" or (mode == "offline" and version >= RESUMES_OFFLINE):
        return options | {"id": run_id, "resume": "allow"}
    return options | {
        "group": run_id
    }  # each attempt a run of its own: of one id, the last would be left


def _has_wandb_key() -> bool:
    """Return whether W&B would find credentials: in the environment or in the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    files = [os.environ.get("NETRC", ""), "~/.netrc", "~/_netrc"]
    for path in (Path(name).expanduser() for name in files if name):
        try:
            if netrc.netrc(path).authenticators(host) is not None:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


class ProgressLine:
    """The line of progress; silent on all processes but the main one."""

    def __init__(self, progress: Progress, steps: int, step: int) -> None:
        self._progress = progress
        self._task = progress.add_task("distil", total=steps, completed=step, note="")
        self._alpha = 0.0

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Show a finished step."""
        note = f"loss {loss:.3f}  α {self._alpha:.3f}  {tokens_per_second:,.0f} tok/s"
        self._progress.update(self._task, completed=step, note=note)

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Print an evaluation above the line."""
        alpha, top1, kl, coverage = (
            metrics[f"eval/T1/{name}"] for name in ("alpha_tf", "top1", "kl", "coverage")
        )
        self._alpha = alpha
        if not self._progress.disable:
            self._progress.console.print(
                f"step {step:>5}  α {alpha:.3f}  top-1 {top1:.3f}  KL {kl:.3f}  "
                f"coverage {coverage:.3f}{_in_loop(metrics)}"
            )


def _in_loop(metrics: dict[str, float]) -> str:
    """Return τ in the decode loop, where it was measured."""
    return f"  τ {metrics[TAU]:.2f}" if TAU in metrics else ""


@contextmanager
def progress_line(accelerator: Accelerator, steps: int, step: int) -> Iterator[ProgressLine]:
    """Show progress while the block runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not accelerator.is_main_process) as progress:
        yield ProgressLine(progress, steps, step)


def peak_memory_gb(device: torch.device) -> float:
    """Return the most memory held so far, in GB: the device's on CUDA, else the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
