"""A simulated text, draft and machine that drive a real policy object: no model, a clock of its own.

At every position of the text stand a number that the draft's distribution shows (z) and a coin of its
own, so that all policies meet the same luck. Acceptance follows logit = mean + slope · z.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from foredraft.controller import (
    AcceptancePredictor,
    LatencyTable,
    MachineFingerprint,
    RoundCosts,
    fit_predictor,
)
from foredraft.data import signals
from foredraft.spec import FixedLookahead, LookaheadPolicy, RoundOutcome, RoundStart, SamplingParams

V = 8
STEPS = 64  # draft distributions are kept on a grid of z from −4 to 4
GREEDY = SamplingParams(temperature=0.0)
CHEAP = RoundCosts(draft_step=0.1, verify=(1.0,) * 9)  # verify flat
STAIRS = RoundCosts(  # measured on a demo machine: not even monotone
    draft_step=0.007, verify=(0.089, 0.142, 0.204, 0.160, 0.152, 0.168, 0.175, 0.171, 0.178)
)


def _logits(step: int) -> torch.Tensor:
    """Return draft logits [V] whose top-1 logit grows with z."""
    z = 8.0 * step / STEPS - 4.0
    row = torch.zeros(V)
    row[0] = max(0.0, 0.6 + 1.2 * z) + math.log(V - 1)
    return row


LOGITS = [_logits(step) for step in range(STEPS + 1)]
SIGNALS = [signals(row) for row in LOGITS]
TARGET_LOGITS = torch.tensor([[2.0, 1.0] + [0.0] * (V - 2)] * 32)  # [32, V]


@dataclass(frozen=True)
class Text:
    """What a draft and a target make of a text."""

    looks: np.ndarray[Any, Any]  # [length] index into LOGITS
    coins: np.ndarray[Any, Any]  # [length] uniform
    chances: np.ndarray[Any, Any]  # [length] of acceptance

    @classmethod
    def make(cls, *, length: int, mean: float, slope: float, seed: int) -> Text:
        """Return a text where acceptance has logit mean + slope · z, z standard normal."""
        rng = np.random.default_rng(seed)
        z = rng.standard_normal(length)
        return cls(
            looks=np.clip(np.round((z + 4.0) * STEPS / 8.0), 0, STEPS).astype(int),
            coins=rng.random(length),
            chances=1.0 / (1.0 + np.exp(-(mean + slope * z))),
        )

    def __add__(self, other: Text) -> Text:
        return Text(
            np.concatenate([self.looks, other.looks]),
            np.concatenate([self.coins, other.coins]),
            np.concatenate([self.chances, other.chances]),
        )


@dataclass
class Run:
    """What a simulated decoding came to."""

    tokens: int = 0
    seconds: float = 0.0
    gammas: list[int] = field(default_factory=list)
    round_seconds: list[float] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    caps: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)  # of a chain: "lookup", "model" or "plain"
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def histogram(self) -> dict[int, int]:
        return dict(sorted(Counter(self.gammas).items()))


class Machine:
    """Gives the true seconds of a round's parts; subclass to disturb them."""

    def __init__(self, costs: RoundCosts, *, noise: float = 0.0, seed: int = 0) -> None:
        self.costs = costs
        self._noise = noise
        self._rng = np.random.default_rng(seed)

    def parts(self, steps: int, drawn: int, position: int) -> tuple[float, float, float]:
        """Return the seconds of drafting, of verifying and of the rest."""
        luck = np.exp(self._noise * self._rng.standard_normal(2)) if self._noise else np.ones(2)
        rest = self.costs.round_overhead if steps else self.costs.plain_overhead
        return steps * self.costs.draft_step * luck[0], self.costs.verify[drawn] * luck[1], rest


def simulate(
    policy: LookaheadPolicy,
    text: Text,
    machine: Machine,
    *,
    request_tokens: int = 10**9,
    record: bool = False,
    seed: int = 0,
) -> Run:
    """Decode `text` once, in requests of `request_tokens`."""
    rng = np.random.default_rng(seed)  # looks after a rejection, off the text
    run, position, in_request = Run(), 0, 0
    length = len(text.coins)
    request = 0
    policy.begin_request(GREEDY)
    while position < length - 1:
        limit = min(length - position - 1, request_tokens - in_request - 1)
        start = RoundStart(context_length=64 + in_request, gamma_limit=limit)
        cap = policy.begin_round(start)
        assert 0 <= cap <= min(limit, policy.gamma_max)
        steps = drawn = accepted = 0
        alive = True
        while drawn < cap and policy.wants_step(drawn + 1):
            steps += 1
            at = position + drawn
            look = int(text.looks[at]) if alive else int(np.clip(rng.normal(32, 8), 0, STEPS))
            if not policy.wants_token(drawn + 1, LOGITS[look]):
                break
            drawn += 1
            tested = alive
            alive = alive and bool(text.coins[at] < text.chances[at])
            accepted += alive
            if record:
                run.rows.append(_row(request, len(run.gammas), drawn, look, tested, alive, start))
        draft, verify, rest = machine.parts(steps, drawn, position)
        policy.end_round(
            RoundOutcome(
                drafted=drawn,
                accepted=accepted,
                draft_seconds=draft,
                verify_seconds=verify,
                round_seconds=draft + verify + rest,
                draft_steps=steps,
                target_logits=TARGET_LOGITS[: drawn + 1],
                target_probs=TARGET_LOGITS[: drawn + 1],
                draft_probs=TARGET_LOGITS[:drawn],
            )
        )
        run.tokens += accepted + 1
        run.seconds += draft + verify + rest
        run.gammas.append(drawn)
        run.caps.append(cap)
        run.round_seconds.append(draft + verify + rest)
        run.emitted.append(accepted + 1)
        position += accepted + 1
        in_request += accepted + 1
        if in_request >= request_tokens:
            policy.begin_request(GREEDY)
            in_request = 0
            request += 1
    return run


def _row(
    request: int,
    round_: int,
    depth: int,
    look: int,
    tested: bool,
    accepted: bool,
    start: RoundStart,
) -> dict[str, Any]:
    seen = SIGNALS[look]
    return {
        "request": request,
        "prompt_id": f"p{request}",
        "round": round_,
        "depth": depth,
        "context_length": start.context_length,
        "temperature": 0.0,
        "top1_logprob": seen.top1_logprob,
        "margin": seen.margin,
        "entropy": seen.entropy,
        "prev_target_top1_logprob": math.nan if round_ == 0 else -0.7,
        "prev_target_entropy": math.nan if round_ == 0 else 1.5,
        "recent_acceptance": 0.5,
        "tested": tested,
        "accepted": tested and accepted,
        "acceptance_prob": float(accepted) if tested else math.nan,
    }


def columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return rows as the columns that `read_traces` gives."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def traces(
    text: Text, *, gamma: int = 6, request_tokens: int = 64
) -> dict[str, np.ndarray[Any, Any]]:
    """Return traces of a fixed γ on `text`."""
    machine = Machine(RoundCosts(draft_step=0.1, verify=(1.0,) * (gamma + 1)))
    run = simulate(FixedLookahead(gamma), text, machine, request_tokens=request_tokens, record=True)
    return columns(run.rows)


@cache
def predictor(mean: float = 0.4, slope: float = 1.7) -> AcceptancePredictor:
    """Return a predictor fitted on a text of that mean and slope of the logit of acceptance."""
    text = Text.make(length=1000, mean=mean, slope=slope, seed=11)
    return fit_predictor(traces(text)).predictor


def table(costs: RoundCosts) -> LatencyTable:
    """Return the latency table that a measurement of `costs` would give."""
    return LatencyTable(
        draft_step_seconds=costs.draft_step,
        verify_seconds=costs.verify,
        overhead_seconds=costs.plain_overhead,
        context_length=64,
        machine=MachineFingerprint.here("cpu"),
    )


def fixed_rate(text: Text, costs: RoundCosts, gamma: int) -> float:
    """Return tokens per second of a fixed γ on `text`: what `simulate` gives, without the objects."""
    accepted = (text.coins < text.chances).tolist()
    length, position, tokens, seconds = len(accepted), 0, 0, 0.0
    while position < length - 1:
        drawn = min(gamma, length - position - 1)
        emitted = 1
        while emitted <= drawn and accepted[position + emitted - 1]:
            emitted += 1
        position, tokens, seconds = (
            position + emitted,
            tokens + emitted,
            seconds + costs.seconds(drawn),
        )
    return tokens / seconds


def best_fixed(text: Text, costs: RoundCosts, *, gamma_max: int = 8) -> tuple[int, float]:
    """Return the best fixed γ in hindsight and its tokens per second, γ = 0 included."""
    rates = [fixed_rate(text, costs, gamma) for gamma in range(gamma_max + 1)]
    best = int(np.argmax(rates))
    return best, rates[best]
