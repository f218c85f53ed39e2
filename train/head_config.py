"""What the training of heads can be asked for. Imports nothing heavy, so that `--help` is quick."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..data.config import check_integer
from .config import DistillConfig

KINDS = ("eagle", "medusa")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Train heads that draft from a target's last hidden states, with its own output head.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    target: str
    """Target model: hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    corpus: str
    """Folder of a corpus that the target wrote, or conversations, as for the training of a draft. With the
    states that a corpus keeps, the target's body does not run."""
    kind: str = "eagle"
    """"eagle" (one decoder layer that goes on from the state by itself, token by token) or "medusa" (a small
    block for each of the next tokens, all at once)."""
    output: str = "runs/heads"
    """Folder that `draft=` of the decoder takes; the best heads are in it from the first evaluation on."""
    depth: int = 3
    """Drafted tokens that are trained on: steps on its own states of an EAGLE head, which may draft further;
    blocks of Medusa, which can draft no more."""
    depth_decay: float = 0.8
    """What a depth's loss weighs, over the weight of the depth before it."""
    loss: str = "kl"
    """As of the draft's training: "kl", "tv", "lk", …"""
    state_weight: float = 0.5
    """Weight of a second loss: how far the heads' states are from the target's (1 a token for a constant)."""
    steps: int = 1000
    """Most optimizer steps; 0: the start in closed form alone."""
    max_seconds: float | None = None
    """Wall time of the steps, in seconds. None: no limit."""
    batch_rows: int = 8
    """Corpus rows in an optimizer step."""
    learning_rate: float = 1e-3
    """Peak of the learning rate."""
    head_tokens: int | None = 16384
    """Vocabulary entries that the heads can propose, the corpus's most frequent; none: all of them."""
    train_rows: int | None = None
    """Most rows that are trained on. None: all."""
    eval_rows: int = 32
    """Most held-out rows that α is measured on."""
    eval_every: int = 100
    """Steps between measurements; the best heads are kept."""
    max_length: int = 1024
    """Tokens of prompt and response; what is beyond is cut."""
    seed: int = 0
    """Order of the rows."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        lows = {"depth": 1, "steps": 0, "batch_rows": 1, "eval_rows": 1, "eval_every": 1}
        for name, low in lows.items():
            check_integer(name, getattr(self, name), low=low)
        if self.train_rows is not None and self.train_rows < 1:
            raise ValueError(f"train_rows must be >= 1, got {self.train_rows!r}")
        if not 0.0 < self.depth_decay <= 1.0:
            raise ValueError(f"depth_decay must be in (0, 1], got {self.depth_decay!r}")
        if not 0.0 <= self.state_weight < math.inf:
            raise ValueError(f"state_weight must be at least 0, got {self.state_weight!r}")
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
            batch_rows=self.batch_rows,
            learning_rate=self.learning_rate,
            head_tokens=self.head_tokens,
            max_length=self.max_length,
            complete_only=False,  # each token is judged by what is before it
            eval_rows=self.eval_rows,
            seed=self.seed,
        )
