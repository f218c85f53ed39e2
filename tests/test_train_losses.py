"""The divergences, and the chunked sum against the dense reference."""

import math
from typing import Any

import pytest
import torch

import foredraft.train.losses as losses_module
from foredraft.train import DistillConfig
from foredraft.train.config import LOSSES
from foredraft.train.divergences import (
    Divergence,
    Loss,
    forward_kl,
    jensen_shannon,
    lk_hybrid,
    log_acceptance,
    loss_for,
    negative_log_acceptance,
    reverse_kl,
    skewed_kl,
    total_variation,
)
from foredraft.train.heads import LogitHead
from foredraft.train.losses import chunked_divergence, dense_divergence
from live_memory import LiveMemory

N, V, D_DRAFT, D_TARGET = 13, 17, 5, 7
KEPT = torch.tensor([0, 2, 3, 7, 11])
NONE = -torch.inf


def loss_named(name: str, **fields: Any) -> Loss:
    return loss_for(DistillConfig(target="toy", corpus="toy", loss=name, **fields))


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
    assert torch.allclose(lk_hybrid(p.log(), q.log(), eta=3.0), expected, atol=1e-12)
    assert torch.allclose(
        lk_hybrid(p.log(), q.log(), eta=0.0), forward_kl(p.log(), q.log()), atol=1e-12
    )
    same = total_variation(q.log(), q.log())
    assert torch.allclose(same, torch.zeros_like(same), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_finite_gradients_at_the_extremes(name: str, dtype: torch.dtype) -> None:
    """B53, B08: disjoint laws, excluded tokens, equal laws, one-hot laws; log 0 anywhere is no NaN."""
    one, two = torch.tensor([0.0, -200.0, -200.0]), torch.tensor([-200.0, 0.0, -200.0])
    excluded = torch.tensor([NONE, math.log(0.5), math.log(0.5)])
    drafts = [one, two, torch.zeros(3)]
    cases = [(target, draft) for target in (one, two, excluded) for draft in drafts]
    cases.append((excluded, torch.tensor([NONE, 1.0, -1.0])))  # excluded by both
    for target, draft in cases:
        logits = draft.to(dtype)[None].requires_grad_()
        loss = loss_named(name).divergence(target.to(dtype)[None], logits)
        (grad,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isfinite().all()
        assert loss.item() > -1e-6
        assert grad.isfinite().all()


def test_reverse_kl_is_no_reward_for_what_the_target_excludes() -> None:
    """Excluded tokens left out of the sum would make 0 of proposing nothing else."""
    target = torch.tensor([[NONE, 0.0, 0.0]], dtype=torch.float64)
    draft = torch.tensor([[30.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = reverse_kl(target, draft)
    assert loss.item() == pytest.approx(100.0, abs=1e-6)
    spread = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(reverse_kl(target, spread).sum(), spread)
    assert grad[0, 0] > 20.0  # down with the excluded one
    assert torch.allclose(reverse_kl(target, target), torch.zeros(1, dtype=torch.float64))


def asymmetric_laws() -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    q = torch.tensor([[0.1, 0.3, 0.6]], dtype=torch.float64)
    assert (forward_kl(p.log(), q.log()) - reverse_kl(p.log(), q.log())).abs() > 0.05
    return p.log(), q.log()


def test_jensen_shannon_near_and_at_its_ends() -> None:
    """Divided by β it goes to forward KL, by 1 − β to reverse KL, and it is these at 0 and 1."""
    p, q = asymmetric_laws()
    for small in (1e-3, 1e-5):
        near_zero, near_one = jensen_shannon(p, q, small), jensen_shannon(p, q, 1.0 - small)
        assert near_zero.item() / small == pytest.approx(forward_kl(p, q).item(), rel=10 * small)
        assert near_one.item() / small == pytest.approx(reverse_kl(p, q).item(), rel=10 * small)
    assert torch.equal(jensen_shannon(p, q, 0.0), forward_kl(p, q))
    assert torch.equal(jensen_shannon(p, q, 1.0), reverse_kl(p, q))


def test_jensen_shannon_is_symmetric_in_the_middle_and_bounded() -> None:
    p, q = asymmetric_laws()
    assert torch.allclose(jensen_shannon(p, q, 0.5), jensen_shannon(q, p, 0.5), atol=1e-12)
    assert torch.allclose(jensen_shannon(p, q, 0.3), jensen_shannon(q, p, 0.7), atol=1e-12)
    one, two = torch.tensor([[0.0, NONE]]), torch.tensor([[NONE, 0.0]])
    assert jensen_shannon(one, two, 0.5).item() == pytest.approx(math.log(2))


def test_skewed_kl_between_forward_kl_and_its_bound() -> None:
    p, q = asymmetric_laws()
    assert skewed_kl(p, q, 1e-9).item() == pytest.approx(forward_kl(p, q).item(), abs=1e-7)
    assert skewed_kl(p, q, 0.1).item() < forward_kl(p, q).item() - 0.1
    one, two = torch.tensor([[0.0, NONE]]), torch.tensor([[NONE, 0.0]])
    assert skewed_kl(one, two, 0.1).item() == pytest.approx(-math.log(0.1))


def test_cross_entropy_is_nothing_where_the_argmax_was_cut() -> None:
    """And −log q of the argmax elsewhere, the first of two equal ones."""
    target = torch.tensor([[NONE, NONE, NONE], [0.1, 0.9, 0.9], [NONE, NONE, 0.2]])
    draft = torch.tensor([[1.0, 2.0, 3.0]]).repeat(3, 1).requires_grad_()
    loss = loss_named("ce").divergence(target, draft)
    log_q = torch.tensor([1.0, 2.0, 3.0]).log_softmax(-1)
    assert torch.allclose(loss, torch.stack([torch.tensor(0.0), -log_q[1], -log_q[2]]))
    (grad,) = torch.autograd.grad(loss.sum(), draft)
    assert torch.equal(grad[0], torch.zeros(3))
    assert torch.allclose(grad[1], log_q.exp() - torch.tensor([0.0, 1.0, 0.0]), atol=1e-6)


def frozen_lk(target: torch.Tensor, draft: torch.Tensor) -> Divergence:
    """Return lk with the weights that it has at these logits, which are no part of its gradient."""
    weight = torch.exp(-3.0 * log_acceptance(target, draft).exp()).detach()

    def loss(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
        rejected = total_variation(target_logits, draft_logits)
        return weight * forward_kl(target_logits, draft_logits) + (1 - weight) * rejected

    return loss


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, {}) for name in LOSSES),
        *(("jsd", {"jsd_beta": beta}) for beta in (0.0, 0.1, 0.9, 1.0)),
        ("skl", {"skew": 0.6}),
    ],
)
def test_gradients_of_a_divergence_are_those_of_differences(
    name: str, fields: dict[str, float]
) -> None:
    """In float64, with a token that the target excludes and one it all but excludes."""
    generator = torch.Generator().manual_seed(2)
    target = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    target[0, 2], target[1, 3] = NONE, -300.0
    target = target.log_softmax(-1) - 0.2  # a law of 0.82 on what is kept
    draft = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    divergence = loss_named(name, **fields).divergence
    if name == "lk":
        frozen = frozen_lk(target, draft)
        expected, got = (
            torch.autograd.grad(loss(target, draft).sum(), draft)[0]
            for loss in (frozen, divergence)
        )
        assert torch.allclose(expected, got, atol=1e-12)
        divergence = frozen
    assert torch.autograd.gradcheck(lambda logits: divergence(target, logits), (draft,))


def test_total_variation_vanishes_at_a_cold_start_and_log_acceptance_does_not() -> None:
    """Why "nla" and "lk" are there: a draft that is never right gets no gradient from 1 − α."""
    target = torch.tensor([[0.0, -60.0]], dtype=torch.float64)
    draft = torch.tensor([[-30.0, 0.0]], dtype=torch.float64, requires_grad=True)
    slope = {}
    for name in ("tv", "nla", "lk"):
        (grad,) = torch.autograd.grad(loss_named(name).divergence(target, draft).sum(), draft)
        slope[name] = grad.abs().max().item()
    assert slope["tv"] < 1e-12
    assert min(slope["nla"], slope["lk"]) > 0.5


def written_out(name: str, p: torch.Tensor, q: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Return the losses [N] of probabilities over the whole vocabulary, [N, V] each; q is 0 where cut."""
    alpha = torch.minimum(p, q).sum(-1)
    best = p.argmax(-1)
    log_best = q.gather(-1, best[:, None]).log().squeeze(-1)
    r, q = p[:, kept] / p[:, kept].sum(-1, keepdim=True), q[:, kept]
    kl, m, s = (r * (r / q).log()).sum(-1), 0.3 * r + 0.7 * q, 0.2 * r + 0.8 * q
    weight = torch.exp(-2.0 * alpha)
    return {
        "kl": kl,
        "rkl": (q * (q / r).log()).sum(-1),
        "jsd": 0.3 * (r * (r / m).log()).sum(-1) + 0.7 * (q * (q / m).log()).sum(-1),
        "skl": (r * (r / s).log()).sum(-1),
        "tv": 1 - alpha,
        "nla": -alpha.log(),
        "lk": weight * kl + (1 - weight) * (1 - alpha),
        "ce": torch.where(torch.isin(best, kept), -log_best, 0.0),
    }[name]


def show_at_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show divergences at most so many tokens of a chunk at once."""
    monkeypatch.setattr(losses_module, "_block_rows", lambda logits: rows)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_chunked_equals_dense_and_what_is_written_out(
    name: str, temperature: float, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value and gradient; acceptance is of the target's law over the whole vocabulary.

    Chunks are of 5, 5 and 3 tokens, in blocks of 2 and what is left.
    """
    show_at_once(2, monkeypatch)
    hidden, head, target_hidden, target_head = parts(bias=True, softcap=None)
    assert head.bias is not None
    kept = KEPT if cut else torch.arange(V)
    logits = target_head.logits(target_hidden) / temperature  # [N, V]
    loss = loss_named(name, jsd_beta=0.3, skew=0.2, lk_eta=2.0)
    log_sums = None if loss.law == "kept" else logits.logsumexp(-1)  # [N]
    if loss.law == "argmax" and log_sums is not None:
        lost = ~torch.isin(logits.argmax(-1), kept)
        assert (0 < lost.sum() < N) == cut
        log_sums[lost] = torch.inf
    draft_head = LogitHead(head.weight[kept], head.bias[kept], None)
    args = (hidden, draft_head, target_hidden, target_head.rows(kept), loss.divergence)
    dense = dense_divergence(*args, log_sums=log_sums, temperature=temperature)
    chunked = chunked_divergence(*args, log_sums=log_sums, temperature=temperature, chunk_tokens=5)
    assert abs(dense.item() - chunked.item()) < 1e-10
    for expected, got in zip(
        torch.autograd.grad(dense, [hidden, head.weight, head.bias], retain_graph=True),
        torch.autograd.grad(chunked, [hidden, head.weight, head.bias]),
        strict=True,
    ):
        assert expected.abs().max() > 1e-4
        assert (expected - got).abs().max() < 1e-10
    q = torch.zeros(N, V, dtype=torch.float64)
    q[:, kept] = (draft_head.logits(hidden) / temperature).softmax(-1).detach()
    expected = written_out(name, logits.softmax(-1), q, kept).sum()
    assert abs(dense.item() - expected.item()) < 1e-10


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


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "lk"])  # λ takes no gradient
def test_gradcheck(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    show_at_once(2, monkeypatch)
    hidden, head, target_hidden, target_head = parts(bias=True, softcap=2.0)

    def loss(hidden: Any, weight: Any, bias: Any) -> torch.Tensor:
        return chunked_divergence(
            hidden, LogitHead(weight, bias, 2.0), target_hidden, target_head,
            loss_named(name).divergence, temperature=1.3, chunk_tokens=5,
        )  # fmt: skip

    assert head.bias is not None
    assert torch.autograd.gradcheck(loss, (hidden, head.weight, head.bias), fast_mode=True)


@pytest.mark.parametrize("name", LOSSES)
def test_chunked_equals_dense_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean and its gradients, to 1e-6, where laws are sharp and the vocabulary is not tiny."""
    show_at_once(4, monkeypatch)
    generator = torch.Generator().manual_seed(3)
    tokens, vocabulary, width = 37, 700, 24
    weight, other = (torch.randn(vocabulary, width, generator=generator) for _ in range(2))
    hidden, states = (torch.randn(tokens, width, generator=generator) for _ in range(2))
    args = (
        hidden.requires_grad_(), LogitHead(weight.requires_grad_(), None, None),
        states, LogitHead(other, None, None), loss_named(name).divergence,
    )  # fmt: skip
    found = []
    for total in (dense_divergence(*args), chunked_divergence(*args, chunk_tokens=11)):
        grads = torch.autograd.grad(total / tokens, (hidden, weight))
        found.append([total.detach() / tokens, *grads])
    scale = max(1.0, found[0][0].item())
    for dense, chunked in zip(*found, strict=True):
        assert dense.abs().max() > 1e-4
        assert (dense - chunked).abs().max() < 1e-6 * scale


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


def test_a_divergence_is_shown_few_tokens_at_once_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as make 2 MiB of logits a thread, at least one; on an accelerator the whole chunk."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    rows = losses_module._block_rows
    assert rows(torch.empty(256, 128_256, device="meta")) == 256
    assert rows(torch.empty(1, 128_256).expand(256, -1)) == 4
    assert rows(torch.empty(1, 1 << 20).expand(256, -1)) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert rows(torch.empty(1, 128_256).expand(256, -1)) == 65


def test_the_memory_of_a_chunk_is_two_products_and_a_few_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes alive at once, forward and backward; the reference holds many of the size of all logits."""
    show_at_once(2, monkeypatch)
    tokens, vocabulary, width, chunk = 128, 2048, 4, 16
    generator = torch.Generator().manual_seed(4)
    weight, other = (torch.randn(vocabulary, width, generator=generator) for _ in range(2))
    hidden, states = (torch.randn(tokens, width, generator=generator) for _ in range(2))
    args = (
        hidden.requires_grad_(), LogitHead(weight.requires_grad_(), None, None),
        states, LogitHead(other, None, None), forward_kl,
    )  # fmt: skip
    row = 4 * vocabulary  # bytes of a token's logits
    with LiveMemory() as dense:
        dense_divergence(*args).backward()  # type: ignore[no-untyped-call]
    weight.grad = hidden.grad = None
    with LiveMemory() as chunked:
        chunked_divergence(*args, chunk_tokens=chunk).backward()  # type: ignore[no-untyped-call]
    small = weight.nbytes + 2 * (
        hidden.nbytes + states.nbytes
    )  # the head's gradient and the states'
    assert dense.peak_bytes > 4 * tokens * row
    assert 2 * chunk * row < chunked.peak_bytes < (2 * chunk + 10 * 2) * row + 2 * small


@pytest.mark.parametrize("name", LOSSES)
def test_bfloat16_autocast_keeps_the_sum_and_the_gradients_in_float32(name: str) -> None:
    """B64: float32 weights under autocast, a bfloat16 teacher; close to the float32 loss."""
    hidden, head, target_hidden, target_head = parts(bias=True, softcap=None)
    hidden = hidden.detach().float().requires_grad_()
    assert head.bias is not None
    assert target_head.bias is not None
    weight = head.weight.detach().float().requires_grad_()
    divergence = loss_named(name).divergence
    low = LogitHead(target_head.weight.bfloat16(), target_head.bias.bfloat16(), None)
    single = LogitHead(weight, head.bias.detach().float(), None)
    exact = dense_divergence(hidden, single, target_hidden, target_head, divergence)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = chunked_divergence(
            hidden, single, target_hidden.bfloat16(), low, divergence, chunk_tokens=4
        )
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.dtype == torch.float32
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert abs(loss.item() - exact.item()) < 0.02 * exact.item()
