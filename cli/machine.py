"""What a figure was measured on and with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..spec import ChainDrafter, Drafter, ModelDrafter, SelfDrafter, SpeculativeDecoder
from .report_data import Draft, Machine, Report, Target, Versions


def describe_run(decoder: SpeculativeDecoder, target: str) -> Report:
    """Return a report that says what ran, on what and with what, and no figures yet."""
    return Report(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command="foredraft " + " ".join(sys.argv[1:]),
        commit=commit(),
        machine=describe_machine(str(decoder.target.device)),
        versions=describe_versions(),
        target=describe_target(decoder.target.model, target, decoder.target.width or 0),
    )


def provenance(device: str) -> dict[str, Any]:
    """Return machine, versions and commit as a benchmark writes them beside its figures."""
    return {
        "machine": asdict(describe_machine(device)),
        "versions": asdict(describe_versions()),
        "commit": commit(),
    }


def describe_machine(device: str) -> Machine:
    """Return the machine as it is now."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    on_card = torch.device(device).type == "cuda"
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        memory_gb=round(pages * size / 2**30, 1),
        device=torch.cuda.get_device_name(device) if on_card else device,
        platform=platform.platform(),
    )


def describe_versions() -> Versions:
    """Return the versions of what computes."""
    return Versions(
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=importlib.metadata.version("transformers"),
        foredraft=importlib.metadata.version("foredraft"),
    )


def describe_target(model: Any, name: str, width: int) -> Target:
    """Return what there is to say of a target."""
    config = model.config.get_text_config()
    return Target(
        name=name, parameters=_count(model), layers=config.num_hidden_layers, vocabulary=width
    )


def describe_draft(drafter: ModelDrafter, folder: str, coverage: float | None = None) -> Draft:
    """Return what there is to say of a draft, its head cut as it is used."""
    model = drafter.cached.model
    layers = model.config.get_text_config().num_hidden_layers
    if isinstance(drafter, SelfDrafter):
        layers = drafter.target.layers
    return Draft(
        folder=folder,
        layers=layers,
        parameters=_count(model),
        head_tokens=None if drafter.kept is None else len(drafter.kept),
        coverage=coverage,
    )


def describe_drafter(drafter: Drafter | None, folder: str) -> Draft | None:
    """Return what there is to say of the model that drafts, alone or in a chain; None where none does."""
    model = drafter.model if isinstance(drafter, ChainDrafter) else drafter
    return describe_draft(model, folder) if isinstance(model, ModelDrafter) else None


def commit() -> str | None:
    """Return the commit of the code that runs, where it runs from a checkout."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _count(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
