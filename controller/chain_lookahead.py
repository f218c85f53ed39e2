"""ChainLookahead: in every round the lookup, the draft model or neither, by what each is expected to gain.

Both are priced alike, E[tokens] − λ·seconds over plain decoding's: a lookup costs its longer verification, a
model its steps, the verification, and its share of reading what was decoded without it. One account of
tokens and time, one guard, one record of costs.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..data import signals
from ..spec import LookaheadPolicy, ReadsTokens, RoundOutcome, RoundStart, Said, SamplingParams
from .adaptive import PAID_OFF, PROMPT_PAID_OFF, AdaptiveLookahead
from .config import AdaptiveConfig, check_integer
from .latency import LatencyTable, MachineFingerprint
from .lookahead_folder import read_lookahead
from .lookup_costs import GuessedCosts, LookupCosts, costs_of
from .lookup_lookahead import DEFAULT_GAMMA_MAX
from .lookup_pacing import Accounts, LookupPacing, Plan
from .predictor import AcceptancePredictor

LOOKUP = "lookup"  # the kind of a round that followed a match


class _ModelSide(AdaptiveLookahead):
    """The draft model's part of a chain: what it offers, and rounds that another source drafted."""

    def __init__(
        self,
        predictor: AcceptancePredictor,
        latency: LatencyTable,
        *,
        gamma_max: int | None,
        lookup_gamma_max: int,
        config: AdaptiveConfig | None,
    ) -> None:
        self._lookup_gamma_max = lookup_gamma_max
        super().__init__(predictor, latency, gamma_max=gamma_max, config=config)

    def _costs_of_rows(self, rows: int) -> GuessedCosts:
        return costs_of(self.latency, max(self.gamma_max, self._lookup_gamma_max), rows)

    @property
    def shared_costs(self) -> LookupCosts:
        """The same costs, as the lookup reads them."""
        assert isinstance(self._costs, GuessedCosts)
        most = max(self.gamma_max, self._lookup_gamma_max)
        return LookupCosts(most, self._costs, longest=self.latency.gamma_max)

    @property
    def accounts(self) -> Accounts:
        """The same accounts, as the lookup keeps them."""
        return Accounts(self._throughput, self._probes, self._guard)

    @property
    def gain(self) -> float:
        """Tokens that the round is expected to give over plain decoding, 0 where it is plain."""
        now = self._round
        if now.kind != "speculate" or now.values is None:
            return 0.0
        paid_off = PROMPT_PAID_OFF if self._prompt_unread else PAID_OFF
        return now.values.start - self._price(now.costs) * now.catch_up / paid_off

    @property
    def refreshes(self) -> bool:
        """Is the round plain to measure what that takes?"""
        return self._round.kind == "refresh"

    def stand_by(self) -> None:
        """Leave the round to another source."""
        self.kinds[self._round.kind] -= 1
        self._round = replace(self._round, kind="plain", cap=0, values=None)

    def move(self) -> None:
        """Let the costs be of the context of the round: another row may have moved them."""
        self._costs.move(self._context)

    def end_others_round(self, outcome: RoundOutcome) -> None:
        """Take in a round that another source drafted: its tokens are still to be read."""
        self._rounds += 1
        self._recentring.age(unseen=True)
        self._history.prev_target = signals(outcome.target_logits[outcome.accepted])
        self._behind += outcome.accepted + 1
        self._since_plain += 1


class ChainLookahead(ReadsTokens):
    """A LookaheadPolicy for a chain of prompt lookup and draft model that maximises E[tokens] − λ·seconds."""

    reads_logits = False  # it does without where a match is followed

    def __init__(
        self,
        predictor: AcceptancePredictor,
        latency: LatencyTable,
        *,
        gamma_max: int | None = None,
        lookup_gamma_max: int = DEFAULT_GAMMA_MAX,
        config: AdaptiveConfig | None = None,
    ) -> None:
        """Make a policy that has learned nothing online yet.

        Args:
            predictor, latency: of the draft model, as for `AdaptiveLookahead`.
            gamma_max: most tokens that the model drafts in a round; None: 8, or as far as the table reaches.
            lookup_gamma_max: most that the lookup drafts, also beyond the table.

        Raises:
            ValueError: if `gamma_max` lies outside the latency table, or `lookup_gamma_max` is not positive.
        """
        check_integer("lookup_gamma_max", lookup_gamma_max, low=1)
        model = _ModelSide(
            predictor,
            latency,
            gamma_max=gamma_max,
            lookup_gamma_max=lookup_gamma_max,
            config=config,
        )
        self.gamma_max = max(model.gamma_max, lookup_gamma_max)
        self._model, self._lookup_gamma_max = model, lookup_gamma_max
        self._costs = model.shared_costs
        self._pacing = LookupPacing(model.accounts)
        self._plan = Plan()
        self._offered = False  # a match, whose first token the drafter will ask about

    @property
    def kinds(self) -> Counter[str]:
        """Rounds by why they drafted or not; "lookup" where a match was followed."""
        return self._model.kinds

    def begin_request(self, params: SamplingParams) -> None:
        """A new request starts."""
        self._model.begin_request(params)
        self._pacing.matches.begin_request()

    def begin_round(self, start: RoundStart) -> int:
        """Return the cap of the source that is expected to gain most: 0 where none does.

        Raises:
            ValueError: if the drafter looks nothing up.
        """
        self._plan, self._offered = Plan(), False
        cap = self._model.begin_round(start)
        limit = min(self._lookup_gamma_max, start.gamma_limit)
        if limit == 0:
            return cap
        if start.look is None:
            raise ValueError(
                f"lookahead: {self!r} paces a chain of prompt lookup and draft model, and this drafter looks "
                "nothing up; expected AdaptiveLookahead or a fixed γ"
            )
        look = start.look()
        self._pacing.matches.see(look)
        self._offered = look.match is not None
        costs, hoped = self._costs.current, self._costs.hoped
        if self._model.refreshes or costs is None or hoped is None:
            return cap
        plan = self._pacing.plan(look, min(limit, self._costs.reach), costs, hoped)
        if plan.gain <= self._model.gain:
            return cap
        self._model.stand_by()
        self.kinds[LOOKUP] += 1
        self._plan = plan
        return plan.gamma

    def wants_step(self, depth: int) -> bool:
        """Is this source the one that was chosen, and another step worth it? The lookup asks first."""
        if depth == 1 and self._offered:
            self._offered = False
            return self._plan.gamma > 0
        if self._plan.gamma > 0:
            return depth > 1  # a model that is asked after all was not chosen
        return self._model.wants_step(depth)

    def read(self, said: Said) -> None:
        self._model.read(said)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        """Is the model's token worth drawing, now that its look is known?"""
        return self._model.wants_token(depth, draft_logits)

    def end_round(self, outcome: RoundOutcome) -> None:
        """Learn from the round. What came of its look is learned from the next one."""
        if self._plan.gamma == 0 or outcome.drafted == 0:
            self._model.end_round(outcome)
            return
        self._model.move()
        self._costs.observe(outcome)
        costs = self._costs.current
        assert costs is not None
        self._pacing.book(self._plan, outcome, costs)
        self._model.end_others_round(outcome)

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        """Return policies for the rows of a batch, as `AdaptiveLookahead` and `LookupLookahead` do."""
        pacing = copy.deepcopy(self._pacing)
        costs: LookupCosts | None = None
        rows: list[LookaheadPolicy] = []
        for model in self._model.for_rows(count):
            assert isinstance(model, _ModelSide)
            costs = costs or model.shared_costs  # one for all rows
            row = copy.copy(self)
            row._model, row._costs = model, costs
            row._pacing = pacing.for_row(model.accounts)
            rows.append(row)
        return rows

    def snapshot(self) -> dict[str, Any]:
        """Return what the policy believes now, for logs and reports: plain numbers."""
        matches = self._pacing.matches
        return self._model.snapshot() | {"weights": matches.weights, "match_shift": matches.shift}

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        target: str | None = None,
        draft: str | None = None,
        machine: MachineFingerprint | None = None,
    ) -> ChainLookahead:
        """Return a policy with what was fitted for a draft model by itself; see `AdaptiveLookahead.load`.

        Raises:
            ValueError: see `AdaptiveLookahead.load`.
        """
        predictor, latency, gamma_max, config = read_lookahead(
            folder, target=target, draft=draft, machine=machine
        )
        return cls(predictor, latency, gamma_max=gamma_max, config=config)

    def __repr__(self) -> str:
        return f"ChainLookahead(gamma_max={self._model.gamma_max}, lookup_gamma_max={self._lookup_gamma_max})"
