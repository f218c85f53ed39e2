"""How many looked-up tokens a round verifies: all is known before it, so the choice is one maximum.

A lookup costs nothing to draft, and nothing it shows while drafting is news. With S_k the predicted chance that
the first k candidates are right, γ maximises

    S_1 + … + S_γ − λ·(t_verify(γ + 1) − t_verify(1)),      0 for γ = 0

over all lengths the guard lets be risked. Nothing is probed to learn: a look is judged by what is decoded
after it, whether it was followed or not. Only a guard that is closed is opened by a probe, and only where
following is expected to pay.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from itertools import accumulate

from ..spec import Look, RoundOutcome
from .config import AdaptiveConfig
from .economics import RoundCosts, emitted_moments
from .guard import SlowdownGuard
from .matches import MatchPredictor, survivals
from .probing import ProbeBudget
from .throughput import Throughput

MARGIN = 1e-9  # tokens; ties decode plainly


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round does with a look."""

    kind: str = "plain"  # or "guarded", "probe", "speculate"
    gamma: int = 0
    gain: float = 0.0  # tokens that it is expected to give over plain decoding
    survivals: list[float] = field(default_factory=list)  # S_1 … S_γ


@dataclass(slots=True)
class Accounts:
    """What a policy keeps of tokens and time, in plain steps, across requests."""

    throughput: Throughput
    probes: ProbeBudget
    guard: SlowdownGuard

    @classmethod
    def open(cls, config: AdaptiveConfig) -> Accounts:
        """Return accounts with nothing in them."""
        return cls(
            throughput=Throughput(config.half_life_rounds),
            probes=ProbeBudget(share=config.probe_share),
            guard=SlowdownGuard(
                tolerance=config.slowdown_tolerance,
                budget=config.slowdown_budget,
                credit_max=config.slowdown_credit,
                deviations=config.slowdown_deviations,
            ),
        )

    def for_row(self) -> Accounts:
        """Return those of a row of a batch: throughput and probes are kept together, a guard is each row's."""
        return Accounts(self.throughput, self.probes, copy.copy(self.guard))


class LookupPacing:
    """Plans the rounds of a lookup and books what they came to."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.matches = MatchPredictor()

    def for_row(self, accounts: Accounts) -> LookupPacing:
        """Return that of a row of a batch; what matches mean is learned together."""
        row = LookupPacing(accounts)
        row.matches = self.matches.for_row()
        return row

    def plan(self, look: Look, limit: int, costs: RoundCosts, hoped: RoundCosts) -> Plan:
        """Return what to do with a look that the predictor has seen.

        Args:
            limit: most tokens to draft, at least 1.
            hoped: costs by which the length is chosen; what may be risked is judged by `costs`.
        """
        if look.match is None:
            return Plan()
        survival = survivals(self.matches.chances(look, limit))
        price = self.accounts.throughput.rate / costs.plain
        gains = [
            tokens - price * (round_seconds(hoped, gamma) - costs.plain)
            for gamma, tokens in enumerate(accumulate(survival), start=1)
        ]
        room = self.accounts.guard.room(costs.plain)
        allowed = [g for g in range(1, limit + 1) if round_seconds(costs, g) <= room]
        best = max(range(1, limit + 1), key=lambda gamma: gains[gamma - 1])
        gamma = max(allowed, key=lambda gamma: gains[gamma - 1], default=0)
        if gamma and gains[gamma - 1] > MARGIN:
            return Plan("speculate", gamma, gains[gamma - 1], survival[:gamma])
        if gains[best - 1] <= MARGIN:
            return Plan()
        if self.accounts.probes.is_due(round_seconds(costs, best) / costs.plain - 1.0):
            return Plan("probe", best, gains[best - 1], survival[:best])
        return Plan("guarded")

    def book(self, plan: Plan, outcome: RoundOutcome, costs: RoundCosts) -> None:
        """Book a round, by the costs as they are known after it."""
        emitted, cost = outcome.accepted + 1, 1.0
        if outcome.drafted:
            cost = round_seconds(costs, outcome.drafted) / costs.plain
        accounts = self.accounts
        accounts.throughput.observe(emitted, cost)
        accounts.probes.observe(cost)
        if not outcome.drafted:
            accounts.guard.observe_plain()
        elif plan.kind == "probe":
            accounts.probes.charge(cost - emitted)
            accounts.guard.observe_probe(emitted - cost)
        else:
            expected, variance = emitted_moments(plan.survivals[: outcome.drafted])
            accounts.guard.observe_speculation(
                emitted=emitted, cost=cost, expected=expected, variance=variance
            )


def round_seconds(costs: RoundCosts, gamma: int) -> float:
    """Return the seconds of a round that verifies `gamma` looked-up tokens, at least 1."""
    return costs.verify[gamma] + costs.round_overhead
