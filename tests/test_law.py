"""The emitted tokens follow the target's law exactly, under every policy: enumerated, not sampled."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from controller_sim import predictor
from controller_sim import table as latency_table
from foredraft.controller import (
    AdaptiveLookahead,
    ConfidenceThreshold,
    EntropyBound,
    GammaBandit,
    HeuristicSchedule,
    RoundCosts,
    SurvivalThreshold,
)
from foredraft.data.echoes import LookReader
from foredraft.spec import (
    CachedModel,
    Drafter,
    FixedLookahead,
    GeneratorDraws,
    LookaheadPolicy,
    ModelDrafter,
    Processor,
    PromptLookupDrafter,
    Proposal,
    RoundOutcome,
    RoundStart,
    SamplingParams,
    TokenLaw,
    decode_round,
    dense,
)
from foredraft.spec.draft_temperature import DraftTemperature
from toys import ScriptedDraws, TableLM, enumerate_law, random_table, tiny_llama

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


class EchoPolicy(LookReader, FixedLookahead):
    """Draws where the text said the likeliest token before, or after an even one."""

    def __init__(self) -> None:
        LookReader.__init__(self)
        FixedLookahead.__init__(self, 2)

    def begin_round(self, start: RoundStart) -> int:
        self.begin_text()  # each path that is enumerated has a text of its own
        return super().begin_round(start)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        assert self._said is not None
        last = [*self._said.committed, *self._said.drafted][-1]
        return self.see(draft_logits)[1].agrees > 0 or last % 2 == 0


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
    "repetition": SamplingParams(repetition_penalty=1.7),
    "repetition,T=0": SamplingParams(repetition_penalty=3.0, temperature=0.0),
    "presence": SamplingParams(presence_penalty=1.25),
    "frequency": SamplingParams(frequency_penalty=-1.5),
    "logit_bias": SamplingParams(logit_bias={1: 1.25, 2: -0.5, 0: -math.inf}),
    "bad_words": SamplingParams(bad_words=((0, 1), (2, 3), (1, 2, 2), (3, 3))),
    "bad_words,T=0": SamplingParams(bad_words=((0, 1), (2, 3), (1,)), temperature=0.0),
    "min_tokens": SamplingParams(min_tokens=2, stop_token_ids=(1,)),
    "all": SamplingParams(
        temperature=0.8, top_k=3, top_p=0.95, repetition_penalty=1.3, presence_penalty=0.5,
        frequency_penalty=0.25, logit_bias={2: 0.75}, bad_words=((1, 1), (0, 3)), min_tokens=1,
        stop_token_ids=(2,),
    ),
}  # fmt: skip
POLICIES = {
    "plain": lambda: FixedLookahead(0),
    "γ=1": lambda: FixedLookahead(1),
    "γ=2": lambda: FixedLookahead(2),
    "coins": CoinPolicy,
    "confidence": lambda: ConfidencePolicy(2),
    "echoes": EchoPolicy,
}


ENDS = [3]  # the model's own; forbidden before min_tokens


def token_law(
    params: SamplingParams,
    tokens: Sequence[int],
    *,
    prompt: int = 1,
    width: int = 4,
    processors: Sequence[Processor] = (),
) -> TokenLaw:
    """The law of a request whose first `prompt` tokens are its prompt, and the others decoded."""
    law = TokenLaw(
        params,
        tokens[:prompt],
        width=width,
        eos_token_ids=ENDS,
        device=torch.device("cpu"),
        processors=processors,
    )
    law.commit(tokens[prompt:])
    return law


def reference_law(
    params: SamplingParams, logits: torch.Tensor, tokens: Sequence[int], *, prompt: int = 1
) -> torch.Tensor:
    """The law [V] after `tokens`, from transformers' own processors; vLLM's formula for its penalties."""
    ids = torch.tensor([list(tokens)])
    logits = logits.reshape(1, -1).clone()
    counts = torch.bincount(ids[0, prompt:], minlength=logits.shape[-1])
    if params.logit_bias:
        bias = {(token,): value for token, value in params.logit_bias.items()}
        logits = SequenceBiasLogitsProcessor(bias)(ids, logits)
    if params.repetition_penalty != 1:
        logits = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, logits)
    logits = logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
    if params.bad_words:
        logits = NoBadWordsLogitsProcessor([list(word) for word in params.bad_words])(ids, logits)
    if params.min_tokens:
        ends = [*ENDS, *params.stop_token_ids]
        logits = MinNewTokensLengthLogitsProcessor(prompt, params.min_tokens, ends)(ids, logits)
    if params.greedy:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1])[0].double()
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


def target_law(params: SamplingParams, prompt: tuple[int, ...] = (0,)) -> Law:
    """The law of whole sequences from the table and transformers' own processors."""
    law: Law = {prompt: 1.0}
    for position in range(len(prompt) - 1, len(prompt) - 1 + LENGTH):
        longer: Law = {}
        for sequence, weight in law.items():
            logits = TARGET.table[position, sequence[-1]]
            probs = reference_law(params, logits, sequence, prompt=len(prompt))
            for token, p in enumerate(probs.tolist()):
                if p > 0:
                    longer[(*sequence, token)] = weight * p
        law = longer
    return law


def round_by_round_law(
    params: SamplingParams,
    policy: LookaheadPolicy,
    drafter: Drafter,
    target: TableLM = TARGET,
    length: int = LENGTH,
    prompt: tuple[int, ...] = (0,),
) -> Law:
    """The law of whole sequences, each round enumerated from each prefix: for policies without memory."""
    model = CachedModel(target, width=4)
    end = len(prompt) + length
    partial: Law = {prompt: 1.0}
    whole: Law = {}
    while partial:
        tokens, weight = partial.popitem()

        def run(draws: ScriptedDraws, tokens: tuple[int, ...] = tokens) -> tuple[int, ...]:
            if isinstance(policy, CoinPolicy):
                policy.draws = draws
            model.start(tokens, end)
            drafter.reset(end)
            law = token_law(params, tokens, prompt=len(prompt))
            emitted, _ = decode_round(
                tokens, model, drafter, policy, law, draws, gamma_limit=end - len(tokens) - 1
            )
            return (*tokens, *emitted)

        for longer, chance in enumerate_law(run).items():
            into = whole if len(longer) == end else partial
            into[longer] = into.get(longer, 0.0) + weight * chance
    return whole


def whole_path_law(
    params: SamplingParams,
    make_policy: Callable[[], LookaheadPolicy],
    drafter: Drafter,
    processors: Sequence[Processor] = (),
    prompt: tuple[int, ...] = (0,),
) -> Law:
    """The law of whole sequences, all draws of all rounds enumerated together, each with a new policy."""
    model = CachedModel(TARGET, width=4)
    end = len(prompt) + LENGTH

    def run(draws: ScriptedDraws) -> tuple[int, ...]:
        policy = make_policy()
        tokens = [*prompt]
        model.start(tokens, end)
        drafter.reset(end)
        policy.begin_request(params)
        law = token_law(params, tokens, prompt=len(prompt), processors=processors)
        while len(tokens) < end:
            emitted, _ = decode_round(
                tokens, model, drafter, policy, law, draws, gamma_limit=end - len(tokens) - 1
            )
            tokens += emitted
        return tuple(tokens)

    return enumerate_law(run)


def largest_difference(one: Law, other: Law) -> float:
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_loop_emits_the_targets_law(params: SamplingParams, policy: functools.partial) -> None:  # type: ignore[type-arg]
    """B05, B10, B11 and B13: every setting acts at every row of a block, on both sides of the test."""
    drafter = ModelDrafter(DRAFT, width=4)
    law = round_by_round_law(params, policy(), drafter)
    assert largest_difference(law, target_law(params)) < TOLERANCE


class CountingLookup(PromptLookupDrafter):
    """Notes how many tokens it drafted in each round."""

    def __init__(self) -> None:
        super().__init__(max_ngram=2, min_ngram=1)
        self.gammas: set[int] = set()

    def propose(self, *asked: Any) -> Proposal:
        proposal = super().propose(*asked)
        self.gammas.add(len(proposal.tokens))
        return proposal


LOOKUP_PROMPT = (2, 0, 1, 2)  # a match at once; what follows it is a match or none


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("name", ["γ=2", "coins"])
def test_prompt_lookup_emits_the_targets_law(params: SamplingParams, name: str) -> None:
    drafter = CountingLookup()
    law = round_by_round_law(params, POLICIES[name](), drafter, prompt=LOOKUP_PROMPT)
    assert largest_difference(law, target_law(params, LOOKUP_PROMPT)) < TOLERANCE
    assert 2 in drafter.gammas


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.7])
def test_prompt_lookup_keeps_the_law_from_round_to_round(temperature: float) -> None:
    params, drafter = SamplingParams(temperature=temperature), CountingLookup()
    law = whole_path_law(params, lambda: StatefulPolicy(2), drafter)
    assert largest_difference(law, target_law(params)) < TOLERANCE
    assert temperature == 0.0 or {0, 1} <= drafter.gammas


class HalfSureLookup(PromptLookupDrafter):
    """The trap: says that its candidate was drawn from a law that is not one-hot."""

    def propose(self, *asked: Any) -> Proposal:
        proposal = super().propose(*asked)
        flat = 0.5 * dense(proposal.probs).double() + 0.125
        return Proposal(proposal.tokens, flat, proposal.steps)


def test_a_lookup_that_reports_another_law_is_caught() -> None:
    params = SamplingParams()
    trap = HalfSureLookup(max_ngram=2, min_ngram=1)
    law = round_by_round_law(params, FixedLookahead(2), trap, prompt=LOOKUP_PROMPT)
    assert largest_difference(law, target_law(params, LOOKUP_PROMPT)) > 1e-3


def adaptive() -> AdaptiveLookahead:
    """The real controller, where drafting pays now and then; it learns from round to round."""
    costs = RoundCosts(draft_step=0.1, verify=(1.0, 1.05, 1.1))
    return AdaptiveLookahead(predictor(), latency_table(costs), gamma_max=2)


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look at the clock be a second after the last: the same path, the same decisions."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr("foredraft.spec.round.time", clock)


POLICIES_WITH_MEMORY = {
    "stateful": lambda: StatefulPolicy(2),
    "adaptive": adaptive,
    "heuristic": lambda: HeuristicSchedule(start=1, gamma_max=2),
    "confidence": lambda: ConfidenceThreshold(0.5, gamma_max=2),
    "survival": lambda: SurvivalThreshold(predictor(), 0.5, gamma_max=2),
    "entropy": lambda: EntropyBound(1.0, gamma_max=2),
    "bandit": lambda: GammaBandit((2, 0, 1)),
}


@pytest.mark.parametrize("make_policy", POLICIES_WITH_MEMORY.values(), ids=POLICIES_WITH_MEMORY)
@pytest.mark.parametrize("name", ["T=0", "top_k=2"])
@pytest.mark.usefixtures("steady_clock")
def test_a_policy_with_memory_keeps_the_law(name: str, make_policy: Any) -> None:
    law = whole_path_law(PARAMS[name], make_policy, ModelDrafter(DRAFT, width=4))
    assert largest_difference(law, target_law(PARAMS[name])) < TOLERANCE


class CallCounter:
    """Has state of its own: favours another token at every call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        assert input_ids.shape[1] == self.calls, "not one call for each position, in order"
        scores[:, (self.calls + int(input_ids[0, -1])) % scores.shape[-1]] += 1.5
        return scores


@pytest.mark.parametrize("name", ["T=0", "top_k=2"])
def test_b14_a_processor_with_state_keeps_the_law(name: str) -> None:
    params, counter = PARAMS[name], CallCounter()
    law = whole_path_law(params, lambda: StatefulPolicy(2), ModelDrafter(DRAFT, width=4), [counter])
    expected: Law = {(0,): 1.0}
    for position in range(LENGTH):
        longer: Law = {}
        for sequence, weight in expected.items():
            logits = TARGET.table[position, sequence[-1]].clone()
            logits[(position + 1 + sequence[-1]) % 4] += 1.5
            for token, p in enumerate(reference_law(params, logits, sequence).tolist()):
                longer[(*sequence, token)] = weight * p
        expected = longer
    assert largest_difference(law, expected) < TOLERANCE
    assert counter.calls == 0  # the object that was passed in is never called


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_draft_temperature_and_a_cut_head_keep_the_law(temperature: float) -> None:
    kept = torch.tensor([0, 2, 3])
    cut = TableLM(DRAFT.table[:, :, kept])
    drafter = ModelDrafter(cut, width=4, kept=kept, temperature=0.6)
    params = SamplingParams(temperature=temperature)
    law = round_by_round_law(params, FixedLookahead(2), drafter)
    assert largest_difference(law, target_law(params)) < TOLERANCE


@pytest.mark.parametrize("temperature", [0.0, 0.5, 0.75, 1.0])
def test_calibrated_draft_temperatures_keep_the_law(temperature: float) -> None:
    """Also between two of them: q is the law that was really drawn from."""
    factors = DraftTemperature(((0.5, 0.6), (1.0, 1.4)))
    drafter = ModelDrafter(DRAFT, width=4, temperature=factors)
    params = SamplingParams(temperature=temperature)
    law = round_by_round_law(params, FixedLookahead(2), drafter)
    assert largest_difference(law, target_law(params)) < TOLERANCE


def test_the_law_drawn_from_is_that_of_the_calibrated_temperature() -> None:
    factors = DraftTemperature(((0.5, 0.6), (1.0, 1.4)))
    drafter = ModelDrafter(DRAFT, width=4, temperature=factors)
    params = SamplingParams(temperature=0.625)
    law = TokenLaw(params, [0], width=4, eos_token_ids=(), device=torch.device("cpu"))
    drafter.reset(8)
    probs = dense(drafter.propose([0], 1, FixedLookahead(1), law, GeneratorDraws(0)).probs)
    # A quarter of the way from 0.6 to 1.4.
    assert torch.allclose(probs[0], (DRAFT.table[0, 0] / (0.625 * 0.8)).softmax(-1))


class DroppingDrafter(ModelDrafter):
    """The trap: drops a token after it was drawn, because its own probability is low."""

    def propose(self, tokens, gamma, policy, law, draws) -> Proposal:  # type: ignore[no-untyped-def]
        proposal = super().propose(tokens, gamma, policy, law, draws)
        kept = len(proposal.tokens)
        if kept and proposal.probs[kept - 1, proposal.tokens[-1]] < 0.4:
            kept -= 1
        return Proposal(proposal.tokens[:kept], dense(proposal.probs)[:kept], proposal.steps)


class WrongLawDrafter(ModelDrafter):
    """Draws from filtered laws and reports the unfiltered ones (public bug B05)."""

    def propose(self, tokens, gamma, policy, law, draws) -> Proposal:  # type: ignore[no-untyped-def]
        proposal = super().propose(tokens, gamma, policy, law, draws)
        flat = 0.5 * dense(proposal.probs) + 0.125
        return Proposal(proposal.tokens, flat, proposal.steps)


@pytest.mark.parametrize("trap", [DroppingDrafter, WrongLawDrafter])
def test_b05_a_biased_drafter_is_caught(trap: type[ModelDrafter]) -> None:
    params = SamplingParams()
    law = round_by_round_law(params, FixedLookahead(2), trap(DRAFT, width=4))
    assert largest_difference(law, target_law(params)) > 1e-3


def test_dropping_turns_seven_three_into_eighty_five_fifteen() -> None:
    # DSpark, appendix A: p = (.7, .3), q = (.5, .5); only token 0 is verified, token 1 is dropped.
    class KeepZero(ModelDrafter):
        def propose(self, tokens: Sequence[int], *rest) -> Proposal:  # type: ignore[no-untyped-def]
            proposal = super().propose(tokens, *rest)
            return (
                proposal if proposal.tokens == [0] else Proposal([], dense(proposal.probs)[:0], 1)
            )

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


class MemoModel(CachedModel):
    """A real model whose logits are computed once for each context."""

    def __init__(self, model: Any, *, width: int) -> None:
        super().__init__(model, width=width)
        self.memo: dict[tuple[int, ...], torch.Tensor] = {}
        self.fed: list[int] = []
        self.reset(16)

    def advance(self, new: Sequence[int], keep: int = 1) -> torch.Tensor:
        self.fed = [*self.fed[: self.cover], *new]
        rows = []
        for end in range(len(self.fed) - keep + 1, len(self.fed) + 1):
            context = tuple(self.fed[:end])
            if context not in self.memo:
                self.reset(16)
                self.memo[context] = super().advance(list(context)).clone()
            rows.append(self.memo[context])
        self._cache.cover = len(self.fed)
        return torch.cat(rows)


@pytest.mark.parametrize(
    ("params", "times"),
    [
        (SamplingParams(), 20_000),
        (SamplingParams(temperature=0.7, top_k=5), 20_000),
        (SamplingParams(top_p=0.8), 20_000),
        (
            SamplingParams(repetition_penalty=1.5, frequency_penalty=1.5, presence_penalty=-1.0),
            5_000,
        ),
        (SamplingParams(bad_words=((1, 7), (5,), (4, 4)), logit_bias={3: 1.5}, top_p=0.9), 5_000),
    ],
    ids=["T=1", "T=0.7,top_k=5", "top_p=0.8", "penalties", "bad_words,bias"],
)
def test_two_tokens_of_a_tiny_llama_follow_its_law(params: SamplingParams, times: int) -> None:
    # Chi-square over the pairs of tokens, 20,000 or 5,000 draws, cells expected less than 5 times merged; the
    # threshold is passed by chance once in 100,000 runs; fixed seed.
    target = MemoModel(tiny_llama(vocabulary=12, sharpness=2.0), width=12)
    drafter = ModelDrafter(tiny_llama(vocabulary=12, seed=4, sharpness=2.0), width=12)
    drafter.cached = MemoModel(drafter.cached.model, width=12)
    draws = GeneratorDraws(5)
    policy = FixedLookahead(2)
    counts = torch.zeros(12, 12)
    accepted = 0
    for _ in range(times):
        tokens = [3, 1]
        target.reset(16)
        drafter.reset(16)
        law = token_law(params, tokens, prompt=2, width=12)
        while len(tokens) < 4:
            emitted, outcome = decode_round(
                tokens, target, drafter, policy, law, draws, gamma_limit=2
            )
            tokens += emitted
            accepted += outcome.accepted
        counts[tokens[2], tokens[3]] += 1
    assert accepted > times / 4  # both ways of emitting are well represented

    def next_law(tokens: list[int]) -> torch.Tensor:
        target.reset(16)
        return reference_law(params, target.advance(tokens), tokens, prompt=2)

    first = next_law([3, 1])
    never = torch.zeros(12)  # what follows a token that is never said was not computed
    pairs = torch.stack([p * next_law([3, 1, x]) if p > 0 else never for x, p in enumerate(first)])
    assert counts[pairs == 0].sum() == 0
    expected = times * pairs.flatten()
    large = expected >= 5
    expected = torch.cat([expected[large], expected[~large].sum()[None]])
    found = torch.cat([counts.flatten()[large], counts.flatten()[~large].sum()[None]])
    some = expected > 0
    statistic = float(((found - expected)[some] ** 2 / expected[some]).sum())
    assert statistic < chi2.isf(1e-5, int(some.sum()) - 1)
