"""A random pair of Llama shapes whose acceptance is set by construction, for greedy and sampled decoding.

The head is the embedding permuted, so each token has one likely successor, π(x), by a wide margin: rounding
never decides. The target embeds a share of the tokens as others, so there, and only there, it disagrees.
All layers are read and computed in full; they write only where the head hardly looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int


EIGHT_BILLION = Shape(hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8)
HALF_BILLION = Shape(hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2)
VOCABULARY = 128_256
TINY_TARGET = Shape(hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2)
TINY_DRAFT = Shape(hidden=48, intermediate=64, layers=1, heads=4, kv_heads=2)
CONTEXT = 4096


@torch.no_grad()
def make_pair(
    target_shape: Shape,
    draft_shape: Shape,
    vocabulary: int,
    *,
    acceptance: float,
    device: torch.device,
    dtype: torch.dtype,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Return a target and a draft that it agrees with after a share `acceptance` of all tokens."""
    generator = torch.Generator(device).manual_seed(seed)
    target = _random_llama(target_shape, vocabulary, device, dtype)
    draft = _random_llama(draft_shape, vocabulary, device, dtype)
    size = draft_shape.hidden
    embedding = torch.randn(vocabulary, size, generator=generator, device=device)  # [V, H_draft]
    successor = torch.randperm(vocabulary, generator=generator, device=device)  # π, [V]
    head = torch.empty_like(embedding)
    head[successor] = embedding * (40.0 / size)  # the likely logit is about 40, the others below 10
    draft.get_input_embeddings().weight.copy_(embedding)
    draft.get_output_embeddings().weight.copy_(head)

    # Tokens that the target takes for each other: a rotation among a random share of them.
    chosen = torch.randperm(vocabulary, generator=generator, device=device)
    chosen = chosen[: round((1.0 - acceptance) * vocabulary)]
    meant = torch.arange(vocabulary, device=device)
    meant[chosen] = chosen.roll(1)
    wide = target.get_input_embeddings().weight
    wide.zero_()
    wide[:, :size] = embedding[meant].to(dtype)
    columns = target.get_output_embeddings().weight
    columns.mul_(0.05)
    columns[:, :size] = head.to(dtype)
    for model, quiet in ((draft, size), (target, size)):
        for layer in model.model.layers:
            for writer in (layer.self_attn.o_proj, layer.mlp.down_proj):
                writer.weight.mul_(0.05)
                writer.weight[:quiet].mul_(1e-2)  # where the head looks
    return target, draft


def _random_llama(shape: Shape, vocabulary: int, device: torch.device, dtype: torch.dtype) -> Any:
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, max_position_embeddings=CONTEXT,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, tie_word_embeddings=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    return model.eval().requires_grad_(False)


def weight_bytes(model: Any, *, read_each_step: bool = False) -> int:
    """Return the bytes of a model's weights; without the embedding, of which a step reads a row."""
    total = int(sum(weight.nbytes for weight in model.parameters()))
    return total - int(model.get_input_embeddings().weight.nbytes if read_each_step else 0)
