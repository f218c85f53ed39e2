"""Watches the rounds of a call through the policy's seam: what each drafted, gave, took and when."""

from __future__ import annotations

import time

import torch

from ..spec import (
    LookaheadPolicy,
    ReadsTokens,
    RoundOutcome,
    RoundStart,
    Said,
    SamplingParams,
    show_tokens,
)
from .bench_data import Rounds


class RoundLog:
    """The rounds of the call in progress."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A call begins: forget the one before."""
        self.begun = time.perf_counter()
        self.rounds = Rounds()


class Watched(ReadsTokens):
    """A policy that does as another does and writes down how each round went."""

    def __init__(self, policy: LookaheadPolicy, log: RoundLog) -> None:
        self.policy, self.log = policy, log
        self.gamma_max, self.reads_logits = policy.gamma_max, policy.reads_logits
        self._context = 0
        self._last: float | None = None  # end of the request's last round

    def begin_request(self, params: SamplingParams) -> None:
        self._last = None
        self.policy.begin_request(params)

    def begin_round(self, start: RoundStart) -> int:
        self._context = start.context_length
        return self.policy.begin_round(start)

    def wants_step(self, depth: int) -> bool:
        return self.policy.wants_step(depth)

    def read(self, said: Said) -> None:
        show_tokens(self.policy, said)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return self.policy.wants_token(depth, draft_logits)

    def end_round(self, outcome: RoundOutcome) -> None:
        self.policy.end_round(outcome)
        now, rounds = time.perf_counter(), self.log.rounds
        rounds.context.append(self._context)
        rounds.drafted.append(outcome.drafted)
        rounds.accepted.append(outcome.accepted)
        rounds.draft_steps.append(outcome.draft_steps)
        rounds.draft_seconds.append(outcome.draft_seconds)
        rounds.verify_seconds.append(outcome.verify_seconds)
        rounds.ended.append(now - self.log.begun)
        rounds.gap.append(None if self._last is None else now - self._last)
        self._last = now

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        return [Watched(policy, self.log) for policy in self.policy.for_rows(count)]

    def __repr__(self) -> str:
        return repr(self.policy)
