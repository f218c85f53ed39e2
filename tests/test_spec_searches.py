"""Fast searches against torch's own, filters against what they were, and one-hot laws against rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from foredraft.spec import (
    FixedLookahead,
    Laws,
    ModelDrafter,
    OneHot,
    SamplingParams,
    TokenLaw,
    dense,
    token_probs,
    verify,
)
from foredraft.spec.sampling import filter_top_p
from foredraft.spec.searches import ascending, best_tokens, kth_largest
from toys import ScriptedDraws, TableLM, enumerate_law, random_table


def rows(width: int, *, step: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random logits [6, V] rounded to multiples of `step`, so that many are equal; some impossible."""
    generator = torch.Generator().manual_seed(width)
    logits = 3.0 * torch.randn(6, width, generator=generator, dtype=torch.float64)
    logits = (logits / step).round() * step
    logits[3, : width // 2] = -torch.inf
    logits[4] = 0.5
    return logits.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 5, 3000])
def test_searches_say_what_torch_says(width: int, dtype: torch.dtype) -> None:
    for step in (0.5, 1e-6):
        logits = rows(width, step=step, dtype=dtype)
        assert torch.equal(best_tokens(logits), logits.argmax(-1))
        assert torch.equal(ascending(logits), logits.sort(-1).values.to(ascending(logits)))
        for k in {1, min(3, width), width}:
            expected = logits.topk(k, -1).values[:, -1:]
            assert torch.equal(kth_largest(logits, k), expected.to(kth_largest(logits, k)))


def test_the_lowest_of_equal_tokens_is_the_best() -> None:
    logits = torch.full((2, 50_000), -1.0)
    logits[0, [40_001, 123, 40_000]] = 2.0
    assert best_tokens(logits).tolist() == [123, 0]
    greedy = SamplingParams(temperature=0.0)
    assert token_probs(logits, greedy).argmax(-1).tolist() == [123, 0]
    law = TokenLaw(greedy, [0], width=50_000, eos_token_ids=(), device=logits.device)
    assert law.laws(logits, [7]) == OneHot([123, 0], 50_000)


def filtered_by_sorting(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """transformers' own way, where its sort leaves open in which order equal ones come."""
    ordered, index = logits.sort(dim=-1, stable=True)
    removed = ordered.softmax(-1).cumsum(-1) <= 1.0 - top_p
    removed[:, -1] = False
    return logits.masked_fill(torch.zeros_like(removed).scatter_(-1, index, removed), -torch.inf)


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.75, 0.9, 0.999])
@pytest.mark.parametrize("width", [1, 4, 5000])
def test_top_p_is_bit_for_bit_what_sorting_gives(width: int, top_p: float) -> None:
    for dtype in (torch.float32, torch.float64):
        for step in (1.0, 1e-9):
            logits = rows(width, step=step, dtype=dtype)
            if width == 1:
                logits[3] = 0.0
            expected = filtered_by_sorting(logits, top_p)
            assert torch.equal(filter_top_p(logits, top_p), expected)
            params = SamplingParams(top_p=top_p, temperature=0.8)
            law = filtered_by_sorting(logits / 0.8, top_p).softmax(-1)
            assert torch.equal(token_probs(logits, params), law)


@pytest.mark.parametrize("top_k", [1, 3, 40, 4999])
def test_top_k_keeps_all_equal_ones(top_k: int) -> None:
    for step in (1.0, 1e-9):
        logits = rows(5000, step=step)
        smallest = logits.topk(top_k, -1).values[:, -1:]
        expected = logits.masked_fill(logits < smallest, -torch.inf).softmax(-1)
        assert torch.equal(token_probs(logits, SamplingParams(top_k=top_k)), expected)


def test_one_hot_laws_read_like_rows() -> None:
    laws = OneHot([2, 0], 4)
    whole = dense(laws)
    assert whole.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
    assert laws.shape == tuple(whole.shape)
    assert all(laws[i, x] == whole[i, x] for i in range(2) for x in range(4))
    assert dense(laws, like=whole.double()).dtype == torch.float64
    assert dense(OneHot([], 4)).shape == (0, 4)
    assert dense(whole) is whole


@pytest.mark.parametrize("said", [(0, 1, 2), (0, 3, 2), (3, 3, 3)])
def test_one_hot_laws_are_verified_as_the_rows_they_stand_for(said: tuple[int, ...]) -> None:
    """Certain targets with certain and with uncertain drafts, and certain drafts of uncertain targets."""
    drafted = [0, 1]
    target = OneHot(said, 4)
    certain = OneHot(drafted, 4)
    generator = torch.Generator().manual_seed(3)
    soft = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    soft /= soft.sum(-1, keepdim=True)
    for p, q in ((target, certain), (target, soft[:2]), (soft, certain)):
        as_rows = dense(p, like=soft), dense(q, like=soft)

        def law_of(p: Laws, q: Laws) -> dict[tuple[int, int], float]:
            return enumerate_law(lambda draws: verify(p, q, drafted, draws))

        found, expected = law_of(p, q), law_of(*as_rows)
        assert found.keys() == expected.keys()
        assert found == pytest.approx(expected, abs=1e-12)


def law_of(params: SamplingParams, *processors: Any) -> TokenLaw:
    return TokenLaw(
        params,
        [0],
        width=6,
        eos_token_ids=(1,),
        device=torch.device("cpu"),
        processors=processors,
    )


def test_a_law_knows_whether_it_tells_tokens_apart() -> None:
    filters = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1)
    assert not law_of(filters).knows_ids(0)
    for params in (
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=0.1),
        SamplingParams(logit_bias={2: 1.0}),
        SamplingParams(bad_words=((2,),)),
        SamplingParams(bad_words=((2, 3),)),
    ):
        assert law_of(params).knows_ids(0)
    assert law_of(filters, lambda ids, scores: scores).knows_ids(0)
    law = law_of(SamplingParams(min_tokens=2))
    assert [law.knows_ids(first) for first in (0, 1, 2)] == [True, True, False]
    law.commit([3, 3])
    assert not law.knows_ids(0)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, top_k=2),
        SamplingParams(top_p=0.6),
        SamplingParams(min_tokens=2, max_tokens=9, stop_token_ids=(5,)),
        SamplingParams(temperature=0.0, logit_bias={4: 9.0}),
    ],
    ids=["T=1", "T=0", "top_k", "top_p", "min_tokens", "bias,T=0"],
)
def test_a_cut_head_proposes_the_laws_it_drew_from(params: SamplingParams) -> None:
    """Drawn in the cut vocabulary where that can be, the laws are those of spread logits."""
    kept = torch.tensor([0, 2, 4, 5])
    table = random_table(seed=4, vocabulary=6).table
    cut = ModelDrafter(TableLM(table[:, :, kept]), width=6, kept=kept)
    whole = table.clone()
    whole[:, :, [1, 3]] = -1e30  # what the cut one cannot say
    spread = ModelDrafter(TableLM(whole), width=6)

    def propose(drafter: ModelDrafter, draws: ScriptedDraws) -> tuple[Sequence[int], Any]:
        drafter.reset(8)
        proposal = drafter.propose([0], 3, FixedLookahead(3), law_of(params), draws)
        assert proposal.probs.shape == (3, 6)
        laws = dense(proposal.probs, like=table)
        assert all(law[token] > 0 for law, token in zip(laws, proposal.tokens, strict=True))
        return tuple(proposal.tokens), tuple(round(p, 9) for p in laws.flatten().tolist())

    one = enumerate_law(lambda draws: propose(cut, draws))
    other = enumerate_law(lambda draws: propose(spread, draws))
    assert one.keys() == other.keys()
    assert one == pytest.approx(other, abs=1e-9)
