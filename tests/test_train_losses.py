"""The divergences, and the chunked sum against the dense reference."""

import math
from typing import Any

import pytest
import torch

from foredraft.train.heads import LogitHead
from foredraft.train.losses import (
    LOSSES,
    chunked_divergence,
    dense_divergence,
    forward_kl,
    lk_hybrid,
    log_acceptance,
    negative_log_acceptance,
    total_variation,
)

N, V, D_DRAFT, D_TARGET = 13, 17, 5, 7


def parts(*, bias: bool, softcap: float | None) -> tuple[Any, LogitHead, Any, LogitHead]:
    """Return draft states and head with gradients, target states and head without, in float64."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, grad: bool) -> torch.Tensor:
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return drawn.requires_grad_(grad)

    draft_bias = draw(V, grad=True) if bias else None
    draft_head = LogitHead(draw(V, D_DRAFT, grad=True), draft_bias, softcap)
    target_bias = draw(V, grad=False) if bias else None
    target_head = LogitHead(draw(V, D_TARGET, grad=False), target_bias, softcap)
    return draw(N, D_DRAFT, grad=True), draft_head, draw(N, D_TARGET, grad=False), target_head


def test_forward_kl_of_two_laws_written_out() -> None:
    """B56: a sum over the vocabulary, the mean is left to the caller. B57: teacher first."""
    p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], dtype=torch.float64)
    expected = torch.tensor([0.5 * math.log(2) - 0.25 * math.log(2), 0.0], dtype=torch.float64)
    assert torch.allclose(forward_kl(p.log(), q.log()), expected, atol=1e-12)
    assert not torch.allclose(forward_kl(p.log() * 2, q.log()), expected, atol=1e-3)


def test_acceptance_losses_of_two_laws_written_out() -> None:
    """B57: end points. The draft cannot propose the last 0.1 of the second target's mass."""
    p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.5, 0.25], [0.3, 0.6, 0.1]], dtype=torch.float64)
    alpha = torch.tensor([0.75, 0.7], dtype=torch.float64)
    assert torch.allclose(log_acceptance(p.log(), q.log()).exp(), alpha, atol=1e-12)
    assert torch.allclose(total_variation(p.log(), q.log() + 3.0), 1.0 - alpha, atol=1e-12)
    assert torch.allclose(negative_log_acceptance(p.log(), q.log()), -alpha.log(), atol=1e-12)
    weight = torch.exp(-3.0 * alpha)
    expected = weight * forward_kl(p.log(), q.log()) + (1 - weight) * (1 - alpha)
    assert torch.allclose(lk_hybrid(p.log(), q.log()), expected, atol=1e-12)
    same = total_variation(q.log(), q.log())
    assert torch.allclose(same, torch.zeros_like(same), atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_finite_gradients_at_the_extremes(name: str) -> None:
    """B53, B08: disjoint laws, excluded tokens, equal laws, one-hot laws."""
    one, two = torch.tensor([0.0, -200.0, -200.0]), torch.tensor([-200.0, 0.0, -200.0])
    excluded = torch.tensor([-torch.inf, math.log(0.5), math.log(0.5)])
    for target in (one, two, excluded):
        for draft in (one, two, torch.zeros(3)):
            logits = draft.double()[None].requires_grad_()
            loss = LOSSES[name].divergence(target.double()[None], logits)
            (grad,) = torch.autograd.grad(loss.sum(), logits)
            assert loss.isfinite().all()
            assert grad.isfinite().all()


def test_total_variation_vanishes_at_a_cold_start_and_log_acceptance_does_not() -> None:
    """Why "nla" and "lk" are there: a draft that is never right gets no gradient from 1 − α."""
    target = torch.tensor([[0.0, -60.0]], dtype=torch.float64)
    draft = torch.tensor([[-30.0, 0.0]], dtype=torch.float64, requires_grad=True)
    slope = {}
    for name in ("tv", "nla", "lk"):
        (grad,) = torch.autograd.grad(LOSSES[name].divergence(target, draft).sum(), draft)
        slope[name] = grad.abs().max().item()
    assert slope["tv"] < 1e-12
    assert min(slope["nla"], slope["lk"]) > 0.5


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_every_loss_chunked_equals_dense_with_the_whole_law(name: str, temperature: float) -> None:
    hidden, head, target_hidden, target_head = parts(bias=True, softcap=None)
    kept = torch.tensor([0, 2, 3, 7, 11])
    log_sums = (target_head.logits(target_hidden) / temperature).logsumexp(-1)  # [N]
    cut = LogitHead(head.weight[kept], head.bias[kept] if head.bias is not None else None, None)
    args = (hidden, cut, target_hidden, target_head.rows(kept), LOSSES[name].divergence)
    dense = dense_divergence(*args, log_sums=log_sums, temperature=temperature)
    chunked = chunked_divergence(*args, log_sums=log_sums, temperature=temperature, chunk_tokens=4)
    assert abs(dense.item() - chunked.item()) < 1e-10
    for expected, got in zip(
        torch.autograd.grad(dense, [hidden, head.weight], retain_graph=True),
        torch.autograd.grad(chunked, [hidden, head.weight]),
        strict=True,
    ):
        assert expected.abs().max() > 1e-4
        assert (expected - got).abs().max() < 1e-10
    if name == "tv":  # written out, on the whole vocabulary
        p = (target_head.logits(target_hidden) / temperature).softmax(-1)
        q = torch.zeros_like(p)
        q[:, kept] = (cut.logits(hidden) / temperature).softmax(-1)
        assert abs(dense.item() - (1 - torch.minimum(p, q).sum(-1)).sum().item()) < 1e-10


def test_logits_may_be_shifted_and_padding_rows_of_the_target_change_nothing() -> None:
    """B52, B53: excluded tokens (−inf) add nothing and their gradients are finite."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    draft = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    plain = forward_kl(target[:, :5], draft[:, :5])
    assert torch.allclose(forward_kl(target[:, :5] + 3.0, draft[:, :5] - 2.0), plain, atol=1e-12)
    masked = target.masked_fill(torch.arange(6) == 5, -torch.inf)
    draft.requires_grad_()
    loss = forward_kl(masked, draft)
    (grad,) = torch.autograd.grad(loss.sum(), draft)
    assert loss.isfinite().all()
    # ∇ = q − p, with p = 0 at the excluded token.
    assert torch.allclose(grad, draft.softmax(-1) - masked.softmax(-1), atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 4, N, 100])
def test_chunked_equals_dense_in_value_and_gradient(
    chunk: int, temperature: float, softcap: float | None, bias: bool
) -> None:
    """B63: to 1e-10 in float64, for hidden states, head and bias."""
    hidden, head, target_hidden, target_head = parts(bias=bias, softcap=softcap)
    inputs = [hidden, head.weight, *([head.bias] if head.bias is not None else [])]
    dense = dense_divergence(
        hidden, head, target_hidden, target_head, forward_kl, temperature=temperature
    )
    chunked = chunked_divergence(
        hidden, head, target_hidden, target_head, forward_kl,
        temperature=temperature, chunk_tokens=chunk,
    )  # fmt: skip
    assert abs(dense.item() - chunked.item()) < 1e-10
    for expected, got in zip(
        torch.autograd.grad(dense * 2.5, inputs),
        torch.autograd.grad(chunked * 2.5, inputs),
        strict=True,
    ):
        assert expected.abs().max() > 1e-3
        assert (expected - got).abs().max() < 1e-10


def test_gradcheck() -> None:
    hidden, head, target_hidden, target_head = parts(bias=True, softcap=2.0)

    def loss(hidden: Any, weight: Any, bias: Any) -> torch.Tensor:
        return chunked_divergence(
            hidden, LogitHead(weight, bias, 2.0), target_hidden, target_head, forward_kl,
            temperature=1.3, chunk_tokens=5,
        )  # fmt: skip

    assert head.bias is not None
    assert torch.autograd.gradcheck(loss, (hidden, head.weight, head.bias), fast_mode=True)


@pytest.mark.parametrize("chunk", [2, 4])
def test_logits_of_more_than_a_chunk_never_exist(chunk: int) -> None:
    """B63: neither shown to the divergence nor kept for the backward; the reference does both."""
    hidden, head, target_hidden, target_head = parts(bias=False, softcap=None)
    shown: list[int] = []
    kept: list[int] = []

    def spy(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
        shown.append(len(draft_logits))
        return forward_kl(target_logits, draft_logits)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(len(tensor) if tensor.shape[1:] == (V,) else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        chunked_divergence(hidden, head, target_hidden, target_head, spy, chunk_tokens=chunk)
        assert max(shown) == chunk
        assert max(kept) <= chunk
        dense_divergence(hidden, head, target_hidden, target_head, spy)
        assert max(shown) == max(kept) == N


def test_bfloat16_autocast_keeps_the_sum_and_the_gradients_in_float32() -> None:
    """B64: float32 weights under autocast, a bfloat16 teacher; close to the float32 loss."""
    hidden, head, target_hidden, target_head = parts(bias=True, softcap=None)
    hidden = hidden.detach().float().requires_grad_()
    assert head.bias is not None
    assert target_head.bias is not None
    weight = head.weight.detach().float().requires_grad_()
    low = LogitHead(target_head.weight.bfloat16(), target_head.bias.bfloat16(), None)
    single = LogitHead(weight, head.bias.detach().float(), None)
    exact = dense_divergence(hidden, single, target_hidden, target_head, forward_kl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = chunked_divergence(
            hidden, single, target_hidden.bfloat16(), low, forward_kl, chunk_tokens=4
        )
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == torch.float32
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert abs(loss.item() - exact.item()) < 0.02 * exact.item()
