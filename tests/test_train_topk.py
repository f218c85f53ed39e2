"""Laws cut to their likeliest tokens: bounds hold for whatever was cut, and the losses are of what they say."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from foredraft.train.config import LOSSES, DistillConfig
from foredraft.train.divergences import forward_kl, log_acceptance, loss_for
from foredraft.train.topk import TopK, acceptance_bounds, coarse_laws, kl_bounds, top_k

V = 50
ALL = torch.arange(V)


def laws(seed: int, rows: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits of a target and of a draft like it, [rows, V], from flat to sharp."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.1, 9.0, rows, dtype=torch.float64)[:, None]
    target = scale * torch.randn(rows, V, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, V, generator=generator, dtype=torch.float64)
    return target, target * 0.7 + 0.8 * noise


def exact(top: TopK, target: torch.Tensor) -> TopK:
    """Return the cut laws without the rounding to float16."""
    log_p = target.log_softmax(-1)
    return top._replace(log_probs=log_p.gather(-1, top.tokens))


@pytest.mark.parametrize("rounded", [True, False], ids=["float16", "float64"])
@pytest.mark.parametrize("k", [1, 4, 16, V])
def test_alpha_and_kl_of_the_whole_law_lie_within_the_bounds(k: int, rounded: bool) -> None:
    target, draft = laws(0)
    top = top_k(target, k) if rounded else exact(top_k(target, k), target)
    alpha = log_acceptance(target.log_softmax(-1), draft).exp()
    kl = forward_kl(target, draft)
    slack = 1e-6  # log_rest is in float32
    for value, (low, high) in ((alpha, acceptance_bounds(top, draft)), (kl, kl_bounds(top, draft))):
        assert (low <= value + slack).all()
        assert (value <= high + slack).all()
        assert (high - low > 0.02).any() == (k < V)
        if k == V:
            assert (high - low).abs().max() < (0.02 if rounded else 1e-6)


def test_the_bounds_are_reached_by_laws_that_agree_on_what_is_known() -> None:
    """The least and the largest α of all laws with the same k tokens and rest; so no bound is too wide."""
    target = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1, 0.0]], dtype=torch.float64).log()
    top = exact(top_k(target, 2), target)
    # What is known: 0.5 and 0.2 of tokens 0 and 1, and 0.3 of others, of which none is above 0.2.
    q = torch.tensor([[0.3, 0.1, 0.0, 0.0, 0.35, 0.25]], dtype=torch.float64).clamp(min=1e-12)
    low, high = acceptance_bounds(top, q.log())
    for others, bound in (((0.2, 0.1, 0.0, 0.0), low), ((0.0, 0.0, 0.2, 0.1), high)):
        p = torch.tensor([[0.5, 0.2, *others]], dtype=torch.float64)
        assert torch.minimum(p, q).sum().item() == pytest.approx(bound.item(), abs=1e-7)


def test_tokens_that_the_target_excludes_leave_the_bounds_finite() -> None:
    target, draft = laws(4, rows=3)
    target = target.masked_fill(torch.arange(V) > 2, -torch.inf)
    top = top_k(target, 8)
    alpha = log_acceptance(target.log_softmax(-1), draft).exp()
    kl = forward_kl(target, draft)
    for value, (low, high) in ((alpha, acceptance_bounds(top, draft)), (kl, kl_bounds(top, draft))):
        assert (low <= value + 1e-6).all()
        assert (value <= high + 1e-6).all()
        assert (high - low).max() < 0.02


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_all_tokens_is_the_loss_of_the_whole_law_in_value_and_gradient(name: str) -> None:
    chosen = loss_for(DistillConfig(target="toy", corpus="toy", loss=name))
    target, draft = laws(1, rows=40)
    top = exact(top_k(target, V), target)
    found = []
    for cut in (False, True):
        logits = draft.clone().requires_grad_()
        given = target.log_softmax(-1), logits
        if chosen.law == "argmax":
            given = (
                given[0].masked_fill(given[0] < given[0].max(-1, True).values, -torch.inf),
                logits,
            )
        pair = coarse_laws(top, logits, ALL, chosen.law) if cut else given
        loss = chosen.divergence(*pair)
        (grad,) = torch.autograd.grad(loss.sum(), logits)
        found.append((loss.detach(), grad))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-7)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-7)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "ce"])
def test_a_loss_of_few_tokens_is_at_most_that_of_the_whole_law(name: str) -> None:
    """The data-processing inequality, for every loss but lk: its weight depends on α too."""
    chosen = loss_for(DistillConfig(target="toy", corpus="toy", loss=name))
    target, draft = laws(2)
    whole = chosen.divergence(target.log_softmax(-1), draft)
    losses = [whole]
    for k in (32, 8, 2):
        top = exact(top_k(target, k), target)
        losses.append(chosen.divergence(*coarse_laws(top, draft, ALL, chosen.law)))
        assert (losses[-1] >= -1e-9).all()
    if name != "lk":
        assert all((fewer <= more + 1e-6).all() for more, fewer in pairwise(losses))
    assert losses[1].mean() == pytest.approx(whole.mean().item(), rel=0.2)


def test_the_rest_is_one_outcome_and_is_not_given_to_what_is_known() -> None:
    """By hand: p = (.5, .3, .1, .1) cut to 2 against q = (.4, .1, .25, .25)."""
    p = torch.tensor([[0.5, 0.3, 0.1, 0.1]], dtype=torch.float64)
    q = torch.tensor([[0.4, 0.1, 0.25, 0.25]], dtype=torch.float64)
    top = exact(top_k(p.log(), 2), p.log())
    target, draft = coarse_laws(top, q.log(), torch.arange(4), "whole")
    assert target.exp()[0].tolist() == pytest.approx([0.5, 0.3, 0.2])
    assert draft.exp()[0].tolist() == pytest.approx([0.4, 0.1, 0.5])
    assert log_acceptance(target, draft).exp().item() == pytest.approx(0.4 + 0.1 + 0.2)


@pytest.mark.parametrize("name", LOSSES)
def test_with_a_cut_head_what_cannot_be_proposed_is_left_out_and_no_gradient_is_nan(
    name: str,
) -> None:
    chosen = loss_for(DistillConfig(target="toy", corpus="toy", loss=name))
    target, draft = laws(3)
    kept = torch.arange(0, V, 3)
    column_of = torch.full((V,), -1)
    column_of[kept] = torch.arange(len(kept))
    for k in (4, V):  # with all of them there is no rest: its law is exact
        logits = draft[:, kept].clone().requires_grad_()
        pair = coarse_laws(exact(top_k(target, k), target), logits, column_of, chosen.law)
        loss = chosen.divergence(*pair)
        (grad,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isfinite().all()
        assert grad.isfinite().all()
        assert grad.abs().max() > 0
    log_p = target.log_softmax(-1)
    best = (log_p == log_p.max(-1, True).values)[:, kept]
    cut: dict[str, Any] = {
        "kept": log_p[:, kept],
        "whole": log_p[:, kept],
        "argmax": log_p[:, kept].masked_fill(~best, -torch.inf),
    }
    assert torch.allclose(loss, chosen.divergence(cut[chosen.law], logits), atol=1e-6)
