"""Packed linear layers: the same products, and never a stale copy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import foredraft.spec.packed as packed_module
from foredraft.spec import CachedModel, PackedLinear, pack_linears
from toys import tiny_gpt2, tiny_llama

ALWAYS, NEVER = 1e9, 0.0  # for GAIN: whatever the measurement says


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny Llama, packed whatever this machine measures, and its twin as it was."""
    monkeypatch.setattr(packed_module, "GAIN", ALWAYS)
    plain = tiny_llama(seed=1)
    model = copy.deepcopy(plain)
    if pack_linears(model) == 0:
        pytest.skip("this torch has no oneDNN")
    return model, plain


@torch.inference_mode()
def test_packed_layers_give_the_same_products(packed: Any) -> None:
    model, plain = packed
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert layers
    assert all(type(layer) is PackedLinear for layer in layers)
    for rows in (1, 2, 3, 7, 40):
        ids = torch.arange(rows)[None] % 90
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=1e-4, atol=1e-5)
    assert model.state_dict().keys() == plain.state_dict().keys()


@torch.inference_mode()
def test_the_packed_copy_is_what_is_used(packed: Any) -> None:
    model, _ = packed
    head = model.get_output_embeddings()
    x = torch.ones(2, head.in_features)
    head._packed = packed_module.pack_blocked(torch.zeros_like(head.weight))
    assert head(x).abs().max() == 0


def test_a_changed_weight_is_never_answered_from_the_copy(packed: Any) -> None:
    model, _ = packed
    head = model.get_output_embeddings()
    x = torch.randn(3, head.in_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.weight.mul_(2.0)  # in place
        torch.testing.assert_close(head(x), x @ head.weight.T)
        head.weight = nn.Parameter(torch.ones_like(head.weight))  # replaced
        torch.testing.assert_close(head(x), x @ head.weight.T)
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    with torch.no_grad():
        assert model(torch.tensor([[1, 2]])).logits.abs().max() == 0


def test_gradients_flow_as_before(packed: Any) -> None:
    model, plain = packed
    ids = torch.arange(9)[None]
    for each in (model, plain):
        each.requires_grad_(True)
        each(ids).logits.logsumexp(-1).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_another_dtype_falls_back(packed: Any) -> None:
    model, plain = packed
    ids = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(model.double()(ids).logits, plain.double()(ids).logits)


def test_copies_and_pickles_leave_the_layout_behind(packed: Any) -> None:
    model, plain = packed
    ids = torch.arange(9)[None]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all("_packed" not in vars(module) for module in twin.modules())
        with torch.no_grad():
            torch.testing.assert_close(twin(ids).logits, plain(ids).logits, rtol=1e-4, atol=1e-5)


def test_packing_twice_changes_nothing(packed: Any) -> None:
    model, _ = packed
    layouts = [m._packed for m in model.modules() if isinstance(m, PackedLinear)]
    assert pack_linears(model) == 0
    again = [m._packed for m in model.modules() if isinstance(m, PackedLinear)]
    assert all(ours is theirs for ours, theirs in zip(layouts, again, strict=True))


def test_slower_layers_other_modules_and_short_memory_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed_module, "GAIN", NEVER)
    assert pack_linears(tiny_llama()) == 0
    monkeypatch.setattr(packed_module, "GAIN", ALWAYS)
    monkeypatch.setattr(packed_module, "MEMORY_SHARE", 0.0)
    assert pack_linears(tiny_llama()) == 0
    monkeypatch.undo()
    monkeypatch.setattr(packed_module, "GAIN", ALWAYS)

    class OtherLinear(nn.Linear):
        """Stands for a quantized layer: a subclass with a forward of its own."""

    other = nn.Sequential(OtherLinear(4, 4))
    assert pack_linears(other) == 0
    gpt2 = tiny_gpt2()  # Conv1D layers, and a linear head
    assert pack_linears(gpt2) <= 1


@torch.inference_mode()
def test_a_packed_model_decodes_with_a_cache(packed: Any) -> None:
    model, plain = packed
    tokens = list(range(20))
    ours, theirs = CachedModel(model), CachedModel(plain)
    for cached in (ours, theirs):
        cached.start(tokens[:10], 32)
    torch.testing.assert_close(
        ours.advance(tokens, keep=5), theirs.advance(tokens, keep=5), rtol=1e-4, atol=1e-5
    )


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny Llama as a draft with float16 weights, and its twin as it was."""
    monkeypatch.setattr(packed_module, "GAIN", ALWAYS)
    plain = tiny_llama(seed=1)
    model = copy.deepcopy(plain)
    layers = [module for module in plain.modules() if isinstance(module, nn.Linear)]
    if not packed_module._works(packed_module.pack_half, layers):
        pytest.skip("this torch has no FBGEMM")
    monkeypatch.setattr(packed_module, "pack_blocked", packed_module.pack_half)  # no other choice
    assert pack_linears(model, draft=True) == len(layers)
    return model, plain


@torch.inference_mode()
def test_half_weights_round_to_float16_and_no_more(half: Any) -> None:
    model, _ = half
    generator = torch.Generator().manual_seed(0)
    for layer in (module for module in model.modules() if isinstance(module, PackedLinear)):
        rounded = layer.weight.half().float()
        assert not torch.equal(rounded, layer.weight)
        for shape in ((1,), (3,), (2, 5)):
            x = torch.randn(*shape, layer.in_features, generator=generator)
            torch.testing.assert_close(layer(x), x @ rounded.T, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_draft_of_half_weights_says_nearly_the_same(half: Any) -> None:
    model, plain = half
    ids = torch.arange(40)[None]
    ours, theirs = model(ids).logits.softmax(-1), plain(ids).logits.softmax(-1)
    assert torch.minimum(ours, theirs).sum(-1).min() > 0.99  # α between the two


@torch.inference_mode()
def test_half_weights_keep_the_bias_and_what_float16_cannot_hold() -> None:
    layer = nn.Linear(8, 4)
    try:
        packed = packed_module.pack_half(layer.weight)
    except (AttributeError, RuntimeError):
        pytest.skip("this torch has no FBGEMM")
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(packed(x, layer.bias), layer(x), rtol=1e-2, atol=1e-3)
    for large in (7e4, torch.inf, torch.nan):
        weight = layer.weight.clone()
        weight[1, 2] = large
        got = packed_module.pack_half(weight)(x, None)
        torch.testing.assert_close(got, x @ weight.T, equal_nan=True)


def test_only_a_draft_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_module, "GAIN", ALWAYS)
    kinds: list[Any] = []

    def fastest(sampled: Any, rows: int) -> None:
        kinds.append((set(sampled), rows))

    monkeypatch.setattr(packed_module, "_fastest", fastest)
    monkeypatch.setattr(packed_module, "_works", lambda pack, layers: True)
    pack_linears(tiny_llama())
    pack_linears(tiny_llama(), draft=True)
    assert kinds[0] == ({packed_module.pack_blocked}, packed_module.ROWS)
    assert kinds[1] == (
        {packed_module.pack_blocked, packed_module.pack_half},
        packed_module.DRAFT_ROWS,
    )
