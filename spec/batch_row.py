"""One request in a batch: what it asked, where it stands, and what this round did with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .cached import uncovered
from .law import TokenLaw
from .looks import Looking
from .one_hot import Laws, dense
from .output import RequestOutput, take_round
from .policy import LookaheadPolicy, RoundOutcome, ask_gamma
from .stopping import StopRule


@dataclass(slots=True, eq=False)
class Row:
    """A request while it is decoded. Everything that it draws or decides by is its own."""

    place: int  # in the order of what was asked
    output: RequestOutput  # fills up
    logprobs: int | None  # how many of each token were asked for
    slot: int  # where its keys and values are
    tokens: list[int]  # committed, the prompt first; the last is fed by the next round
    end: int  # tokens at most
    law: TokenLaw
    rule: StopRule
    policy: LookaheadPolicy
    source: Any  # its chance, from a RowsDraws
    # of the round in progress
    gamma: int = 0  # most to draft
    drafted: list[int] = field(default_factory=list)
    draft_laws: list[Laws] = field(default_factory=list)  # [drafted, V] in all
    draft_steps: int = 0
    draft_seconds: float = 0.0

    @property
    def ended(self) -> bool:
        return self.output.error is not None or self.rule.finish_reason is not None

    def uncovered(self, cover: int) -> list[int]:
        """Return what follows the first `cover` tokens, drafted ones included; the rest is not read."""
        return uncovered(cover, self.tokens, self.drafted)

    def begin_round(self, draft_context: int, look: Looking | None) -> None:
        """Ask the policy how many to draft: the bonus fits below `end`, the draft below its context."""
        length = len(self.tokens)
        limit = max(0, min(self.end - length - 1, draft_context - length))
        self.drafted, self.draft_laws = [], []
        self.draft_steps, self.draft_seconds = 0, 0.0
        self.gamma = ask_gamma(self.policy, length, limit, look)

    def draft_probs(self, like: torch.Tensor) -> torch.Tensor:
        """Return q as drawn from, [drafted, V]."""
        if not self.draft_laws:
            return like.new_empty(0, like.shape[-1])
        return torch.cat([dense(laws, like) for laws in self.draft_laws])  # [drafted, V]

    def end_round(self, emitted: list[int], outcome: RoundOutcome) -> None:
        """Take the round's tokens, up to where the output ends."""
        self.law.commit(emitted)
        self.policy.end_round(outcome)
        for _ in take_round(self.output, self.rule, self.tokens, emitted, outcome, self.logprobs):
            pass  # a batch does not stream

    def finish(self) -> RequestOutput:
        """Return the output as it ended."""
        self.output.text = self.rule.text
        failed = self.output.error is not None
        self.output.finish_reason = "error" if failed else self.rule.finish_reason
        return self.output


@contextmanager
def blamed_on(row: Row) -> Iterator[None]:
    """Let an error end this row and no other."""
    try:
        yield
    except Exception as error:
        row.output.error = error


def sound(rows: Iterable[Row]) -> list[Row]:
    """Return the rows without an error."""
    return [row for row in rows if row.output.error is None]


def check_token(token: int, width: int) -> int:
    """Return the token. Raises ValueError where none could be drawn: the law was not finite."""
    if token >= width:
        raise ValueError(
            "the model's logits are not finite (NaN or infinite), no token can be drawn"
        )
    return token
