"""The emitted tokens follow the target's law exactly, under every policy: enumerated, not sampled."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from foredraft.spec import (
    CachedModel,
    Drafter,
    FixedLookahead,
    LookaheadPolicy,
    ModelDrafter,
    Proposal,
    RoundOutcome,
    RoundStart,
    SamplingParams,
    decode_round,
)
from toys import ScriptedDraws, TableLM, enumerate_law, random_table

LENGTH = 3  # tokens after the one-token prompt
TOLERANCE = 1e-12
TARGET = random_table(seed=1)
DRAFT = random_table(seed=2)
Law = dict[tuple[int, ...], float]


class CoinPolicy(FixedLookahead):
    """Decides everything by coins, which are enumerated along with the loop's own draws."""

    def __init__(self) -> None:
        super().__init__(2)
        self.draws: ScriptedDraws = ScriptedDraws([])

    def begin_round(self, start: RoundStart) -> int:
        return min(2 if self.draws.accepts(0.6) else 1, start.gamma_limit)

    def wants_step(self, depth: int) -> bool:
        return self.draws.accepts(0.8)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return self.draws.accepts(0.7)


class ConfidencePolicy(FixedLookahead):
    """Draws on only where the draft is sure: depends on the law before the draw, not on the token."""

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return float(draft_logits.softmax(-1).max()) > 0.45


class StatefulPolicy(FixedLookahead):
    """Drafts as far as the last round was accepted, and one more."""

    def begin_request(self, params: SamplingParams) -> None:
        self.next = 1

    def begin_round(self, start: RoundStart) -> int:
        return min(self.next, start.gamma_limit)

    def end_round(self, outcome: RoundOutcome) -> None:
        self.next = min(outcome.accepted + 1, 2)


PARAMS = {
    "T=0": SamplingParams(temperature=0.0),
    "T=0.5": SamplingParams(temperature=0.5),
    "T=1": SamplingParams(temperature=1.0),
    "T=1.7": SamplingParams(temperature=1.7),
    "top_k=2": SamplingParams(top_k=2),
    "top_p=0.7": SamplingParams(top_p=0.7),
    "min_p=0.3": SamplingParams(min_p=0.3),
    "T=0.7,top_k=3,top_p=0.9": SamplingParams(temperature=0.7, top_k=3, top_p=0.9),
}
POLICIES = {
    "plain": lambda: FixedLookahead(0),
    "γ=1": lambda: FixedLookahead(1),
    "γ=2": lambda: FixedLookahead(2),
    "coins": CoinPolicy,
    "confidence": lambda: ConfidencePolicy(2),
}


def target_law(params: SamplingParams) -> Law:
    """The law of whole sequences from the table and transformers' own warpers."""

    def next_law(position: int, token: int) -> torch.Tensor:
        logits = TARGET.table[position, token][None].clone()
        if params.greedy:
            return torch.nn.functional.one_hot(logits.argmax(-1), 4)[0].double()
        warpers = [TemperatureLogitsWarper(params.temperature)]
        if params.top_k:
            warpers.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            warpers.append(TopPLogitsWarper(params.top_p))
        if params.min_p:
            warpers.append(MinPLogitsWarper(params.min_p))
        for warper in warpers:
            logits = warper(None, logits)
        return logits.softmax(-1)[0]

    law: Law = {(0,): 1.0}
    for position in range(LENGTH):
        law = {
            (*sequence, token): weight * p
            for sequence, weight in law.items()
            for token, p in enumerate(next_law(position, sequence[-1]).tolist())
            if p > 0
        }
    return law


def round_by_round_law(
    params: SamplingParams,
    policy: LookaheadPolicy,
    drafter: Drafter,
    target: TableLM = TARGET,
    length: int = LENGTH,
) -> Law:
    """The law of whole sequences, each round enumerated from each prefix: for policies without memory."""
    model = CachedModel(target, width=4)
    end = 1 + length
    partial: Law = {(0,): 1.0}
    whole: Law = {}
    while partial:
        tokens, weight = partial.popitem()

        def run(draws: ScriptedDraws, tokens: tuple[int, ...] = tokens) -> tuple[int, ...]:
            if isinstance(policy, CoinPolicy):
                policy.draws = draws
            model.start(tokens, end)
            drafter.start(tokens, end)
            emitted, _ = decode_round(
                tokens, model, drafter, policy, params, draws, gamma_limit=end - len(tokens) - 1
            )
            return (*tokens, *emitted)

        for longer, chance in enumerate_law(run).items():
            into = whole if len(longer) == end else partial
            into[longer] = into.get(longer, 0.0) + weight * chance
    return whole


def whole_path_law(params: SamplingParams, policy: LookaheadPolicy, drafter: Drafter) -> Law:
    """The law of whole sequences, all draws of all rounds enumerated together."""
    model = CachedModel(TARGET, width=4)
    end = 1 + LENGTH

    def run(draws: ScriptedDraws) -> tuple[int, ...]:
        tokens = [0]
        model.start(tokens, end)
        drafter.start(tokens, end)
        policy.begin_request(params)
        while len(tokens) < end:
            emitted, _ = decode_round(
                tokens, model, drafter, policy, params, draws, gamma_limit=end - len(tokens) - 1
            )
            tokens += emitted
        return tuple(tokens)

    return enumerate_law(run)


def largest_difference(one: Law, other: Law) -> float:
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_loop_emits_the_targets_law(params: SamplingParams, policy: functools.partial) -> None:  # type: ignore[type-arg]
    drafter = ModelDrafter(DRAFT, width=4)
    law = round_by_round_law(params, policy(), drafter)
    assert largest_difference(law, target_law(params)) < TOLERANCE


@pytest.mark.parametrize("name", ["T=0", "top_k=2"])
def test_a_policy_with_memory_keeps_the_law(name: str) -> None:
    law = whole_path_law(PARAMS[name], StatefulPolicy(2), ModelDrafter(DRAFT, width=4))
    assert largest_difference(law, target_law(PARAMS[name])) < TOLERANCE


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_draft_temperature_and_a_cut_head_keep_the_law(temperature: float) -> None:
    kept = torch.tensor([0, 2, 3])
    cut = TableLM(DRAFT.table[:, :, kept])
    drafter = ModelDrafter(cut, width=4, kept=kept, temperature=0.6)
    params = SamplingParams(temperature=temperature)
    law = round_by_round_law(params, FixedLookahead(2), drafter)
    assert largest_difference(law, target_law(params)) < TOLERANCE


class DroppingDrafter(ModelDrafter):
    """The trap: drops a token after it was drawn, because its own probability is low."""

    def propose(self, tokens, gamma, policy, params, draws) -> Proposal:  # type: ignore[no-untyped-def]
        proposal = super().propose(tokens, gamma, policy, params, draws)
        kept = len(proposal.tokens)
        if kept and proposal.probs[kept - 1, proposal.tokens[-1]] < 0.4:
            kept -= 1
        return Proposal(proposal.tokens[:kept], proposal.probs[:kept], proposal.steps)


class WrongLawDrafter(ModelDrafter):
    """Draws from filtered laws and reports the unfiltered ones (public bug B05)."""

    def propose(self, tokens, gamma, policy, params, draws) -> Proposal:  # type: ignore[no-untyped-def]
        proposal = super().propose(tokens, gamma, policy, params, draws)
        flat = 0.5 * proposal.probs + 0.125
        return Proposal(proposal.tokens, flat, proposal.steps)


@pytest.mark.parametrize("trap", [DroppingDrafter, WrongLawDrafter])
def test_a_biased_drafter_is_caught(trap: type[ModelDrafter]) -> None:
    params = SamplingParams()
    law = round_by_round_law(params, FixedLookahead(2), trap(DRAFT, width=4))
    assert largest_difference(law, target_law(params)) > 1e-3


def test_dropping_turns_seven_three_into_eighty_five_fifteen() -> None:
    # DSpark, appendix A: p = (.7, .3), q = (.5, .5); only token 0 is verified, token 1 is dropped.
    class KeepZero(ModelDrafter):
        def propose(self, tokens: Sequence[int], *rest) -> Proposal:  # type: ignore[no-untyped-def]
            proposal = super().propose(tokens, *rest)
            return proposal if proposal.tokens == [0] else Proposal([], proposal.probs[:0], 1)

    def table(law: list[float]) -> TableLM:
        logits = torch.tensor([*law, 1e-300, 1e-300], dtype=torch.float64).log()
        return TableLM(logits.expand(4, 4, 4).clone())

    def first_token(drafter: ModelDrafter) -> list[float]:
        target = table([0.7, 0.3])
        law = round_by_round_law(SamplingParams(), FixedLookahead(1), drafter, target, length=2)
        return [sum(w for key, w in law.items() if key[1] == token) for token in (0, 1)]

    draft = table([0.5, 0.5])
    assert first_token(ModelDrafter(draft, width=4)) == pytest.approx([0.7, 0.3], abs=TOLERANCE)
    assert first_token(KeepZero(draft, width=4)) == pytest.approx([0.85, 0.15], abs=TOLERANCE)
