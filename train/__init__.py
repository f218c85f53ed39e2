"""Draft distillation. `accelerate launch -m foredraft.train --config distill.yaml`"""

import importlib
from typing import TYPE_CHECKING, Any

from .config import DistillConfig

if TYPE_CHECKING:
    from .distillation import distill
    from .evaluation import evaluate_draft
    from .loop import DistillResult
    from .parity import Check, verify_draft

__all__ = [
    "Check",
    "DistillConfig",
    "DistillResult",
    "distill",
    "evaluate_draft",
    "verify_draft",
]

_HOMES = {
    "Check": "parity",
    "DistillResult": "loop",
    "distill": "distillation",
    "evaluate_draft": "evaluation",
    "verify_draft": "parity",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for, so that `--help` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
