"""Batched draws and verification against single ones, the exact law of a batch, masks and padding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from foredraft.spec import (
    BatchDecoder,
    Draws,
    FixedLookahead,
    GeneratorDraws,
    ModelDrafter,
    RowByRow,
    SamplingParams,
    SpeculativeDecoder,
    Together,
    strip_padding,
    token_probs,
)
from foredraft.spec.batch_cached import PADDING, like_lengths
from foredraft.spec.batch_draws import StreamDraws
from foredraft.spec.batch_masks import row_masks
from toys import RowsTableLM, ScriptedDraws, enumerate_law, random_table

WIDTH = 40


def random_laws(rows: int, generator: torch.Generator, params: SamplingParams) -> torch.Tensor:
    logits = 2.0 * torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    return token_probs(logits, params)


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(top_k=3)], ids=["T=1", "top_k"]
)
def test_verifying_together_is_verifying_row_by_row(params: SamplingParams) -> None:
    generator = torch.Generator().manual_seed(0)
    together, by_row = Together(), RowByRow()
    lengths = set()
    for trial in range(150):
        gammas = torch.randint(0, 6, (5,), generator=generator).tolist()
        target = [random_laws(gamma + 1, generator, params) for gamma in gammas]
        draft = [
            0.5 * random_laws(gamma, generator, params) + 0.5 * law[:gamma]
            for gamma, law in zip(gammas, target, strict=True)
        ]
        drafted = [law.multinomial(1, generator=generator)[:, 0].tolist() if len(law) else []
                   for law in draft]  # fmt: skip
        streams = [together.source(trial + row) for row in range(5)]
        singles = [by_row.source(trial + row) for row in range(5)]
        found = together.verify(target, draft, drafted, streams)
        assert found == by_row.verify(target, draft, drafted, singles)
        lengths |= {length for length, _ in found}
        # and the streams stand at the same place afterwards
        laws = random_laws(5, generator, params)
        assert together.tokens(laws, streams) == by_row.tokens(laws, singles)
    assert lengths == set(range(6))


def test_streams_are_the_draws_of_the_same_seed() -> None:
    stream, single = StreamDraws(7), GeneratorDraws(7)
    law = torch.full((9,), 1 / 9)
    for step in range(200):
        stream.peek(step % 70)
        assert stream.token(law) == single.token(law)
        assert stream.accepts(0.5) == single.accepts(0.5)


def test_b23_unused_places_are_always_rejected() -> None:
    # Rows draft 0, 2 and 4 tokens, all id 0, which is also what fills unused places, and the target
    # says nothing else: whatever is let through beyond a row's own draft shows in its accepted length.
    zero = torch.nn.functional.one_hot(torch.zeros(5, dtype=torch.int64), WIDTH).double()  # [5, V]
    gammas = [0, 2, 4]
    sources = [StreamDraws(row) for row in range(3)]
    found = Together().verify(
        [zero[: gamma + 1] for gamma in gammas],
        [zero[:gamma] for gamma in gammas],
        [[0] * gamma for gamma in gammas],
        sources,
    )
    assert found == [(0, 0), (2, 0), (4, 0)]


def test_equal_laws_that_are_rejected_are_drawn_from_the_target() -> None:
    # p = q but for rounding, and a uniform above p / q: nothing is left, so p itself (B08).
    p = torch.tensor([[0.5, 0.5, 0.0]] * 2, dtype=torch.float64)
    q = p[:1] * (1 + 1e-9)

    class High(StreamDraws):
        def peek(self, count: int) -> list[float]:
            return ([1 - 1e-12, 0.9] * count)[:count]

    assert Together().verify([p], [q], [[0]], [High(0)]) == [(0, 1)]


class SharedScript(RowByRow):
    """All rows draw from one script, so that all ways chance can go are enumerated together."""

    def __init__(self) -> None:
        self.script = ScriptedDraws([])

    def source(self, seed: int | None) -> Draws:
        return self.script


class OwnGamma(FixedLookahead):
    def __init__(self, *gammas: int) -> None:
        super().__init__(max(gammas))
        self.gammas = gammas

    def for_rows(self, count: int) -> list[Any]:
        return [FixedLookahead(gamma) for gamma in self.gammas[:count]]


TARGET = RowsTableLM(random_table(seed=1).table)
DRAFT = RowsTableLM(random_table(seed=2).table)
ASKED = [
    SamplingParams(top_k=2, max_tokens=3),
    SamplingParams(temperature=0.7, top_k=2, max_tokens=2),
]


def target_law(start: int, params: SamplingParams) -> dict[tuple[int, ...], float]:
    law: dict[tuple[int, ...], float] = {(start,): 1.0}
    for position in range(params.max_tokens):
        law = {
            (*sequence, token): weight * p
            for sequence, weight in law.items()
            for token, p in enumerate(
                token_probs(TARGET.table[position, sequence[-1]][None], params)[0].tolist()
            )
            if p > 0
        }
    return law


@pytest.mark.parametrize("gammas", [(2, 1), (0, 1)], ids=str)
def test_the_joint_law_of_two_rows_is_the_product_of_the_targets(gammas: tuple[int, int]) -> None:
    draws = SharedScript()
    decoder = SpeculativeDecoder(TARGET, None, ModelDrafter(DRAFT, width=4), OwnGamma(*gammas))
    batch = BatchDecoder(decoder, rows=2, draws=draws)

    def run(script: ScriptedDraws) -> tuple[tuple[int, ...], ...]:
        draws.script = script
        return tuple(
            (*output.prompt_token_ids, *output.token_ids)
            for output in batch.generate([[0], [3]], ASKED)
        )

    law = enumerate_law(run)
    laws = [target_law(start, params) for start, params in zip((0, 3), ASKED, strict=True)]
    pairs = list(itertools.product(*laws))
    assert law.keys() == set(pairs)
    for pair in pairs:
        assert abs(law[pair] - laws[0][pair[0]] * laws[1][pair[1]]) < 1e-12


def test_a_biased_batch_is_caught() -> None:
    class Lenient(SharedScript):
        def verify(self, target_probs: Any, draft_probs: Any, drafted: Any, sources: Any) -> Any:
            doubled = [0.5 * probs for probs in draft_probs]  # as if q were half of what it is
            return super().verify(target_probs, doubled, drafted, sources)

    params = SamplingParams(max_tokens=2)
    draws = Lenient()
    decoder = SpeculativeDecoder(TARGET, None, ModelDrafter(DRAFT, width=4), FixedLookahead(1))
    batch = BatchDecoder(decoder, rows=1, draws=draws)

    def run(script: ScriptedDraws) -> tuple[int, ...]:
        draws.script = script
        return (0, *batch.generate([[0]], params)[0].token_ids)

    law, expected = enumerate_law(run), target_law(0, params)
    assert max(abs(law[key] - expected.get(key, 0.0)) for key in law) > 1e-3


def test_forwards_are_split_where_padding_would_cost_more() -> None:
    assert like_lengths([1, 1, 1]) == [[0, 1, 2]]
    assert like_lengths([5, 1, 3]) == [[0, 1, 2]]
    assert like_lengths([1, 500, 2, 498]) == [[1, 3], [0, 2]]
    for lengths in ([9, 1, 7, 300, 2, 290, 31, 1], [40] * 9 + [1] * 9):
        groups = like_lengths(lengths)
        assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
        for group in groups:
            own = [lengths[place] for place in group]
            assert group == sorted(group)
            assert len(own) * max(own) - sum(own) <= PADDING


def test_masks_hold_to_each_rows_position_and_window() -> None:
    queries = torch.tensor([[0, 4], [1, 2]])
    masks = row_masks({"full_attention": None, "sliding_attention": 2}, queries, 5, None)
    assert isinstance(masks, dict)
    full, sliding = masks["full_attention"], masks["sliding_attention"]
    assert full[0, 0].int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert full[1, 0].int().tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert sliding[0, 0].int().tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 1]]
    bias = row_masks({"full_attention": None}, queries, 5, torch.float32)
    assert isinstance(bias, torch.Tensor)
    assert torch.equal(bias == 0.0, full)
    assert (bias[~full] == torch.finfo(torch.float32).min).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_b29_padding_on_either_side_is_stripped(side: str) -> None:
    prompts = [[5, 6, 7], list(range(12)), [9]]
    for pad in (0, 5, 250):  # whatever stands in padded places
        ids, mask = torch.full((3, 12), pad), torch.zeros(3, 12, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            at = slice(12 - len(prompt), 12) if side == "left" else slice(0, len(prompt))
            ids[row, at], mask[row, at] = torch.tensor(prompt), 1
        assert strip_padding(ids, mask) == prompts
        assert strip_padding(ids, mask.bool()) == prompts


def test_masks_that_are_no_padding_are_refused() -> None:
    ids = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="row 1 has no token"):
        strip_padding(ids, torch.tensor([[1, 1, 1], [0, 0, 0]]))
    with pytest.raises(ValueError, match="row 0 has padding between its tokens"):
        strip_padding(ids, torch.tensor([[1, 0, 1], [1, 1, 1]]))
    with pytest.raises(ValueError, match=r"must both be \[B, L\], got \(2, 3\) and \(2, 2\)"):
        strip_padding(ids, torch.ones(2, 2))
