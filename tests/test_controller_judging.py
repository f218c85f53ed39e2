"""Policies side by side: the sums are those of the replays, the bounds lie where they must."""

from __future__ import annotations

import json

import pytest
import replay as benchmark
import torch
from controller_dense_sim import GAMMA, dense

from controller_sim import table
from foredraft.controller import AdaptiveLookahead, RoundCosts, fit_predictor_from_dense
from foredraft.controller.informed import InformedLookahead, informed_bound
from foredraft.controller.judging import (
    add,
    after_switch,
    flat_costs,
    join,
    judge,
    judge_fixed,
    peers,
    priced,
    quickest,
)
from foredraft.controller.oracle import best_fixed, replay_oracle
from foredraft.controller.replay import replay, replay_fixed
from foredraft.data import DenseText
from foredraft.spec import FixedLookahead

pytestmark = pytest.mark.usefixtures("one_thread")
FLAT = flat_costs(0.1, GAMMA)
STAIRS = RoundCosts(draft_step=0.05, verify=(1.0, 1.6, 1.4, 1.4, 2.2, 2.1, 2.2))
EASY, HARD = 1.4, -1.0


@pytest.fixture(scope="module")
def texts() -> list[DenseText]:
    """Two domains in turn: one where the draft is mostly right, one where it is not."""
    return [
        dense(40, mean=mean, seed=seed, id=f"{domain}{seed}", domain=domain)
        for seed in range(4)
        for domain, mean in (("easy", EASY), ("hard", HARD))
    ]


def test_a_total_is_the_sum_of_its_domains(texts: list[DenseText]) -> None:
    run = judge(lambda: FixedLookahead(3), texts, STAIRS, setting="three")
    assert run.total == add(run.domains["easy"], run.domains["hard"])
    assert run.total.tokens == sum(len(text.tokens) for text in texts)
    whole = replay(FixedLookahead(3), texts, STAIRS)
    assert (run.total.gammas, run.setting) == (whole.gammas, "three")
    assert run.total.seconds == pytest.approx(whole.seconds)
    assert judge_fixed(3, texts, STAIRS).total.seconds == pytest.approx(whole.seconds)
    assert run.domains["easy"].tokens_per_second > run.domains["hard"].tokens_per_second


def test_a_policy_keeps_what_it_learns_from_domain_to_domain(texts: list[DenseText]) -> None:
    predictor = fit_predictor_from_dense(texts).predictor
    made = []

    def make() -> AdaptiveLookahead:
        made.append(AdaptiveLookahead(predictor, table(FLAT), gamma_max=GAMMA))
        return made[-1]

    judge(make, texts, FLAT)
    assert len(made) == 1
    assert sum(made[0].kinds.values()) > 100


def test_a_policy_that_knows_no_costs_is_replayed_once_and_priced(texts: list[DenseText]) -> None:
    makes = peers(fit_predictor_from_dense(texts).predictor, GAMMA)
    assert set(makes) == {"transformers heuristic", "confidence threshold", "SpecDec++", "SVIP"}
    for settings in makes.values():
        runs = {name: judge(make, texts, FLAT, setting=name) for name, make in settings.items()}
        best = quickest(priced(run, STAIRS) for run in runs.values())
        again = judge(settings[best.setting], texts, STAIRS)
        assert again.total.seconds == pytest.approx(best.total.seconds)
        assert again.domains["hard"].seconds == pytest.approx(best.domains["hard"].seconds)
        assert best.total.tokens_per_second == max(
            priced(run, STAIRS).total.tokens_per_second for run in runs.values()
        )


def test_a_run_that_looked_in_vain_cannot_be_priced(texts: list[DenseText]) -> None:
    class LookOnly(FixedLookahead):
        def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
            return False

    run = judge(lambda: LookOnly(2), texts[:1], FLAT)
    with pytest.raises(ValueError, match="draft steps for 0 tokens cannot be priced"):
        priced(run, STAIRS)


@pytest.mark.parametrize("costs", [FLAT, STAIRS], ids=["flat", "stairs"])
def test_the_informed_bound_lies_between_the_best_fixed_gamma_and_the_oracle(
    costs: RoundCosts, texts: list[DenseText]
) -> None:
    predictor = fit_predictor_from_dense(texts).predictor
    bound = informed_bound(texts, costs, predictor).tokens_per_second
    ours = judge(lambda: AdaptiveLookahead(predictor, table(costs), gamma_max=GAMMA), texts, costs)
    fixed = best_fixed(texts, costs)[1].tokens_per_second
    assert 1.02 * fixed < bound < replay_oracle(texts, costs).tokens_per_second
    assert ours.total.tokens_per_second < 1.02 * bound


def test_an_informed_policy_that_expects_nothing_decodes_plainly(texts: list[DenseText]) -> None:
    predictor = fit_predictor_from_dense(texts).predictor
    dear = RoundCosts(draft_step=3.0, verify=(1.0,) * (GAMMA + 1))
    run = replay(InformedLookahead(predictor, dear, 1.0, gamma_max=GAMMA), texts, dear)
    assert set(run.gammas) == {0}
    assert informed_bound(texts, dear, predictor).seconds == pytest.approx(run.seconds)
    with pytest.raises(ValueError, match="texts must not be empty"):
        informed_bound([], dear, predictor)


def test_joined_texts_decode_as_they_did_apart(texts: list[DenseText]) -> None:
    apart = replay_fixed(texts, STAIRS, 2)
    joined = replay_fixed([join(texts)], STAIRS, 2)
    assert (joined.tokens, joined.rounds, joined.gammas) == (
        apart.tokens,
        apart.rounds,
        apart.gammas,
    )


def test_a_switch_costs_nothing_where_nothing_is_learned(texts: list[DenseText]) -> None:
    easy, hard = ([t for t in texts if t.domain == name] for name in ("easy", "hard"))
    assert after_switch(lambda: FixedLookahead(2), easy, hard, FLAT) == pytest.approx((1.0, 1.0))


def test_ours_follows_a_switch_within_30_rounds(texts: list[DenseText]) -> None:
    """The issue asks for 90 % of the settled speed after 30 rounds."""
    predictor = fit_predictor_from_dense(texts).predictor
    easy, hard = ([t for t in texts if t.domain == name] for name in ("easy", "hard"))
    for before, after in ((easy, hard), (hard, easy)):
        _, later = after_switch(
            lambda: AdaptiveLookahead(predictor, table(FLAT), gamma_max=GAMMA), before, after, FLAT
        )
        assert later > 0.9


def test_the_benchmark_has_a_row_for_each_policy(texts: list[DenseText]) -> None:
    mixed = benchmark.mixed(sorted(texts, key=lambda text: text.domain))
    assert [text.domain for text in mixed[:4]] == ["easy", "hard", "easy", "hard"]
    figures = benchmark.compare(mixed[:4], mixed[4:], {"stairs": STAIRS})
    rows = figures["costs"]["stairs"]["rows"]
    assert rows["plain"]["total"] == pytest.approx(1.0)
    assert rows["oracle"]["share of gain"] == pytest.approx(1.0)
    assert rows["best fixed γ"]["share of gain"] == pytest.approx(0.0)
    top = max(row["total"] for row in rows.values())
    assert rows["oracle"]["total"] == top
    assert set(rows["ours"]["domains"]) == {"easy", "hard"}
    assert "ours" in benchmark.render(figures)
    json.dumps(figures)
