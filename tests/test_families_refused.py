"""What cannot verify a draft is refused before the first token, and the message says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from families import VOCABULARY, build
from foredraft.spec import (
    CachedModel,
    FixedLookahead,
    ModelDrafter,
    SpeculativeDecoder,
    load_causal_lm,
    try_rollback,
)
from toys import tiny_llama

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_expand": 2, "mamba_n_groups": 1,
}  # fmt: skip

# config, what the message must say, settings
REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Mamba": ("MambaConfig", "MambaForCausalLM.*linear_attention", SIZES | {"state_size": 8}),
    "Mamba 2": ("Mamba2Config", "Mamba2ForCausalLM.*linear_attention", {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8,
        "state_size": 8, "n_groups": 1,
    }),
    "FalconMamba": ("FalconMambaConfig", "FalconMambaForCausalLM.*linear_attention", SIZES | {
        "state_size": 8,
    }),
    "RWKV": ("RwkvConfig", "RwkvForCausalLM.*recurrent state", {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32,
        "intermediate_size": 32,
    }),
    "RecurrentGemma": ("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM.*linear_attention", SIZES | {
        "lru_width": 32, "head_dim": 8,
    }),
    "Jamba": ("JambaConfig", "JambaForCausalLM.*linear_attention", SIZES | {
        "use_mamba_kernels": False, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
        "mamba_d_state": 8, "mamba_dt_rank": 4,
    }),
    "Bamba": ("BambaConfig", "BambaForCausalLM.*linear_attention", SIZES | MAMBA | {
        "attn_layer_indices": [1],
    }),
    "Falcon-H1": ("FalconH1Config", "FalconH1ForCausalLM.*hybrid", SIZES | MAMBA | {
        "mamba_d_ssm": 64,
    }),
    "Qwen3-Next": ("Qwen3NextConfig", "Qwen3NextForCausalLM.*linear_attention", SIZES | {
        "head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    }),
    "LFM2": ("Lfm2Config", "Lfm2ForCausalLM.*conv", SIZES | {
        "layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False,
    }),
    "MiniMax": ("MiniMaxConfig", "MiniMaxForCausalLM.*linear_attention", SIZES | {
        "num_local_experts": 2, "head_dim": 8,
    }),
    "BLOOM": ("BloomConfig", "BloomForCausalLM uses ALiBi", {
        "vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4,
    }),
    "MPT": ("MptConfig", "MptForCausalLM uses ALiBi", {
        "vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4,
    }),
    "Falcon with ALiBi": ("FalconConfig", "FalconForCausalLM uses ALiBi", SIZES | {"alibi": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_b20_what_cannot_be_rolled_back_is_refused_by_name(name: str) -> None:
    config, message, settings = REFUSED[name]
    model = AutoModelForCausalLM.from_config(getattr(transformers, config)(**settings)).eval()
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(model)
    with pytest.raises(ValueError, match=message):
        ModelDrafter(model, width=64)


def test_b20_zamba_is_refused() -> None:
    config = transformers.ZambaConfig(
        **SIZES, mamba_d_state=8, mamba_dt_rank=4, n_mamba_heads=2, use_mamba_kernels=False,
        layer_types=["linear_attention", "hybrid"] * 2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"ZambaForCausalLM.*hybrid, linear_attention"):
        CachedModel(model)


def test_an_encoder_decoder_is_refused_by_name() -> None:
    sizes = {"vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads))
    with pytest.raises(ValueError, match="BartForConditionalGeneration is an encoder-decoder"):
        SpeculativeDecoder(model)


def test_a_model_that_keeps_no_cache_is_found_by_trying() -> None:
    # OpenAI GPT takes no cache and says nothing about it: its config looks like any other.
    config = transformers.OpenAIGPTConfig(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3
    )
    with pytest.raises(ValueError, match="OpenAIGPTLMHeadModel says something else"):
        try_rollback(AutoModelForCausalLM.from_config(config).eval())


def test_a_model_that_looks_ahead_is_found_by_trying() -> None:
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, initializer_range=0.3,
    )  # fmt: skip
    bert = transformers.BertLMHeadModel(config).eval()  # is_decoder is False: both ways
    with pytest.raises(ValueError, match="BertLMHeadModel says something else"):
        try_rollback(bert)


class Remembers(torch.nn.Module):
    """A model with a state of its own, outside the cache and undeclared: all it was ever fed."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config, self.generation_config = model.config, model.generation_config
        self.sum = 0.0

    def forward(
        self, input_ids: torch.Tensor, cache: Any, use_cache: bool, logits_to_keep: int
    ) -> Any:
        output = self.model(input_ids, cache=cache, logits_to_keep=logits_to_keep)
        self.sum += float(input_ids.sum())
        output.logits[..., 0] += self.sum
        return output

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()


def test_a_state_outside_the_cache_is_found_by_trying() -> None:
    model = tiny_llama()
    try_rollback(model)
    with pytest.raises(ValueError, match="Remembers says something else after a rollback"):
        try_rollback(Remembers(model))


def test_a_forward_that_fails_with_our_cache_is_named() -> None:
    model = tiny_llama()
    model.model.layers[1].self_attn.layer_idx = 7  # writes to a layer that no cache has
    with pytest.raises(ValueError, match="LlamaForCausalLM does not decode with foredraft's cache"):
        try_rollback(model)


def test_a_loaded_model_is_tried(tmp_path: Path) -> None:
    config = transformers.OpenAIGPTConfig(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="OpenAIGPTLMHeadModel says something else"):
        load_causal_lm(str(tmp_path))
    build("llama").save_pretrained(tmp_path / "llama")
    assert load_causal_lm(str(tmp_path / "llama")).config.vocab_size == VOCABULARY


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_is_no_reason_to_refuse(dtype: torch.dtype) -> None:
    for seed in range(5):
        try_rollback(tiny_llama(seed=seed, layers=4).to(dtype))
        try_rollback(build("mixtral", seed=seed).to(dtype))


def test_refusal_comes_before_anything_is_decoded() -> None:
    fed: list[int] = []
    model = AutoModelForCausalLM.from_config(transformers.MambaConfig(**SIZES, state_size=8))
    model.register_forward_hook(lambda *_: fed.append(1))
    with pytest.raises(ValueError, match="cannot be rolled back"):
        SpeculativeDecoder(tiny_llama(), None, ModelDrafter(model, width=64), FixedLookahead(2))
    assert not fed
