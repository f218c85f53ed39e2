"""Signals of a distribution against their definitions, and the memory between rounds."""

import math

import pytest
import torch

from foredraft.data import History, signals
from foredraft.spec import RoundOutcome


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 100.0])
@pytest.mark.parametrize("shift", [-1000.0, 0.0, 1000.0])
def test_signals_match_their_definitions(scale: float, shift: float) -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * scale + shift
    exact = logits.double()
    laws = exact.softmax(0)
    found = signals(logits)
    assert found.top1_logprob == pytest.approx(float(exact.log_softmax(0).max()), abs=1e-4)
    top = exact.sort(descending=True).values
    assert found.margin == pytest.approx(min(float(top[0] - top[1]), 50.0), abs=1e-4)
    assert found.entropy == pytest.approx(float(torch.special.entr(laws).sum()), abs=1e-4)


def test_masked_tokens_count_as_impossible() -> None:
    logits = torch.tensor([1.0, -math.inf, 3.0, -math.inf, 2.0])
    assert signals(logits) == pytest.approx(signals(torch.tensor([1.0, 3.0, 2.0])))


def test_one_possible_token_is_certain_and_finite() -> None:
    certain = (0.0, 50.0, 0.0)
    assert signals(torch.tensor([-7.0])) == certain
    assert signals(torch.tensor([-math.inf, 4.0, -math.inf])) == certain
    assert signals(torch.tensor([0.0, 1e30])) == certain


def test_ties_have_no_margin() -> None:
    found = signals(torch.zeros(8))
    assert found == pytest.approx((-math.log(8), 0.0, math.log(8)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_float_type_is_read_in_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = logits.clone()
    assert signals(logits) == signals(logits.float())
    assert torch.equal(logits, before)


def test_broken_logits_show_as_nan() -> None:
    assert math.isnan(signals(torch.tensor([0.0, math.nan])).top1_logprob)
    assert math.isnan(signals(torch.full((3,), -math.inf)).entropy)


def outcome(drafted: int, accepted: int) -> RoundOutcome:
    logits = torch.arange(float(drafted + 1))[:, None] * torch.tensor([[0.0, 1.0, 3.0]])
    return RoundOutcome(
        drafted=drafted,
        accepted=accepted,
        draft_seconds=0.0,
        verify_seconds=0.0,
        round_seconds=0.0,
        draft_steps=drafted,
        target_logits=logits,  # [drafted + 1, 3]
        target_probs=logits.softmax(-1),
        draft_probs=logits[:drafted].softmax(-1),
    )


def test_history_remembers_tested_tokens_only() -> None:
    history = History()
    assert history.recent_acceptance == 0.5
    assert math.isnan(history.prev_target.entropy)
    history.update(outcome(drafted=4, accepted=1))  # one accepted, one rejected, two untested
    after_hit = 0.5 + 0.15 * 0.5
    assert history.recent_acceptance == pytest.approx(after_hit * 0.85)
    assert history.prev_target == signals(
        torch.tensor([0.0, 1.0, 3.0])
    )  # row 1 gave the correction
    before = history.recent_acceptance
    history.update(outcome(drafted=0, accepted=0))  # plain: nothing tested, but the target spoke
    assert history.recent_acceptance == before
    assert history.prev_target == signals(torch.zeros(3))
    history.update(outcome(drafted=2, accepted=2))
    assert history.recent_acceptance == pytest.approx(1 - (1 - before) * 0.85**2)
    assert history.prev_target == signals(torch.tensor([0.0, 2.0, 6.0]))  # row 2 gave the bonus
