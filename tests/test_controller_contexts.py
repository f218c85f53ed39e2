"""Latencies by context and by rows of a batch: fitted, measured, saved, and decided by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from controller_sim import GREEDY, predictor, table
from foredraft.controller import (
    AdaptiveConfig,
    AdaptiveLookahead,
    LatencyConfig,
    LatencyTable,
    RoundCosts,
    measure_latency,
    measuring,
)
from foredraft.controller.context_costs import (
    BatchCosts,
    ContextSlopes,
    estimated_batch,
    fit_slope,
)
from foredraft.controller.costs import OnlineCosts
from foredraft.controller.measuring_rows import measure_rows
from foredraft.spec import BatchDecoder, ModelDrafter, RoundOutcome, RoundStart, SpeculativeDecoder
from toys import tiny_llama

FLAT = RoundCosts(draft_step=0.05, verify=(1.0, 1.0, 1.0, 1.2))
SLOPES = ContextSlopes(draft=0.001, verify_one=0.002, verify_most=0.005)
NOTHING = torch.empty(0, 2)


def grown(**given: Any) -> LatencyTable:
    """A table measured at 64 tokens of context."""
    return replace(table(FLAT), slopes=SLOPES, **given)


def test_a_slope_is_fitted_to_the_points_and_is_never_negative() -> None:
    assert fit_slope([64, 512, 2048], [1.064, 1.512, 3.048]) == pytest.approx(0.001)
    assert fit_slope([64, 512], [1.0, 0.9]) == 0.0, "noise: more context does not take less"
    assert fit_slope([64], [1.0]) == 0.0
    with pytest.raises(ValueError, match="draft must be a number in"):
        ContextSlopes(draft=-1.0)


def test_costs_grow_with_the_context_and_keep_the_steps_of_the_curve() -> None:
    assert grown().costs(3) == FLAT
    assert grown().costs(3, context_length=64) == FLAT
    far = grown().costs(2, context_length=1064)
    assert far.draft_step == pytest.approx(1.05)
    assert far.verify == pytest.approx((3.0, 4.0, 5.0)), "2, 3, 4 (of 5) ms a token more"
    before = FLAT
    for context in range(64, 2000, 50):
        now = grown().costs(3, context_length=context)
        assert all(a <= b for a, b in zip(before.verify, now.verify, strict=True))
        assert before.draft_step <= now.draft_step
        before = now
    assert min(replace(grown(), context_length=5000).costs(3, context_length=1).verify) == 0.5


def test_a_batch_is_estimated_as_that_many_tokens_in_one_forward() -> None:
    """4 rows of 1 token: the fourth point of the curve; beyond the curve its second half goes on."""
    verify = (1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0)
    batch = estimated_batch(4, 0.1, verify, 0.01)
    assert batch.verify_seconds[0] == pytest.approx(1.0 / 4)
    assert batch.verify_seconds[1] == pytest.approx((4.0 + 1.0) / 4), "8 tokens: 7, and one more"
    assert batch.draft_step_seconds == pytest.approx(0.1 / 4)
    assert (batch.rows, batch.overhead_seconds) == (4, 0.01)
    flat = estimated_batch(8, 0.1, (1.0, 1.0), 0.0)
    assert flat.verify_seconds == pytest.approx((1 / 8, 1 / 8))


def test_a_measured_batch_goes_before_an_estimated_one() -> None:
    own = BatchCosts(
        rows=4, draft_step_seconds=0.02, verify_seconds=(0.5, 0.6, 0.7, 0.8), overhead_seconds=0.1
    )
    latency = grown(batches=(own,))
    assert latency.costs(2, rows=4).verify == (0.5, 0.6, 0.7)
    assert latency.costs(2, rows=4).plain_overhead == 0.1
    assert latency.costs(2, rows=2).verify[0] == pytest.approx(0.5), "estimated"
    more = latency.costs(3, rows=4, context_length=1064)
    assert more.verify[0] == pytest.approx(0.5 + 2.0), "each row reads its own context"
    with pytest.raises(ValueError, match="rows must be an integer >= 1, got 0"):
        latency.costs(2, rows=0)


def test_slopes_and_batches_are_saved_and_the_schema_before_them_is_read(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    own = BatchCosts(
        rows=4, draft_step_seconds=0.02, verify_seconds=(0.5, 0.6), overhead_seconds=0.1
    )
    grown(batches=(own,)).save(path)
    assert LatencyTable.load(path) == grown(batches=(own,))
    content = json.loads(path.read_text())
    assert content["schema"] == 2
    old = {name: value for name, value in content.items() if name not in ("slopes", "batches")}
    path.write_text(json.dumps(old | {"schema": 1}))
    assert LatencyTable.load(path) == table(FLAT), "measured at one context, taken for all"
    for schema in (0, 3, None):
        path.write_text(json.dumps(content | {"schema": schema}))
        with pytest.raises(ValueError, match=f"schema is {schema}, this version reads 1 and 2"):
            LatencyTable.load(path)
    for broken in ({"slopes": {"draft": -1}}, {"batches": [{"rows": 1}]}, {"slopes": None}):
        path.write_text(json.dumps(content | broken))
        with pytest.raises(ValueError, match="not a usable latency table"):
            LatencyTable.load(path)


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    draft = ModelDrafter(tiny_llama(seed=1, layers=1), width=260)
    return SpeculativeDecoder(tiny_llama(layers=2), None, draft)


def test_longer_contexts_are_measured_where_they_fit(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds whose seconds are known: 10 ms a drafted token and 1 µs a token of context, and so on."""
    asked = []

    def rounds_of(decoder: Any, gamma_max: int, prompt: Any, context: int) -> Any:
        asked.append(context)

        def run(gamma: int) -> RoundOutcome:
            draft = gamma * (0.01 + 1e-6 * context)
            verify = 0.1 + 0.01 * gamma + (2e-6 + 1e-6 * gamma) * context
            return RoundOutcome(
                drafted=gamma, accepted=0, draft_seconds=draft, verify_seconds=verify,
                round_seconds=draft + verify, draft_steps=gamma, target_logits=NOTHING,
                target_probs=NOTHING, draft_probs=NOTHING,
            )  # fmt: skip

        return run

    monkeypatch.setattr(measuring, "_rounds_of", rounds_of)
    config = LatencyConfig(context_length=100, contexts=(50, 300, 200, 4000), repeats=2)
    found = measure_latency(decoder, 4, config=config)
    assert asked == [100, 200, 300], "512 is what the models hold"
    assert found.slopes.draft == pytest.approx(1e-6)
    assert found.slopes.verify_one == pytest.approx(2e-6)
    assert found.slopes.verify_most == pytest.approx(6e-6)
    assert found.costs(4, context_length=1100).verify[2] == pytest.approx(0.12 + 4e-6 * 1100)


def test_real_rounds_are_measured_at_contexts_and_in_batches(
    decoder: SpeculativeDecoder, one_thread: None
) -> None:
    config = LatencyConfig(
        context_length=20, contexts=(60,), repeats=1, max_passes=1, context_repeats=1, rows=(3,)
    )
    found = measure_latency(decoder, 2, config=config)
    (batch,) = found.batches
    assert (batch.rows, len(batch.verify_seconds)) == (3, 3)
    assert min(batch.verify_seconds) > 0.0
    assert batch.draft_step_seconds > 0.0
    assert found.costs(2, rows=3).verify == batch.verify_seconds


def test_a_batch_that_cannot_be_measured_is_refused(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="rows must be an integer >= 2, got 1"):
        measure_rows(decoder, 2, 1)
    with pytest.raises(ValueError, match="contexts must be an integer >= 2"):
        LatencyConfig(contexts=(0,))
    made = BatchDecoder.__init__

    def apart(self: BatchDecoder, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self.obstacle = "they cannot"

    monkeypatch.setattr(BatchDecoder, "__init__", apart)
    with pytest.raises(ValueError, match="rows must be 1 for these models, got 2: they cannot"):
        measure_rows(decoder, 2, 2)


def test_online_costs_are_of_the_context_and_keep_what_they_learned() -> None:
    latency = grown()
    costs = OnlineCosts(latency.costs(3), lambda context: latency.costs(3, context_length=context))
    for _ in range(50):  # twice as slow as the table says
        costs.move(64)
        costs.observe(
            RoundOutcome(
                drafted=2, accepted=0, draft_seconds=0.2, verify_seconds=2.0, round_seconds=2.2,
                draft_steps=2, target_logits=NOTHING, target_probs=NOTHING, draft_probs=NOTHING,
            ),
            behind=1,
        )  # fmt: skip
    assert costs.current.verify[2] == pytest.approx(2.0, rel=0.05)
    costs.move(1064)
    assert costs.current.verify[2] == pytest.approx(2 * 5.0, rel=0.05)
    costs.move(64)
    assert costs.current.verify[2] == pytest.approx(2.0, rel=0.05)


def test_a_round_is_priced_at_its_context() -> None:
    """A draft whose step grows faster than the target's: worth it at 64 tokens, not at 4,000."""
    latency = replace(table(FLAT), slopes=ContextSlopes(draft=0.001))
    policy = AdaptiveLookahead(
        predictor(), latency, config=AdaptiveConfig(slowdown_budget=1e6, probe_share=0.0)
    )
    policy.begin_request(GREEDY)
    assert policy.begin_round(RoundStart(context_length=64, gamma_limit=8)) > 0
    policy.begin_request(GREEDY)
    assert policy.begin_round(RoundStart(context_length=4000, gamma_limit=8)) == 0
    policy.begin_request(GREEDY)
    assert policy.begin_round(RoundStart(context_length=64, gamma_limit=8)) > 0


def test_rows_of_a_batch_start_from_a_batch_s_latencies() -> None:
    """A forward over more tokens takes longer here: one row drafts, eight together do not."""
    rising = RoundCosts(draft_step=0.05, verify=(1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    policy = AdaptiveLookahead(predictor(), table(rising))
    start = RoundStart(context_length=64, gamma_limit=8)
    before = policy.snapshot()
    rows = policy.for_rows(8)
    expected = policy.latency.costs(8, rows=8)
    for row in rows:
        assert isinstance(row, AdaptiveLookahead)
        assert row.snapshot()["verify_seconds"] == pytest.approx(expected.verify)
        assert row.begin_round(start) == 0
    assert policy.snapshot() == before
    (alone,) = policy.for_rows(1)
    assert alone.begin_round(start) > 0
