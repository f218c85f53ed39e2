"""What a run gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillResult:
    """What came of a run."""

    folder: Path
    """The best checkpoint, by what the config's `best_by` says."""
    before: dict[str, float]
    """Metrics on held-out rows before the first step."""
    best: dict[str, float]
    """The same of the best checkpoint."""
    curve: list[dict[str, Any]]
    """All metrics in order, each row with its step; also in metrics.jsonl."""
