"""The closed-form start of a draft's head."""

from __future__ import annotations

import pytest
import torch

from foredraft.train import DistillConfig
from foredraft.train.alignment import Alignment, state_map
from foredraft.train.batches import Example
from foredraft.train.divergences import forward_kl
from foredraft.train.draft import first_layers, prepare_draft
from foredraft.train.losses import DraftLoss
from foredraft.train.packing import collate, collate_for, supervised_states
from foredraft.train.teacher import Teacher
from toys import tiny_llama


def examples() -> list[Example]:
    generator = torch.Generator().manual_seed(0)
    return [Example(torch.randint(0, 260, (24,), generator=generator), 20) for _ in range(30)]


def test_a_draft_with_all_layers_needs_no_map() -> None:
    target = tiny_llama()
    model = first_layers(target, 2)
    matrix = state_map(model, Teacher(target), examples(), collate_for(model)).matrix
    # 600 states of width 32 fix the map; the ridge shrinks it a little.
    torch.testing.assert_close(matrix, torch.eye(32).double(), atol=0.1, rtol=0)


@torch.no_grad()
def test_the_map_is_the_least_squares_one() -> None:
    target = tiny_llama(layers=4)
    model, teacher, rows = first_layers(target, 1), Teacher(target), examples()
    alignment = state_map(model, teacher, rows, collate_for(model))
    matrix = alignment.matrix
    ours = torch.cat([model.model(e.input_ids[None]).last_hidden_state[0, -20:] for e in rows])
    theirs = teacher.hidden(rows)
    expected = torch.linalg.lstsq(ours.double(), theirs.double()).solution.T

    def error(a: torch.Tensor) -> float:
        return float((ours.double() @ a.T - theirs).square().sum())

    assert error(matrix) < 1.01 * error(expected)
    assert error(matrix) < 0.9 * error(torch.eye(32).double())
    # The distance is that error, 1 a token for a map that says the mean whatever it reads.
    variance = theirs.double().var(0, correction=0).mean().item()
    assert alignment.variance == pytest.approx(variance, rel=1e-6)
    distance = alignment.distance(ours.double(), theirs)
    assert distance.item() == pytest.approx(error(matrix) / 32 / variance, rel=1e-6)
    assert 0.0 < distance < len(theirs)


def test_the_loss_of_states_is_that_distance_and_moves_the_body() -> None:
    target = tiny_llama(layers=4)
    teacher, rows = Teacher(target), examples()[:4]
    draft = prepare_draft(first_layers(target, 1), None, DistillConfig(target="t", corpus="c"))
    alignment = state_map(draft.model, teacher, rows, collate_for(draft.model))
    loss = DraftLoss(
        draft.model,
        teacher.head,
        forward_kl,
        temperature=1.0,
        chunk_tokens=64,
        alignment=alignment,
    )
    batch, states = collate(rows, torch.device("cpu")), teacher.hidden(rows)
    divergence, distance = loss(batch, states)
    expected = alignment.distance(supervised_states(draft.model, batch), states)
    torch.testing.assert_close(distance, expected)
    distance.backward()
    weights = draft.model.named_parameters()
    moved = [name for name, w in weights if w.grad is not None and w.grad.abs().max() > 0]
    assert {name.split(".")[1] for name in moved} == {"layers", "norm"}
    loss.alignment = None
    assert loss(batch, states)[0] == divergence
    assert loss(batch, states)[1] == 0.0


def test_the_map_goes_into_cut_and_whole_head_alike() -> None:
    target = tiny_llama()
    kept = torch.tensor([1, 5, 200])
    config = DistillConfig(target="t", corpus="c", train_head=False)
    draft = prepare_draft(first_layers(target, 1), kept, config)
    matrix = torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draft.align(Alignment(matrix, 1.0))
    whole = draft.whole_state_dict()["lm_head.weight"]
    expected = (target.lm_head.weight.double() @ matrix).float()
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(draft.model.lm_head.weight.detach(), expected[kept])
    assert not draft.model.lm_head.weight.requires_grad
