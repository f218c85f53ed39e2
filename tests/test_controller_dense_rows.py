"""Dense traces as rows to fit on: what the loop would have known, weighed as the loop would meet them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from controller_dense_sim import GAMMA, dense

from controller_sim import Text, predictor, traces
from foredraft.controller import fit_predictor, fit_predictor_from_dense
from foredraft.controller.dense_rows import dense_columns, starts, with_sampled
from foredraft.controller.economics import RoundCosts
from foredraft.controller.features import feature_matrix
from foredraft.controller.replay import replay
from foredraft.controller.trace_rows import TraceRows
from foredraft.data import DenseText, TraceRecorder
from foredraft.spec import FixedLookahead, LookaheadPolicy, OneHot, RoundOutcome, RoundStart

pytestmark = pytest.mark.usefixtures("one_thread")
COSTS = RoundCosts(draft_step=0.1, verify=(1.0,) * (GAMMA + 1))


class Evenly(FixedLookahead):
    """Drafts a γ drawn anew for each round: what the rows' history is made under."""

    def __init__(self, seed: int) -> None:
        super().__init__(GAMMA)
        self.rng = np.random.default_rng(seed)

    def begin_round(self, start: RoundStart) -> int:
        return min(int(self.rng.integers(1, GAMMA + 1)), start.gamma_limit)


class Recorder(TraceRecorder):
    """A recorder that can be replayed: rows of the target past a rejection are not known there."""

    def end_round(self, outcome: RoundOutcome) -> None:
        assert isinstance(outcome.target_probs, OneHot)
        known = OneHot([max(token, 0) for token in outcome.target_probs.tokens], 10)
        super().end_round(replace(outcome, target_probs=known))


def recorded(policy: LookaheadPolicy, text: DenseText) -> list[Any]:
    """Return what a recorder of the loop writes down."""
    recorder = Recorder(policy)
    replay(recorder, [text], COSTS)
    return recorder.rows


def test_rows_know_what_a_recorder_in_the_loop_writes_down() -> None:
    """All but the recent acceptance does not depend on how the round was reached; that is a mean."""
    text = dense(50)
    columns = dense_columns([text])
    rows = {
        (round_, depth): index
        for index, (round_, depth) in enumerate(
            zip(columns["round"], columns["depth"], strict=True)
        )
    }
    names = ["depth", "context_length", "temperature", "top1_logprob", "margin", "entropy",
             "prev_target_top1_logprob", "prev_target_entropy", "tested", "accepted"]  # fmt: skip
    for seed in range(3):
        for row in recorded(Evenly(seed), text):
            position = row.context_length - text.prompt_length
            index = rows[position, row.depth]
            for name in names:
                got, wanted = columns[name][index], getattr(row, name)
                assert got == pytest.approx(wanted, abs=2e-4, nan_ok=True), name


def test_weight_and_recent_acceptance_are_those_of_many_decodings() -> None:
    """1,500 decodings with γ drawn evenly: the standard error of a share is at most 0.013."""
    text = dense(14, mean=0.8)
    runs = 1500
    began, recent = np.zeros(14), np.zeros(14)
    for seed in range(runs):
        rng, position, now = np.random.default_rng(seed), 0, 0.5
        while position < 14:
            began[position] += 1
            recent[position] += now
            drafted = min(int(rng.integers(1, GAMMA + 1)), int(text.gamma_limit[position]))
            accepted = min(drafted, int(text.accepted_length[position]))
            for hit in [1.0] * accepted + [0.0] * (accepted < drafted):
                now += 0.15 * (hit - now)
            position += accepted + 1
    chance, mean = starts(text)
    np.testing.assert_allclose(chance, began / runs, atol=0.05)
    often = began > 200
    np.testing.assert_allclose(mean[often], recent[often] / began[often], atol=0.02)
    assert np.isnan(mean[began == 0]).all()
    assert often.sum() > 5
    assert (began == 0).any()


def test_all_rows_together_weigh_as_one_decoding() -> None:
    texts = [dense(60, seed=seed, id=str(seed)) for seed in range(3)]
    rows = TraceRows.read(dense_columns(texts))
    rounds = sum(float(starts(text)[0][:-1].sum()) for text in texts)  # the last drafts nothing
    assert rows.weight[rows.depth == 1].sum() == pytest.approx(rounds)
    assert len(np.unique(rows.token)) <= 3 * (60 + GAMMA)
    assert len(rows.token) > 3 * len(np.unique(rows.token))


def test_depth_k_teaches_only_where_all_before_it_were_accepted() -> None:
    text = dense(60)
    columns = dense_columns([text])
    deeper = columns["depth"] > text.accepted_length[columns["round"]] + 1
    assert deeper.any()
    assert not columns["tested"][deeper].any()
    assert columns["tested"][~deeper].all()
    shares = TraceRows.read(columns).hazards()
    chance = starts(text)[0]
    for depth in (1, 2, 3):
        met = (text.accepted_length >= depth - 1) & (text.gamma_limit >= depth)
        hits = met & (text.accepted_length >= depth)
        expected = (chance[hits].sum() + 1) / (chance[met].sum() + 2)
        assert shares[depth - 1] == pytest.approx(expected)


def test_a_fit_on_dense_traces_finds_the_truth() -> None:
    """400 tokens, each tested from several positions: as good as a fit on 1,000 traced once."""
    texts = [dense(100, seed=seed, id=str(seed)) for seed in range(4)]
    report = fit_predictor_from_dense(texts, target="t", draft="d")
    features = feature_matrix(traces(Text.make(length=500, mean=0.4, slope=1.7, seed=9)))
    gap = report.predictor.predict(features) - predictor().predict(features)
    assert np.abs(gap).mean() < 0.06
    assert 0.74 < report.auc < 0.9
    assert report.prompts == 4
    assert (report.predictor.target, report.predictor.draft) == ("t", "d")
    assert report.survival[2].predicted == pytest.approx(report.survival[2].observed, abs=0.1)


def test_a_weight_counts_as_so_many_rows() -> None:
    columns = traces(Text.make(length=300, mean=0.4, slope=1.7, seed=3))
    count = len(columns["depth"])
    times = np.random.default_rng(0).integers(1, 4, count)
    often = {name: np.repeat(column, times) for name, column in columns.items()}
    weighed = columns | {"weight": times.astype(float)}
    one, other = TraceRows.read(weighed), TraceRows.read(often)
    assert one.hazards() == pytest.approx(other.hazards())
    assert one.labels(one.tested)[2].sum() == len(other.labels(other.tested)[0])
    by_weight, by_rows = (fit_predictor(each) for each in (weighed, often))
    assert by_weight.acceptance == pytest.approx(by_rows.acceptance)


def test_sampled_rows_come_after_as_requests_of_their_own() -> None:
    columns = dense_columns([dense(40)])
    more = traces(Text.make(length=200, mean=0.4, slope=1.7, seed=3))
    count = len(more["depth"])
    more["domain"] = np.full(count, "e")
    more["temperature"] = np.where(np.arange(count) % 2, 0.7, 0.0)
    both = with_sampled(columns, more)
    added = len(both["depth"]) - len(columns["depth"])
    assert added == count // 2
    assert set(both) == set(columns)
    assert (both["temperature"][-added:] == 0.7).all()
    assert not set(both["request"][-added:].tolist()) & set(columns["request"].tolist())
    rows = TraceRows.read(both)
    assert np.isnan(rows.soft[:-added]).all()
    assert not np.isnan(rows.soft[rows.tested][-5:]).any()
    assert math.isfinite(
        fit_predictor_from_dense([dense(40), dense(40, seed=1, id="b")], sampled=more).log_loss
    )


def test_no_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="texts must not be empty"):
        fit_predictor_from_dense([])
