"""A short training of one size of draft: what a plan may expect of a longer one.

α rises about evenly with the logarithm of the tokens seen (docs/log.md has the curve of a long run), so what
the second half of the pilot added is expected again of each doubling of its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from ..train import DistillConfig, distill
from ..train.batches import Example
from ..train.tracking import ALPHA
from .config import DemoCommand, PlanCommand

ROWS = 8  # of a step
DEMO = DemoCommand()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What a short training did to the α of a size of draft."""

    layers: int
    head_tokens: int | None
    tokens: int  # supervised, in all
    alpha_start: float  # at temperature 1 on held-out rows, as the next two
    alpha_half: float  # after half of the tokens
    alpha: float  # after all

    def gain(self, tokens: int) -> float:
        """Return what training on so many supervised tokens is expected to add to the α of a start."""
        doublings = math.log2(tokens / self.tokens)
        slope = max(0.0, self.alpha - self.alpha_half)  # a doubling that lost says nothing of more
        return max(0.0, self.alpha - self.alpha_start + slope * doublings)


def run_pilot(
    config: PlanCommand,
    layers: int,
    head_tokens: int | None,
    rows: Sequence[Example],
    *,
    target: Any,
    tokenizer: Any,
) -> Pilot:
    """Train a draft on about `config.pilot_tokens` tokens, at a rate that does not fall, and forget it.

    Args:
        rows: the corpus's, whose mean length says how many steps that is.
    """
    of_row = sum(example.supervised for example in rows) / len(rows)
    halves = max(1, round(config.pilot_tokens / (2 * of_row * ROWS)))  # steps
    with TemporaryDirectory() as folder:
        settings = DistillConfig(
            target=config.target, corpus=config.corpus, output=folder, loss=config.loss,
            layers=layers, head_tokens=head_tokens, train_head=False, complete_only=False,
            state_weight=DEMO.state_weight, learning_rate=DEMO.learning_rate, min_lr_ratio=1.0,
            steps=2 * halves, batch_rows=ROWS, chunk_tokens=256, eval_every=halves,
            save_every=2 * halves, keep=1, eval_rows=config.rows, eval_prompts=0,
            serving_temperatures=(), report_to="none",
        )  # fmt: skip
        result = distill(settings, target=target, tokenizer=tokenizer)
    measured = {row["step"]: row[ALPHA] for row in result.curve if ALPHA in row}  # 0: the start
    tokens = max(row.get("train/tokens", 0.0) for row in result.curve)
    return Pilot(
        layers=layers,
        head_tokens=head_tokens,
        tokens=round(tokens),
        alpha_start=measured[0],
        alpha_half=measured[halves],
        alpha=measured[2 * halves],
    )
