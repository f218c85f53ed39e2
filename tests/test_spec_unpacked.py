"""Twins of a packed model that share its weights, on plain layers or on the packed ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import foredraft.spec.packed as packed_module
from foredraft.spec import (
    PackedLinear,
    cut_head,
    layer_kernels,
    pack_linears,
    shared_copy,
    unpacked,
)
from toys import tiny_gpt2, tiny_llama

IDS = torch.arange(9)[None]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack whatever this machine measures."""
    monkeypatch.setattr(packed_module, "GAIN", 1e9)


def pack_or_skip(model: Any) -> Any:
    if pack_linears(model) == 0:
        pytest.skip("this torch has no oneDNN")
    return model


def spoil_layouts(model: nn.Module) -> None:
    """Make all layouts give zeros, so that who uses one is seen."""
    for layer in model.modules():
        if isinstance(layer, PackedLinear) and layer._packed is not None:
            layer._packed = packed_module.pack_blocked(torch.zeros_like(layer.weight))


def storages(model: nn.Module) -> list[int]:
    return [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]


@pytest.mark.usefixtures("always")
@torch.no_grad()
def test_an_unpacked_twin_is_the_model_before_it_was_packed() -> None:
    before = tiny_llama(seed=1)
    model = pack_or_skip(copy.deepcopy(before))
    spoil_layouts(model)
    twin = unpacked(model)
    assert type(twin) is type(before)
    assert [(n, type(m)) for n, m in twin.named_modules()] == [
        (name, type(module)) for name, module in before.named_modules()
    ]
    assert all(
        vars(ours).keys() == vars(theirs).keys()
        for ours, theirs in zip(twin.modules(), before.modules(), strict=True)
    )
    assert torch.equal(twin(IDS).logits, before(IDS).logits)  # the same kernels
    assert not torch.equal(model(IDS).logits, before(IDS).logits)  # and it is still packed


@pytest.mark.usefixtures("always")
@torch.no_grad()
def test_a_shared_copy_uses_the_layouts() -> None:
    model = pack_or_skip(tiny_llama(seed=1))
    spoil_layouts(model)
    twin = shared_copy(model)
    assert torch.equal(twin(IDS).logits, model(IDS).logits)
    for ours, theirs in zip(model.modules(), twin.modules(), strict=True):
        if isinstance(ours, PackedLinear):
            assert isinstance(theirs, PackedLinear)
            assert theirs is not ours
            assert theirs._packed is ours._packed
    assert layer_kernels(twin) == layer_kernels(model)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("make", [unpacked, shared_copy])
def test_twins_share_weights_and_buffers_and_nothing_that_is_set(make: Any) -> None:
    model = pack_or_skip(tiny_llama(seed=1))
    twin = make(model)
    assert len(storages(model)) > len(list(model.parameters()))  # inv_freq is a buffer
    assert storages(twin) == storages(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[3].fill_(0.5)
    assert twin.get_input_embeddings().weight[3, 0] == 0.5
    twin.generation_config.num_assistant_tokens = 3
    twin.config.use_cache = False
    assert model.generation_config.num_assistant_tokens != 3
    assert model.config.use_cache


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("make", [unpacked, shared_copy])
def test_tied_weights_stay_tied(make: Any) -> None:
    model = pack_or_skip(tiny_llama(seed=1, tie_word_embeddings=True))
    twin = make(model)
    head = twin.get_output_embeddings().weight
    assert head is twin.get_input_embeddings().weight is model.get_output_embeddings().weight
    tied = pack_or_skip(tiny_gpt2())
    twin = make(tied)
    assert twin.lm_head.weight is twin.transformer.wte.weight is tied.lm_head.weight
    with torch.no_grad():
        torch.testing.assert_close(twin(IDS).logits, tied(IDS).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("always")
@torch.no_grad()
def test_a_cut_head_stays_cut() -> None:
    model = tiny_llama(seed=1, tie_word_embeddings=True)
    kept = torch.arange(0, 260, 2)
    whole = model(IDS).logits
    cut_head(model, kept)
    twin = unpacked(pack_or_skip(model))
    torch.testing.assert_close(twin(IDS).logits, whole[..., kept])
    assert twin.get_output_embeddings().weight is model.get_output_embeddings().weight
    assert twin.get_input_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.usefixtures("always")
@torch.no_grad()
def test_hooks_come_along_and_later_ones_are_each_ones_own() -> None:
    model = pack_or_skip(tiny_llama(seed=1))
    calls: list[str] = []

    def before(*_: Any) -> None:
        calls.append("before")

    def after(*_: Any) -> None:
        calls.append("after")

    model.get_output_embeddings().register_forward_hook(before)
    twin = unpacked(model)
    model.get_output_embeddings().register_forward_hook(after)
    twin(IDS)
    assert calls == ["before"]
    model(IDS)
    assert calls == ["before", "before", "after"]


@pytest.mark.usefixtures("always")
def test_layer_kernels_say_what_runs() -> None:
    model = tiny_llama(seed=1)
    layers = sum(isinstance(module, nn.Linear) for module in model.modules())
    assert layer_kernels(model) == {"plain": layers}
    pack_or_skip(model)
    assert layer_kernels(model) == {"oneDNN blocks": layers}
    assert layer_kernels(unpacked(model)) == {"plain": layers}
    assert layer_kernels(copy.deepcopy(model)) == {"plain": layers}  # it leaves the layouts behind
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(2.0)  # its layout is out of date
    assert layer_kernels(model) == {"oneDNN blocks": layers - 1, "plain": 1}


@pytest.mark.usefixtures("always")
def test_layer_kernels_say_where_weights_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(seed=1)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not packed_module._works(packed_module.pack_half, layers):
        pytest.skip("this torch has no FBGEMM")
    with torch.no_grad():
        layers[0].weight[0, 0] = 7e4  # beyond float16
    monkeypatch.setattr(packed_module, "_fastest", lambda *_: packed_module.pack_half)
    pack_linears(model, draft=True)
    assert layer_kernels(model) == {"oneDNN blocks": 1, "float16": len(layers) - 1}
