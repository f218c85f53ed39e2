"""What heads say against what the target says, at each depth: the losses and α."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .batches import Example, micro_batches
from .divergences import Loss
from .head_states import HeadTrainer
from .losses import chunked_divergence
from .teacher import Teacher

CHUNK = 1024  # tokens whose logits exist at the same time


class Judge:
    """Holds what heads say against what the target says."""

    def __init__(
        self, teacher: Teacher, trainer: HeadTrainer, kept: torch.Tensor | None, loss: Loss
    ) -> None:
        """Hold both.

        Args:
            kept: [V_draft], the tokens that the heads can propose; None: all.
        """
        self.teacher, self.trainer, self._loss = teacher, trainer, loss
        self._columns = torch.arange(teacher.width) if kept is None else kept
        self._head = teacher.head.rows(self._columns)

    def losses(self, examples: Sequence[Example], variance: float) -> torch.Tensor:
        """Return means over the tokens of each depth, 0 where no token is so deep: [2, depths].

        First the divergence, then how far the heads' states are from the target's, 1 for a constant.

        Args:
            variance: of the target's states about their mean, a dimension's on average.
        """
        states = [self.teacher.hidden([example]) for example in examples]
        sums = [
            self._log_sums(example, each) for example, each in zip(examples, states, strict=True)
        ]
        found = []
        for depth, ours in enumerate(self.trainer.drafted(examples, states), start=1):
            skipped = self.trainer.skipped(depth)
            theirs = torch.cat([each[skipped:] for each in states])  # [N, d]
            logs = [each[skipped:] for each in sums if each is not None]
            divergence = chunked_divergence(
                ours,
                self._head,
                theirs,
                self._head,
                self._loss.divergence,
                log_sums=torch.cat(logs) if logs else None,
                chunk_tokens=CHUNK,
            )
            distance = (ours - theirs).square().mean(-1).sum() / variance
            found.append(torch.stack([divergence, distance]) / max(1, len(ours)))
        return torch.stack(found, dim=1)

    @torch.no_grad()
    def alphas(self, examples: Sequence[Example], batch_rows: int) -> list[float]:
        """Return the mean of Σ min(p, q) at each depth over the whole vocabulary, at temperature 1.

        Depth k is of the k-th token of a round, all before it accepted: the text is the target's own.
        """
        totals: list[torch.Tensor] = []
        for part in micro_batches(examples, batch_rows):
            totals.append(torch.stack([_sum_and_count(each) for each in self.acceptance(part)]))
        total = torch.stack(totals).sum(0)  # [depths, 2]
        return (total[:, 0] / total[:, 1].clamp(min=1)).tolist()

    @torch.no_grad()
    def acceptance(self, examples: Sequence[Example]) -> list[torch.Tensor]:
        """Return Σ min(p, q) at each place of each depth, example by example: [N_k] each."""
        teacher = self.teacher
        states = [teacher.hidden([example]) for example in examples]
        sums = [
            teacher.summary([example], each, CHUNK)[0]
            for example, each in zip(examples, states, strict=True)
        ]
        found = []
        for depth, ours in enumerate(self.trainer.drafted(examples, states), start=1):
            skipped = self.trainer.skipped(depth)
            theirs = torch.cat([each[skipped:] for each in states])  # [N, d]
            logs = torch.cat([each[skipped:] for each in sums])  # [N]
            rows = [torch.empty(0, device=ours.device)]
            for start in range(0, len(ours), CHUNK):
                chunk = slice(start, start + CHUNK)
                p = (self._head.logits(theirs[chunk]) - logs[chunk, None]).exp()  # [n, V_draft]
                q = self._head.logits(ours[chunk]).softmax(-1)
                rows.append(torch.minimum(p, q).sum(-1))
            found.append(torch.cat(rows))
        return found

    def _log_sums(self, example: Example, states: torch.Tensor) -> torch.Tensor | None:
        return self.teacher.log_sums(
            [example], states, self._loss.law, self._columns, chunk_tokens=CHUNK, temperature=1.0
        )


def _sum_and_count(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values.double().sum(), values.new_tensor(len(values)).double()])
