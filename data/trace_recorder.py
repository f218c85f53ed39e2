"""A lookahead that records: for every drafted token, what was known before its draw and its fate.

Only tokens up to a round's first rejection were tested; the others are kept, with `tested` false.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..spec import (
    LookaheadPolicy,
    RoundOutcome,
    RoundStart,
    Said,
    SamplingParams,
    acceptance_prob,
    dense,
    show_tokens,
)
from .echoes import Echo, LookReader
from .signals import History, Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One drafted token. Its fields are the columns of the file; log-probabilities are natural."""

    request: int  # counts requests from 0
    prompt_id: str
    domain: str
    round: int  # counts rounds of the request from 0, plain ones included
    depth: int  # place in the round, from 1
    context_length: int  # tokens committed before the round, prompt included
    temperature: float  # of the request
    top1_logprob: float  # of the draft's law, before the draw, as are the next two
    margin: float
    entropy: float
    prev_target_top1_logprob: float  # of the target's law at the last verified position; NaN in a
    prev_target_entropy: float  # request's first round, as is this
    recent_acceptance: float  # before the round; see History
    tested: bool  # all tokens drafted before it in the round were accepted
    accepted: bool
    acceptance_prob: float  # Σ min(p, q) as used; NaN where not tested
    echo_agrees: float  # see Echo; known before the draw, as is the next
    echo_differs: float


class TraceRecorder(LookReader):
    """A lookahead that decides as `inner` does and writes down what it saw, into `rows`.

    Transparent: every call is passed on and its answer returned unchanged. It adds its own work to
    the times of a round, so traces say nothing of speed.
    """

    reads_logits = True

    def __init__(self, inner: LookaheadPolicy) -> None:
        super().__init__()
        self.inner = inner
        self.gamma_max = inner.gamma_max
        self.rows: list[TraceRow] = []
        self._prompt_id = self._domain = ""
        self._request = self._round = -1
        self._temperature = math.nan
        self._history = History()
        self._context_length = 0
        self._drawn: list[tuple[Signals, Echo]] = []  # of this round's tokens, in order

    def label(self, prompt_id: str, domain: str) -> None:
        """Name the prompt of the next requests."""
        self._prompt_id, self._domain = prompt_id, domain

    def begin_request(self, params: SamplingParams) -> None:
        self._request, self._round = self._request + 1, -1
        self._temperature = params.temperature
        self._history = History()
        self.begin_text()
        self.inner.begin_request(params)

    def begin_round(self, start: RoundStart) -> int:
        self._round += 1
        self._context_length = start.context_length
        self._drawn = []
        return self.inner.begin_round(start)

    def wants_step(self, depth: int) -> bool:
        return self.inner.wants_step(depth)

    def read(self, said: Said) -> None:
        super().read(said)
        show_tokens(self.inner, said)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        wanted = self.inner.wants_token(depth, draft_logits)
        if wanted:
            self._drawn.append(self.see(draft_logits))
        return wanted

    def end_round(self, outcome: RoundOutcome) -> None:
        assert len(self._drawn) == outcome.drafted, "a drawn token was not verified"
        tested = min(outcome.accepted + 1, outcome.drafted)
        p = dense(outcome.target_probs)[:tested]  # [tested, V]
        q = dense(outcome.draft_probs, like=p)[:tested]  # [tested, V]
        alphas = [*acceptance_prob(p, q).tolist(), *[math.nan] * (outcome.drafted - tested)]
        looks = zip(self._drawn, alphas, strict=True)
        for depth, ((law, echo), alpha) in enumerate(looks, start=1):
            self.rows.append(
                TraceRow(
                    request=self._request,
                    prompt_id=self._prompt_id,
                    domain=self._domain,
                    round=self._round,
                    depth=depth,
                    context_length=self._context_length,
                    temperature=self._temperature,
                    top1_logprob=law.top1_logprob,
                    margin=law.margin,
                    entropy=law.entropy,
                    prev_target_top1_logprob=self._history.prev_target.top1_logprob,
                    prev_target_entropy=self._history.prev_target.entropy,
                    recent_acceptance=self._history.recent_acceptance,
                    tested=depth <= tested,
                    accepted=depth <= outcome.accepted,
                    acceptance_prob=alpha,
                    echo_agrees=echo.agrees,
                    echo_differs=echo.differs,
                )
            )
        self._history.update(outcome)
        self.inner.end_round(outcome)

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        raise ValueError("traces are recorded one request at a time, not in a batch")
