"""Draft distillation. `accelerate launch -m foredraft.train --config distill.yaml`"""

import importlib
from typing import TYPE_CHECKING, Any

from .config import DistillConfig
from .exit_config import ExitConfig
from .head_config import HeadConfig

if TYPE_CHECKING:
    from .distillation import distill
    from .evaluation import evaluate_draft
    from .exits import ExitResult, train_exit
    from .head_training import HeadResult, train_heads
    from .parity import Check, verify_draft
    from .result import DistillResult

__all__ = [
    "Check",
    "DistillConfig",
    "DistillResult",
    "ExitConfig",
    "ExitResult",
    "HeadConfig",
    "HeadResult",
    "distill",
    "evaluate_draft",
    "train_exit",
    "train_heads",
    "verify_draft",
]

_HOMES = {
    "Check": "parity",
    "DistillResult": "result",
    "ExitResult": "exits",
    "HeadResult": "head_training",
    "distill": "distillation",
    "evaluate_draft": "evaluation",
    "train_exit": "exits",
    "train_heads": "head_training",
    "verify_draft": "parity",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for, so that `--help` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
