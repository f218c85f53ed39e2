"""Memory of a bench: what models hold, what caches take, the process's peak, and what there is room for."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from ..spec import PackedLinear
from .bench_data import Memory

_RESET_PEAK = Path("/proc/self/clear_refs")  # Linux: "5" sets the peak to what is held now
_STATUS = Path("/proc/self/status")


def model_memory(models: Sequence[torch.nn.Module]) -> Memory:
    """Return the bytes of the weights of models and of their copies in other layouts, shared ones once."""
    weights: dict[int, int] = {}
    packed: dict[int, int] = {}
    for model in models:
        for weight in model.parameters():
            weights[weight.data_ptr()] = weight.nbytes
        for layer in model.modules():
            if isinstance(layer, PackedLinear) and layer.kernel != "plain":
                size = 2 if layer.kernel == "float16" else layer.weight.element_size()
                packed[layer.weight.data_ptr()] = size * layer.weight.numel()
    return Memory(weights=sum(weights.values()), packed=sum(packed.values()))


def cache_bytes(model: Any, positions: int, rows: int) -> int:
    """Return the bytes of the keys and values of `rows` sequences of `positions` tokens."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    each = next(model.parameters()).element_size()
    return int(2 * config.num_hidden_layers * heads * size * positions * rows * each)


def reset_peak(device: torch.device) -> None:
    """Let the peak start from what is held now, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed: the peak is the process's since its start
        _RESET_PEAK.write_text("5")


def peak_bytes(device: torch.device) -> int:
    """Return the most memory held since `reset_peak`: the card's on CUDA, else the process's."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def too_large(name: str, memory_gb: float | None) -> str | None:
    """Return why a draft's folder is not loaded: its weights do not fit. None: they do, or it is no folder.

    Args:
        memory_gb: most they may take; None: what is free.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return None
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    wanted = sum(os.path.getsize(file) for file in files)
    free = psutil.virtual_memory().available if memory_gb is None else memory_gb * 2**30
    if wanted <= free:
        return None
    return (
        f"memory: its weights take {wanted / 2**30:.2f} GiB and {free / 2**30:.2f} GiB may be used; "
        "decode plainly (γ = 0), or take a smaller draft"
    )
