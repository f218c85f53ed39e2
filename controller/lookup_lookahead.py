"""LookupLookahead: how far to follow what a prompt lookup found, by what matches of its kind came to.

It reads no logits. Whether to follow is settled before the round, from committed tokens only, so no choice can
depend on a token whose fate is open.
"""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from ..spec import LookaheadPolicy, RoundOutcome, RoundStart, SamplingParams
from .config import AdaptiveConfig, check_integer
from .latency import LatencyTable, MachineFingerprint
from .lookahead_folder import read_lookahead
from .lookup_costs import LookupCosts
from .lookup_pacing import Accounts, LookupPacing, Plan
from .throughput import Throughput

DEFAULT_GAMMA_MAX = 32


class LookupLookahead:
    """A LookaheadPolicy for prompt lookup that maximises E[tokens] − λ·seconds, γ = 0 included."""

    reads_logits = False

    def __init__(
        self,
        latency: LatencyTable | None = None,
        *,
        gamma_max: int = DEFAULT_GAMMA_MAX,
        config: AdaptiveConfig | None = None,
    ) -> None:
        """Make a policy that has learned nothing online yet.

        Args:
            latency: what rounds take, as far as it was measured; None: learned from rounds, three plain
                ones first.
            gamma_max: most tokens drafted in a round, also beyond the table.

        Raises:
            ValueError: if `gamma_max` is not positive.
        """
        check_integer("gamma_max", gamma_max, low=1)
        self.gamma_max = gamma_max
        self.config = config or AdaptiveConfig()
        self.kinds: Counter[str] = Counter()  # rounds by why they drafted or not
        self.latency = latency
        self._costs = LookupCosts.of(gamma_max, latency)
        self._pacing = LookupPacing(Accounts.open(self.config))
        self._since_plain = 0  # rounds since the last plain one
        self._context = 1  # tokens when the round began
        self._plan = Plan()

    def begin_request(self, params: SamplingParams) -> None:
        """A new request starts, with an intercept of its own."""
        self._pacing.matches.begin_request()

    def begin_round(self, start: RoundStart) -> int:
        """Return the cap: 0 where nothing matches, or no match is worth its verification.

        Raises:
            ValueError: if the drafter looks nothing up.
        """
        self._context = start.context_length
        self._plan = self._choose(start)
        self.kinds[self._plan.kind] += 1
        return self._plan.gamma

    def wants_step(self, depth: int) -> bool:
        """The cap has said it all."""
        return True

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        """A lookup has no logits, so this is not asked."""
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        """Learn what the round took. What came of its look is learned from the next one."""
        self._costs.move(self._context)  # another row may have moved it
        self._costs.observe(outcome)
        costs = self._costs.current
        if costs is not None:
            self._pacing.book(self._plan, outcome, costs)
        self._since_plain = self._since_plain + 1 if outcome.drafted else 0

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        """Return policies for the rows of a batch that learn costs, price and matches together.

        They start from what this one knows and leave it as it is. A batch has costs and a price of its own:
        those of the latency table for as many rows, or none that are known. Each row has its own request
        and guard.
        """
        shared = copy.deepcopy(self)
        if count > 1:
            shared._costs = LookupCosts.of(self.gamma_max, self.latency, count)
            shared._pacing.accounts.throughput = Throughput(self.config.half_life_rounds)
        rows: list[LookaheadPolicy] = []
        for _ in range(count):
            row = copy.copy(shared)
            row._pacing = shared._pacing.for_row(shared._pacing.accounts.for_row())
            rows.append(row)
        return rows

    def snapshot(self) -> dict[str, Any]:
        """Return what the policy believes now, for logs and reports: plain numbers."""
        costs = self._costs.current
        matches = self._pacing.matches
        return {
            "tokens_per_plain_step": self._pacing.accounts.throughput.rate,
            "weights": matches.weights,
            "shift": matches.shift,
            "verify_seconds": None if costs is None else list(costs.verify),
            "plain_seconds": None if costs is None else costs.plain,
            "kinds": dict(self.kinds),
        }

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        target: str | None = None,
        machine: MachineFingerprint | None = None,
    ) -> LookupLookahead:
        """Return a policy with the latency table and settings of a saved lookahead, whatever its draft.

        Args:
            target: fingerprint of the model in use; None: not checked.
            machine: where it is to run; None: this machine, as this process uses it.

        Raises:
            ValueError: see `AdaptiveLookahead.load`.
        """
        _, latency, _, config = read_lookahead(folder, target=target, draft=None, machine=machine)
        return cls(latency, config=config)

    def __repr__(self) -> str:
        return f"LookupLookahead(gamma_max={self.gamma_max})"

    def _choose(self, start: RoundStart) -> Plan:
        limit = min(self.gamma_max, start.gamma_limit)
        if limit == 0:
            return Plan()
        if start.look is None:
            raise ValueError(
                f"lookahead: {self!r} paces prompt lookup, and this drafter looks nothing up; "
                "expected AdaptiveLookahead or a fixed γ"
            )
        look = start.look()
        self._pacing.matches.see(look)
        self._costs.move(self._context)
        costs, hoped = self._costs.current, self._costs.hoped
        if costs is None or hoped is None:
            return Plan("measure")
        if self._since_plain >= self.config.refresh_rounds:
            return Plan("refresh")
        return self._pacing.plan(look, min(limit, self._costs.reach), costs, hoped)
