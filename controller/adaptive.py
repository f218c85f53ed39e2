"""AdaptiveLookahead: at every round, and before every draw, the choice of most tokens per second.

Before a round it decides whether drafting is worth starting, in the loop whether to look once more
and whether to draw. It learns only when a round has ended, so no choice can depend on a token whose
fate is open: non-anticipating by construction.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..data import History
from ..data.echoes import LookReader
from ..spec import LookaheadPolicy, RoundOutcome, RoundStart, SamplingParams
from .config import AdaptiveConfig, check_integer
from .costs import OnlineCosts
from .economics import RoundCosts, best_fixed_gamma, emitted_moments, objective
from .features import known_before
from .forecast import Array, LookForecast
from .guard import SlowdownGuard
from .hazards import HazardTracker
from .latency import LatencyTable, MachineFingerprint
from .lookahead_folder import read_lookahead, write_lookahead
from .predictor import AcceptancePredictor
from .probing import ProbeBudget
from .recentring import Recentring, sigmoid
from .stopping import StoppingValues
from .throughput import Throughput

DEFAULT_GAMMA_MAX = 8
SOLVE_EVERY = 8  # rounds for which solved values are kept
PAID_OFF = 20  # rounds; speculation comes in stretches, and catching up is paid once for each
PROMPT_PAID_OFF = 60  # rounds; the prompt is read once for the whole answer
SHIFT_STEP = 0.25  # logits; the forecast of later looks is solved on a grid of intercepts


@dataclass(slots=True)
class _Round:
    """The round in progress."""

    kind: str  # "plain", "guarded", "refresh", "probe" or "speculate"
    cap: int
    costs: RoundCosts
    catch_up: float = 0.0  # seconds that the first draft step takes longer
    known: tuple[float, ...] = ()  # what the predictor knew before the round
    values: StoppingValues | None = None
    survival: float = 1.0  # S of the tokens drawn so far
    bin: int | None = None  # of the last look
    drawn: list[float] = field(default_factory=list)  # logits of drawn tokens, no corrections
    survivals: list[float] = field(default_factory=list)  # S_1 … of drawn tokens, as predicted


class AdaptiveLookahead(LookReader):
    """A LookaheadPolicy that maximises E[tokens] − λ·seconds, γ = 0 included."""

    reads_logits = True

    def __init__(
        self,
        predictor: AcceptancePredictor,
        latency: LatencyTable,
        *,
        gamma_max: int | None = None,
        config: AdaptiveConfig | None = None,
    ) -> None:
        """Make a policy that has learned nothing online yet.

        Args:
            gamma_max: most tokens drafted in a round; None: 8, or as far as the table reaches.

        Raises:
            ValueError: if `gamma_max` lies outside the latency table.
        """
        if gamma_max is None:
            gamma_max = min(DEFAULT_GAMMA_MAX, latency.gamma_max)
        check_integer("gamma_max", gamma_max, low=1, high=latency.gamma_max)
        self.gamma_max = gamma_max
        self.predictor = predictor
        self.latency = latency
        self.config = config or AdaptiveConfig()
        self.kinds: Counter[str] = Counter()  # rounds by why they drafted or not
        self._costs = self._costs_of_rows(1)
        self._throughput = Throughput(self.config.half_life_rounds)
        self._forecast = LookForecast(predictor.forecast)
        self._hazards = HazardTracker(predictor.hazards_to(gamma_max))
        self._recentring = Recentring()
        self._probes = ProbeBudget(share=self.config.probe_share)
        self._guard = SlowdownGuard(
            tolerance=self.config.slowdown_tolerance,
            budget=self.config.slowdown_budget,
            credit_max=self.config.slowdown_credit,
            deviations=self.config.slowdown_deviations,
        )
        self._solved: dict[tuple[int, int], StoppingValues] = {}
        self._rounds = 0
        self._prompt_unread = True
        self._behind = 0  # tokens committed since the draft last ran
        self._since_plain = 0  # rounds since the last plain one
        self._begin_request(temperature=1.0, shared=True)

    def begin_request(self, params: SamplingParams) -> None:
        """A new request starts, with an intercept and a history of its own.

        Where the target's law is penalised, the draft was not fitted to it; what such a request
        teaches about acceptance is kept to it.
        """
        self._begin_request(temperature=params.temperature, shared=params.repetition_penalty == 1.0)

    def begin_round(self, start: RoundStart) -> int:
        """Return the cap: 0 where plain decoding is worth more than starting to draft."""
        if self._rounds % SOLVE_EVERY == 0:
            self._solved.clear()
        self._round = self._choose(start)
        self.kinds[self._round.kind] += 1
        return self._round.cap

    def wants_step(self, depth: int) -> bool:
        """Is another look worth its draft step, given the looks so far?"""
        now = self._round
        if now.values is None or now.bin is None:
            return True
        return now.values.wants_step(depth - 1, now.survival, now.bin)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        """Is the token worth drawing, now that its look is known? The step just run is sunk.

        Args:
            draft_logits: [V_draft].
        """
        now = self._round
        look, echo = self.see(draft_logits)
        logit = self.predictor.token_logit(look, depth, now.known, echo)
        chance = sigmoid(logit + self._recentring.shift + self._hazards.offset(depth))
        bin_ = self._forecast.bin(self.predictor.look_logit(look, echo))
        self._forecast.observe(bin_, now.bin)
        survival = now.survival * chance
        if now.values is not None and not now.values.wants_token(depth, survival, bin_):
            return False
        now.survival, now.bin = survival, bin_
        now.drawn.append(logit)
        now.survivals.append(survival)
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        """Learn from the round."""
        self._rounds += 1
        self._learn_acceptance(outcome)
        reads_prompt = self._prompt_unread and outcome.draft_steps > 0
        self._costs.move(self._context)  # another row may have moved it
        self._costs.observe(outcome, behind=self._context if reads_prompt else self._behind)
        self._account(outcome, reads_prompt)
        speculated = outcome.draft_steps > 0
        self._prompt_unread = self._prompt_unread and not speculated
        self._behind = 1 if speculated else self._behind + 1
        self._since_plain = self._since_plain + 1 if speculated else 0

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        """Return policies for the rows of a batch that learn costs, price and acceptance together.

        They start from what this one knows and leave it as it is. A batch has costs and a price of its own:
        those of the latency table for as many rows. Each row has its own request: intercept, history and
        guard.
        """
        shared = copy.deepcopy(self)
        if count > 1:
            shared._costs = self._costs_of_rows(count)
            shared._throughput = Throughput(self.config.half_life_rounds)
        rows: list[LookaheadPolicy] = []
        for _ in range(count):
            row = copy.copy(shared)
            row._recentring = copy.copy(shared._recentring)  # shares the intercept across requests
            row._guard = copy.copy(shared._guard)
            row._solved = {}
            row._begin_request(temperature=1.0, shared=True)
            rows.append(row)
        return rows

    def snapshot(self) -> dict[str, Any]:
        """Return what the policy believes now, for logs and reports: plain numbers."""
        costs = self._costs.current
        hazards = self._hazards.hazards
        return {
            "price": self._price(costs),
            "tokens_per_plain_step": self._throughput.rate,
            "shift": self._recentring.shift,
            "hazards": hazards,
            "best_fixed_gamma": best_fixed_gamma(hazards, costs)[0],
            "draft_step_seconds": costs.draft_step,
            "verify_seconds": list(costs.verify),
            "plain_seconds": costs.plain,
            "kinds": dict(self.kinds),
        }

    def save(self, folder: str | Path) -> None:
        """Write the folder that `load` and the decoder's `lookahead=` take, nothing learned online."""
        write_lookahead(folder, self.predictor, self.latency, self.gamma_max, self.config)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        target: str | None = None,
        draft: str | None = None,
        machine: MachineFingerprint | None = None,
    ) -> AdaptiveLookahead:
        """Return a policy that decides as the saved one did when it was new.

        Args:
            target, draft: fingerprints of the models in use; None: not checked.
            machine: where it is to run; None: this machine, as this process uses it.

        Raises:
            ValueError: naming the file that is missing, broken, of another schema, or made for
                other models or another machine.
        """
        predictor, latency, gamma_max, config = read_lookahead(
            folder, target=target, draft=draft, machine=machine
        )
        return cls(predictor, latency, gamma_max=gamma_max, config=config)

    def __repr__(self) -> str:
        return f"AdaptiveLookahead(gamma_max={self.gamma_max})"

    def _begin_request(self, *, temperature: float, shared: bool) -> None:
        self._temperature = temperature
        self._shared = shared
        self._history = History()
        self.begin_text()
        self._recentring.begin_request(shared=shared)
        self._behind = 1
        self._context = 1  # tokens when the round began
        self._prompt_unread = True  # by the draft; it is read once, whatever a round decides
        self._round = _Round("plain", 0, self._costs.current)

    def _costs_of_rows(self, rows: int) -> OnlineCosts:
        costs = partial(self.latency.costs, self.gamma_max, rows=rows)
        return OnlineCosts(costs(), lambda context: costs(context_length=context))

    def _choose(self, start: RoundStart) -> _Round:
        self._context = start.context_length
        self._costs.move(self._context)
        costs = self._costs.current
        limit = min(self.gamma_max, start.gamma_limit)
        if limit == 0:
            return _Round("plain", 0, costs)
        if self._since_plain >= self.config.refresh_rounds:
            return _Round("refresh", 0, costs)
        behind = self._context if self._prompt_unread else self._behind
        catch_up = self._costs.catch_up(behind)
        # A prompt is read once, however long the answer: what it costs is booked, not a reason to refuse.
        room = self._guard.room(costs.plain) - (0.0 if self._prompt_unread else catch_up)
        cap = costs.largest_cap(room, limit)
        known = known_before(self._history, start.context_length, self._temperature)
        logit = self.predictor.round_logit(known) + self._recentring.shift
        if cap > 0:
            values = self._solve(cap, logit, costs)
            paid_off = PROMPT_PAID_OFF if self._prompt_unread else PAID_OFF
            if values.start > self._price(costs) * catch_up / paid_off:
                return _Round("speculate", cap, costs, catch_up, known, values)
        if self._probes.is_due(0.0):  # cheap to ask; the rest is not
            gamma = self._probe_gamma(limit, logit, costs)
            seconds = costs.seconds(gamma)
            cost = (seconds + catch_up) / costs.plain - 1.0
            if self._probes.is_due(cost):
                return _Round("probe", gamma, costs, catch_up, known)
        return _Round("plain" if cap > 0 else "guarded", 0, costs)

    def _probe_gamma(self, cap: int, logit: float, costs: RoundCosts) -> int:
        """Return the γ > 0 that is expected to cost least: the length at which recovery would show."""
        chances = self._acceptance(cap, logit)
        hazards = self._forecast.hazards(chances)
        values = objective(hazards, costs, self._price(costs))
        return max(range(1, cap + 1), key=values.__getitem__)

    def _price(self, costs: RoundCosts) -> float:
        """λ in tokens per second."""
        return self._throughput.rate / costs.plain

    def _solve(self, cap: int, logit: float, costs: RoundCosts) -> StoppingValues:
        """Return the values of stopping and going on, where later looks have `logit` added."""
        shift = round(logit / SHIFT_STEP)
        values = self._solved.get((cap, shift))
        if values is None:
            values = StoppingValues(
                self._forecast.first(),
                self._forecast.following(),
                self._acceptance(cap, shift * SHIFT_STEP),
                costs,
                self._price(costs),
                cap,
            )
            self._solved[cap, shift] = values
        return values

    def _acceptance(self, cap: int, logit: float) -> Array:
        """Return the chance of acceptance at each depth in each bin of looks, [cap, K]."""
        offsets = [
            self.predictor.depth_logit(depth) + self._hazards.offset(depth)
            for depth in range(1, cap + 1)
        ]
        return self._forecast.acceptance(logit, offsets)

    def _learn_acceptance(self, outcome: RoundOutcome) -> None:
        """Learn from tested tokens: the accepted ones and the first rejection."""
        shift = self._recentring.shift
        tested = self._round.drawn[: min(outcome.accepted + 1, outcome.drafted)]
        self._recentring.age(unseen=not tested)
        for index, logit in enumerate(tested):
            offset = self._hazards.offset(index + 1)
            self._recentring.observe(logit + offset, index < outcome.accepted)
        if tested and self._shared:
            self._hazards.observe([sigmoid(logit + shift) for logit in tested], outcome.accepted)
        self._history.update(outcome)

    def _account(self, outcome: RoundOutcome, reads_prompt: bool) -> None:
        """Book what the round cost in plain steps, by the costs as they are known after it.

        What the draft took to read the prompt is in no table: there its seconds are taken as they are.
        """
        now, emitted, costs = self._round, outcome.accepted + 1, self._costs.current
        if outcome.draft_steps == 0:
            cost = 1.0
            self._guard.observe_plain()
        else:
            drafting = outcome.draft_steps * costs.draft_step + now.catch_up
            seconds = outcome.draft_seconds if reads_prompt else drafting
            seconds += costs.verify[outcome.drafted] + costs.round_overhead
            cost = seconds / costs.plain
        self._throughput.observe(emitted, cost)
        self._probes.observe(cost)
        if now.kind == "probe":
            self._probes.charge(cost - emitted)
            self._guard.observe_probe(emitted - cost)
        elif outcome.draft_steps > 0:
            expected, variance = emitted_moments(now.survivals)
            self._guard.observe_speculation(
                emitted=emitted, cost=cost, expected=expected, variance=variance
            )
