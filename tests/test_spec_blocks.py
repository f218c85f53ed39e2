"""Every row of a block obeys the request, whatever was proposed: point masses, hostile drafts, cold laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from foredraft.spec import (
    CachedModel,
    FixedLookahead,
    GeneratorDraws,
    LookaheadPolicy,
    Proposal,
    SamplingParams,
    TokenLaw,
    decode_round,
)
from toys import TableLM, enumerate_law, random_table

TARGET = random_table(seed=1)


class PointMass:
    """Proposes one fixed choice of the target's ranking, as a point mass: q is one-hot."""

    context = 8
    gives_logits = False

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def reset(self, capacity: int) -> None: ...

    def roll_back(self, length: int) -> None: ...

    def twin(self) -> Any:
        return self

    def for_rows(self, rows: int) -> Any:
        raise ValueError("a point mass is proposed for one row at a time")

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        law: TokenLaw,
        draws: Any,
    ) -> Proposal:
        drafted: list[int] = []
        for place in range(gamma):
            logits = TARGET.table[len(tokens) - 1 + place, [*tokens[-1:], *drafted][-1]]
            drafted.append(int(logits.argsort(descending=True)[self.rank]))
        probs = torch.nn.functional.one_hot(torch.tensor(drafted), 4).double()
        return Proposal(drafted, probs, gamma)


def law_of(params: SamplingParams) -> TokenLaw:
    return TokenLaw(params, [0], width=4, eos_token_ids=(), device=torch.device("cpu"))


def three_tokens(params: SamplingParams, drafter: Any, gamma: int) -> dict[tuple[int, ...], float]:
    """The law of three tokens after the prompt [0], all ways of chance enumerated."""

    def run(draws: Any) -> tuple[int, ...]:
        target, tokens, law = CachedModel(TARGET, width=4), [0], law_of(params)
        target.start(tokens, 8)
        while len(tokens) < 4:
            emitted, _ = decode_round(
                tokens, target, drafter, FixedLookahead(gamma), law, draws,
                gamma_limit=3 - len(tokens),
            )  # fmt: skip
            tokens += emitted
        return tuple(tokens)

    return enumerate_law(run)


SETTINGS = {
    "T=1": SamplingParams(),
    "T=0": SamplingParams(temperature=0.0),
    "top_k=2": SamplingParams(top_k=2),
    "top_p=0.6": SamplingParams(top_p=0.6),
    "min_p=0.3": SamplingParams(min_p=0.3),
    "frequency": SamplingParams(frequency_penalty=1.5, repetition_penalty=1.3),
    "bad_words": SamplingParams(bad_words=((1, 2), (0, 3), (3, 3))),
}


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_b06_b10_b11_a_point_mass_draft_changes_no_row(name: str, rank: int) -> None:
    """The draft proposes the target's best token, or its third-best, which top_k = 2 never lets through."""
    params = SETTINGS[name]
    plain = three_tokens(params, None, 0)
    drafted = three_tokens(params, PointMass(rank), 2)
    for sequence in plain.keys() | drafted.keys():
        assert drafted.get(sequence, 0.0) == pytest.approx(plain.get(sequence, 0.0), abs=1e-12)
    if name in ("top_k=2", "T=0"):
        assert all(len(plain) <= 8 and sequence in plain for sequence in drafted)


@pytest.mark.parametrize("seed", range(5))
def test_b07_temperature_zero_is_the_targets_argmax_at_any_seed(seed: int) -> None:
    law = torch.tensor([0.3, 0.5, 0.1, 0.1], dtype=torch.float64)  # the draft proposes 0, of 0.3
    table = TableLM(law.log().expand(4, 4, 4).clone())

    class ProposesZero(PointMass):
        def propose(self, *rest: Any) -> Proposal:
            return Proposal([0], torch.tensor([[0.2, 0.3, 0.25, 0.25]]).double(), 1)

    target = CachedModel(table, width=4)
    target.start([0], 4)
    emitted, _ = decode_round(
        [0], target, ProposesZero(0), FixedLookahead(1), law_of(SamplingParams(temperature=0.0)),
        GeneratorDraws(seed), gamma_limit=1,
    )  # fmt: skip
    assert emitted == [1]


class Rejecting(GeneratorDraws):
    """Rejects whatever may be rejected, and notes that all laws are laws."""

    def accepts(self, probability: float) -> bool:
        assert probability == probability
        return False

    def token(self, probs: torch.Tensor) -> int:
        assert not probs.isnan().any()
        assert float(probs.sum()) == pytest.approx(1.0)
        return super().token(probs)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.01),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1e-6, logit_bias={0: -1e9, 1: 3.0}),
        SamplingParams(bad_words=((0,), (1,), (2,))),
        SamplingParams(top_k=1, repetition_penalty=1.5),
    ],
    ids=["T=0.01", "T=0", "T=1e-6", "one token left", "top_k=1"],
)
def test_b08_rejections_where_nothing_is_left_stay_in_the_law(params: SamplingParams) -> None:
    from foredraft.spec import ModelDrafter

    # cut to a head without the one token that is allowed: the draft has nothing to say, too
    for kept in (None, torch.tensor([0, 1])):
        table = TARGET if kept is None else TableLM(TARGET.table[:, :, kept])
        drafter = ModelDrafter(table, width=4, kept=kept)
        for seed in range(20):
            target, tokens, law = CachedModel(TARGET, width=4), [0], law_of(params)
            target.start(tokens, 8)
            drafter.reset(8)
            while len(tokens) < 6:
                emitted, _ = decode_round(
                    tokens, target, drafter, FixedLookahead(2), law, Rejecting(seed),
                    gamma_limit=min(2, 6 - len(tokens)),
                )  # fmt: skip
                tokens += emitted
            if params.bad_words:
                assert set(tokens[1:]) == {3}


def test_forbidding_everything_is_an_error() -> None:
    with pytest.raises(ValueError, match="must leave a token, but they forbid all 4"):
        law_of(SamplingParams(bad_words=((0,), (1,)), logit_bias={2: -torch.inf, 3: -torch.inf}))
    law = law_of(SamplingParams(bad_words=((0,), (1,), (2,), (0, 3))))
    with pytest.raises(ValueError, match="must leave a token"):
        law.probs(torch.zeros(1, 4), [])
    law.commit([1])
    assert law.probs(torch.zeros(1, 4), [])[0].tolist() == [0, 0, 0, 1]
