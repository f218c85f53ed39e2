"""What a gradient must not depend on: padding, rows without supervision, processes, where a temperature is."""

from typing import Any

import pytest
import torch

from foredraft.train import DistillConfig
from foredraft.train.batches import Example, make_examples, micro_batches, share
from foredraft.train.config import LOSSES
from foredraft.train.divergences import forward_kl, jensen_shannon, loss_for, reverse_kl
from foredraft.train.draft import first_layers, prepare_draft
from foredraft.train.heads import LogitHead, head_of
from foredraft.train.losses import DraftLoss, chunked_divergence, dense_divergence
from foredraft.train.packing import Batch, collate
from foredraft.train.teacher import Teacher
from toy_corpus import corpus_row, random_rows
from toys import tiny_llama

CPU = torch.device("cpu")
KEPT = torch.arange(0, 260, 2)
ONE_OF_EACH_LAW = ("kl", "nla", "ce")


class Trainee:
    """A tiny target and a one-layer draft of it with a cut head."""

    def __init__(self, name: str, *, temperature: float = 1.0, heads_over: float = 1.0) -> None:
        """Make both; the heads are divided by `heads_over`."""
        self.target = tiny_llama()
        config = DistillConfig(target="toy", corpus="toy", loss=name, temperature=temperature)
        draft = prepare_draft(first_layers(self.target, 1), KEPT, config)
        with torch.no_grad():
            head_of(self.target).weight.div_(heads_over)
            head_of(draft.model).weight.div_(heads_over)
        self.model, self.temperature = draft.model, temperature
        self.teacher = Teacher(self.target)
        self.chosen = loss_for(config)
        self.loss = DraftLoss(
            draft.model, self.teacher.head.rows(KEPT), self.chosen.divergence,
            temperature=temperature, chunk_tokens=7,
        )  # fmt: skip

    def gradients(
        self, parts: list[list[Example]], tokens: int, spoil: Any = lambda batch: batch
    ) -> tuple[float, dict[str, torch.Tensor]]:
        """Return the loss a token and its gradients, accumulated over parts, each batch changed by `spoil`."""
        self.model.zero_grad()
        total = 0.0
        for part in parts:
            states = self.teacher.hidden(part)
            log_sums = self.teacher.log_sums(
                part, states, self.chosen.law, KEPT, chunk_tokens=7, temperature=self.temperature
            )
            loss = self.loss(spoil(collate(part, CPU)), states, log_sums)[0] / tokens
            loss.backward()
            total += loss.item()
        found = {name: weight.grad for name, weight in self.model.named_parameters()}
        return total, {name: grad.clone() for name, grad in found.items() if grad is not None}


def assert_same(first: tuple[float, Any], second: tuple[float, Any]) -> None:
    """Compare losses and gradients, to 1e-5 of the largest gradient of each weight."""
    assert second[0] == pytest.approx(first[0], rel=1e-5)
    assert first[1].keys() == second[1].keys()
    assert len(first[1]) > 5
    for name, grad in first[1].items():
        assert grad.abs().max() > 0
        assert (grad - second[1][name]).abs().max() < 1e-5 * grad.abs().max(), name


@pytest.mark.parametrize("name", ONE_OF_EACH_LAW)
def test_what_stands_in_the_padding_changes_no_gradient(name: str) -> None:
    """Nor the prompt's tokens behind which nothing is supervised: only their effect on states counts."""
    trainee = Trainee(name)
    examples = make_examples(random_rows(5), 100).examples
    tokens = sum(example.supervised for example in examples)

    def fill(batch: Batch) -> Batch:
        ids = batch.input_ids.clone()
        padding = torch.ones_like(ids, dtype=torch.bool)
        for row, example in enumerate(examples):
            padding[row, : len(example.input_ids)] = False
        assert padding.sum() > 10
        ids[padding] = torch.arange(int(padding.sum())) % 250 + 1
        return Batch(ids, batch.positions)

    plain = trainee.gradients([examples], tokens)
    assert_same(plain, trainee.gradients([examples], tokens, fill))


@pytest.mark.parametrize("name", ONE_OF_EACH_LAW)
def test_rows_without_supervision_change_no_gradient(name: str) -> None:
    """Prompts alone, and prompts that fill the length, among the others."""
    trainee = Trainee(name)
    rows = random_rows(5)
    empty = [corpus_row("a", [1, 2, 3], []), corpus_row("b", list(range(20)), [5])]
    plain, mixed = (make_examples(some, 20) for some in (rows, [empty[0], *rows, empty[1]]))
    assert mixed.skipped_rows == plain.skipped_rows + 2
    assert mixed.supervised_tokens == plain.supervised_tokens
    found = [trainee.gradients([made.examples], made.supervised_tokens) for made in (plain, mixed)]
    assert_same(*found)


@pytest.mark.parametrize("supervised", [0, -1, 3])
def test_an_example_without_a_supervised_token_is_refused(supervised: int) -> None:
    """A slice of its last 0 tokens would be all of them."""
    with pytest.raises(ValueError, match=r"supervised must be in \[1, 2\] for 3 tokens, got"):
        Example(torch.tensor([1, 2, 3]), supervised)


@pytest.mark.parametrize("sum_up", [dense_divergence, chunked_divergence])
def test_no_tokens_have_no_loss_and_a_gradient_of_zeros(sum_up: Any) -> None:
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    head = LogitHead(weight, None, None)
    hidden = torch.empty(0, 4, requires_grad=True)
    total = sum_up(hidden, head, torch.empty(0, 4), head, forward_kl)
    total.backward()
    assert total.item() == 0.0
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_two_processes_are_those_of_one(name: str) -> None:
    """B58: each its share in micro-batches of its own; DDP's mean of what each multiplies by their number.

    With accelerate and gloo: test_train_processes.
    """
    trainee = Trainee(name, temperature=0.8)
    examples = make_examples(random_rows(7), 100).examples
    tokens = sum(example.supervised for example in examples)
    one = trainee.gradients([examples], tokens)
    shares = [share(examples, index, 2) for index in range(2)]
    counts = [sum(example.supervised for example in part) for part in shares]
    assert counts[0] != counts[1]
    ranks = [trainee.gradients(micro_batches(part, 2), tokens) for part in shares]
    mean = {key: (2 * ranks[0][1][key] + 2 * ranks[1][1][key]) / 2 for key in ranks[0][1]}
    assert_same(one, (ranks[0][0] + ranks[1][0], mean))


@pytest.mark.parametrize("name", LOSSES)
def test_a_temperature_is_that_of_both_models_and_nothing_else(name: str) -> None:
    """The loss of heads divided by it, gradients of the states too: no factor of its square is put on."""
    examples = make_examples(random_rows(5), 100).examples
    tokens = sum(example.supervised for example in examples)
    warm = Trainee(name, temperature=1.6).gradients([examples], tokens)
    divided = Trainee(name, heads_over=1.6).gradients([examples], tokens)
    head = "lm_head.weight"
    divided[1][head] /= 1.6  # by the weight that the temperature divides
    assert_same(warm, divided)
    plain = Trainee(name).gradients([examples], tokens)
    assert abs(plain[0] - warm[0]) > 0.01 * plain[0]


def test_gradients_of_jensen_shannon_near_its_ends() -> None:
    """Divided by β they go to forward KL's, by 1 − β to reverse KL's."""
    generator = torch.Generator().manual_seed(5)
    p, start = torch.randn(2, 4, 9, generator=generator, dtype=torch.float64)
    p = p.log_softmax(-1)

    def gradient(loss: Any, *parameters: float) -> torch.Tensor:
        logits = start.clone().requires_grad_()
        total: torch.Tensor = loss(p, logits, *parameters).sum()
        grad: torch.Tensor = torch.autograd.grad(total, logits)[0]
        return grad

    for small in (1e-3, 1e-5):
        near_zero = gradient(jensen_shannon, small) / small
        near_one = gradient(jensen_shannon, 1.0 - small) / small
        assert torch.allclose(near_zero, gradient(forward_kl), atol=20 * small)
        assert torch.allclose(near_one, gradient(reverse_kl), atol=20 * small)
    assert (gradient(forward_kl) - gradient(reverse_kl)).abs().max() > 0.05
