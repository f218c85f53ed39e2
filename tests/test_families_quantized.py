"""Quantized targets: nothing in the loop may assume that a model's weights are floats of its dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from families import VOCABULARY, build, make_decoder, random_prompts, transformers_greedy
from foredraft.spec import FixedLookahead, SamplingParams, SpeculativeDecoder, try_rollback


class Int8Linear(nn.Module):
    """Weights in int8 with a scale a row, as bitsandbytes and torchao keep them: no float parameter at all."""

    scale: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.abs().amax(-1, keepdim=True) / 127.0  # [out, 1]
        rounded = (linear.weight / scale).round().to(torch.int8)  # [out, in]
        self.weight = nn.Parameter(rounded, requires_grad=False)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(states, self.weight.to(states.dtype) * self.scale, self.bias)


def quantize(model: Any, *, head: bool) -> Any:
    """Replace every nn.Linear of a model, the head too if asked."""
    output = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and (head or child is not output):
                setattr(module, name, Int8Linear(child))
    return model


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-neox"])
def test_an_int8_target_decodes_exactly(name: str, head: bool) -> None:
    attention = "eager" if name == "gemma2" else "sdpa"
    target = quantize(build(name, attention=attention), head=head)
    assert not any(isinstance(module, nn.Linear) for module in target.modules()) or not head
    try_rollback(target)
    draft = build(name, attention=attention)  # the same model before it was quantized
    [prompt] = random_prompts(9)
    expected = transformers_greedy(target, prompt, 30)
    output = make_decoder(target, draft, FixedLookahead(3)).generate(
        [prompt], SamplingParams(temperature=0.0, max_tokens=30)
    )[0]
    assert output.token_ids == expected
    assert output.stats.accepted > 0


def test_an_int8_draft_decodes_exactly() -> None:
    target = build("llama")
    [prompt] = random_prompts(9)
    draft = quantize(build("llama"), head=True)
    output = make_decoder(target, draft, FixedLookahead(3)).generate(
        [prompt], SamplingParams(temperature=0.0, max_tokens=30)
    )[0]
    assert output.token_ids == transformers_greedy(target, prompt, 30)
    assert output.stats.accepted > 15


def test_a_model_whose_first_parameter_is_int8_is_sampled_in_floats() -> None:
    target = quantize(build("llama"), head=True)
    target.model.embed_tokens.weight = nn.Parameter(
        target.model.embed_tokens.weight, requires_grad=False
    )
    assert target.get_output_embeddings().weight.dtype == torch.int8
    decoder = SpeculativeDecoder(target, None, None, FixedLookahead(0))
    output = decoder.generate(random_prompts(4), SamplingParams(max_tokens=20, seed=0))[0]
    assert len(output.token_ids) == 20
    assert max(output.token_ids) < VOCABULARY
