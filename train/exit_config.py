"""What the training of an exit can be asked for. Imports nothing heavy, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.config import check_integer
from .config import DistillConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitConfig:
    """Train an exit of a target: its first layers draft with its own head, through a small adapter.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    target: str
    """Target model: hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    corpus: str
    """Folder of a corpus that the target wrote, or conversations, as for the training of a draft."""
    layer: int
    """Layers before the exit, at least 1 and fewer than the target has."""
    output: str = "runs/exit"
    """Folder that `draft=` of the decoder takes."""
    hidden: int = 0
    """Width of a non-linear term beside the adapter's d × d map; 0: none."""
    loss: str = "kl"
    """As of the draft's training: "kl", "tv", "lk", …"""
    steps: int = 300
    """Most optimizer steps; 0: the least-squares map alone."""
    max_seconds: float | None = None
    """Wall time of the steps, in seconds. None: no limit."""
    batch_tokens: int = 512
    """Tokens in an optimizer step."""
    learning_rate: float = 1e-3
    """Peak of the learning rate."""
    head_tokens: int | None = 8192
    """Vocabulary entries that the loss looks at, the corpus's most frequent; none: all. Drafting uses all."""
    train_rows: int | None = None
    """Most rows that are read; their states stay in memory, 8 · d bytes a token in float32. None: all."""
    eval_rows: int = 32
    """Most held-out rows that α is measured on."""
    eval_every: int = 100
    """Steps between measurements; the best adapter is kept."""
    max_length: int = 1024
    """Tokens of prompt and response; what is beyond is cut."""
    seed: int = 0
    """Order of the tokens."""

    def __post_init__(self) -> None:
        lows = {
            "layer": 1,
            "hidden": 0,
            "steps": 0,
            "batch_tokens": 1,
            "eval_rows": 1,
            "eval_every": 1,
        }
        for name, low in lows.items():
            check_integer(name, getattr(self, name), low=low)
        if self.train_rows is not None and self.train_rows < 1:
            raise ValueError(f"train_rows must be >= 1, got {self.train_rows!r}")
        self.distilling()

    def distilling(self) -> DistillConfig:
        """Return the same as settings of the draft's training, for what is shared with it; checks them."""
        return DistillConfig(
            target=self.target,
            corpus=self.corpus,
            output=self.output,
            loss=self.loss,
            steps=max(self.steps, 1),
            max_seconds=self.max_seconds,
            learning_rate=self.learning_rate,
            head_tokens=self.head_tokens,
            max_length=self.max_length,
            eval_rows=self.eval_rows,
            seed=self.seed,
        )
