"""What the adaptive lookahead's own decisions take, clocked inside the real loop."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from statistics import median

import torch

from foredraft.controller import AdaptiveLookahead
from foredraft.data import Prompt
from foredraft.spec import (
    LookaheadPolicy,
    ReadsTokens,
    RoundOutcome,
    RoundStart,
    Said,
    SamplingParams,
    SpeculativeDecoder,
    show_tokens,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCost:
    """Medians over one answer, in microseconds."""

    decision_us: float  # `wants_token` and `wants_step` of one depth
    round_us: float  # `begin_round` and `end_round`
    draft_step_us: float  # without the decision
    share: float  # a decision over a draft step
    decisions: int


class Clocked(ReadsTokens):
    """A policy whose calls are clocked."""

    def __init__(self, policy: LookaheadPolicy) -> None:
        self.policy = policy
        self.gamma_max, self.reads_logits = policy.gamma_max, policy.reads_logits
        self.decisions: list[float] = []  # seconds, one a depth
        self.rounds: list[float] = []  # seconds, one a round
        self.steps: list[float] = []  # seconds of a draft step, decisions left out
        self._round = 0.0
        self._deciding = 0.0  # seconds of the round's decisions
        self._reads_prompt = True

    def begin_request(self, params: SamplingParams) -> None:
        self._reads_prompt = True
        self.policy.begin_request(params)

    def begin_round(self, start: RoundStart) -> int:
        begun = time.perf_counter()
        gamma = self.policy.begin_round(start)
        self._round, self._deciding = time.perf_counter() - begun, 0.0
        return gamma

    def wants_step(self, depth: int) -> bool:
        begun = time.perf_counter()
        wanted = self.policy.wants_step(depth)
        seconds = time.perf_counter() - begun
        self._deciding += seconds
        if depth > 1 and self.decisions:
            self.decisions[-1] += seconds
        return wanted

    def read(self, said: Said) -> None:
        show_tokens(self.policy, said)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        begun = time.perf_counter()
        wanted = self.policy.wants_token(depth, draft_logits)
        seconds = time.perf_counter() - begun
        self._deciding += seconds
        self.decisions.append(seconds)
        return wanted

    def end_round(self, outcome: RoundOutcome) -> None:
        if outcome.draft_steps and not self._reads_prompt:
            forwards = outcome.draft_seconds - self._deciding
            self.steps.append(forwards / outcome.draft_steps)
        self._reads_prompt = self._reads_prompt and not outcome.draft_steps
        begun = time.perf_counter()
        self.policy.end_round(outcome)
        self.rounds.append(self._round + time.perf_counter() - begun)

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        raise ValueError("decisions are clocked one request at a time, not in a batch")


def decision_cost(
    decoder: SpeculativeDecoder,
    adaptive: AdaptiveLookahead,
    prompt: Prompt,
    params: SamplingParams,
) -> DecisionCost | None:
    """Decode a prompt under a copy of the policy and return what its decisions took.

    None where it never drafted twice: a draft that does not pay has no decisions to clock.
    """
    clocked = Clocked(copy.deepcopy(adaptive))
    decoder.twin(clocked).chat([prompt.messages], params)
    if not clocked.steps or not clocked.decisions:
        return None
    decision, step = median(clocked.decisions), median(clocked.steps)
    return DecisionCost(
        decision_us=1e6 * decision,
        round_us=1e6 * median(clocked.rounds),
        draft_step_us=1e6 * step,
        share=decision / step,
        decisions=len(clocked.decisions),
    )
