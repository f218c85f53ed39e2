"""Tiny random models of the families that the cache is tested on: docs/models.md lists the same ones.

Windows are 8 tokens, far shorter than the sequences, so that they matter.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from foredraft.spec import FixedLookahead, ModelDrafter, RoundStart, SpeculativeDecoder

VOCABULARY = 112
WINDOW = 8

# Names that configs share; each family takes those that its config knows.
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "head_dim": 8,
}
GPT2_NAMES: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
MOE: dict[str, Any] = {
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 16,
}
LATENT: dict[str, Any] = MOE | {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "head_dim": 8,
    "num_key_value_heads": 4,
}


@dataclass(frozen=True)
class Family:
    """How to build one tiny model."""

    title: str  # the row of docs/models.md
    config: str  # class name in transformers
    cache: str  # full, sliding, chunked, mixed (sliding and full), latent
    heads: str = "GQA"  # MHA, GQA, MQA: of the model that is tested
    settings: dict[str, Any] = field(default_factory=dict)
    attention: tuple[str, ...] = ("sdpa", "eager")  # implementations that the family has
    sharpness: float = 6.0  # scales the head: laws neither flat nor one-hot


FAMILIES: dict[str, Family] = {
    "llama": Family("Llama", "LlamaConfig", "full"),
    "llama-mha": Family("Llama", "LlamaConfig", "full", "MHA", {"num_key_value_heads": 4}),
    "llama-mqa": Family("Llama", "LlamaConfig", "full", "MQA", {
        "num_key_value_heads": 1, "initializer_range": 0.8,
    }),
    "qwen2": Family("Qwen2", "Qwen2Config", "full"),
    "qwen2-sliding": Family(
        "Qwen2, window in the upper layers", "Qwen2Config", "mixed", "GQA",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": Family("Qwen3", "Qwen3Config", "full"),
    "mistral": Family("Mistral", "MistralConfig", "full", "GQA", {"sliding_window": None}),
    "mistral-sliding": Family(
        "Mistral with a window", "MistralConfig", "sliding", "GQA", {"sliding_window": WINDOW}
    ),
    "phi": Family("Phi", "PhiConfig", "full", "MHA", {"num_key_value_heads": 4}),
    "phi3": Family("Phi-3", "Phi3Config", "full", "GQA", {"sliding_window": None}),
    "phi3-sliding": Family(
        "Phi-3 with a window", "Phi3Config", "sliding", "GQA", {"sliding_window": WINDOW}
    ),
    "olmo2": Family("OLMo 2", "Olmo2Config", "full"),
    "olmo3": Family("OLMo 3", "Olmo3Config", "mixed", "GQA", {
        "sliding_window": WINDOW, "num_hidden_layers": 4,
    }),
    "gemma": Family("Gemma", "GemmaConfig", "full", "MQA", {"num_key_value_heads": 1}),
    "gemma2": Family("Gemma 2", "Gemma2Config", "mixed", "GQA", {
        "sliding_window": WINDOW, "query_pre_attn_scalar": 8,
    }, ("eager",)),
    "gemma3": Family("Gemma 3 (text)", "Gemma3TextConfig", "mixed", "GQA", {
        "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }),
    "gemma3n": Family("Gemma 3n (text)", "Gemma3nTextConfig", "mixed", "GQA", {
        "sliding_window": WINDOW, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY,
        "laurel_rank": 8, "intermediate_size": 48, "activation_sparsity_pattern": None,
    }),
    "gpt2": Family("GPT-2", "GPT2Config", "full", "MHA", GPT2_NAMES),
    "gpt-neox": Family("GPT-NeoX", "GPTNeoXConfig", "full", "MHA", {"initializer_range": 0.8}),
    "gpt-neo": Family("GPT-Neo", "GPTNeoConfig", "mixed", "MHA", {
        "num_layers": 2, "num_heads": 4, "window_size": WINDOW,
        "attention_types": [[["global", "local"], 1]],
    }, ("eager",)),
    "gptj": Family("GPT-J", "GPTJConfig", "full", "MHA", GPT2_NAMES | {"rotary_dim": 4}, ("eager",)),
    "gpt-bigcode": Family(
        "GPT-BigCode (StarCoder)", "GPTBigCodeConfig", "full", "MQA", GPT2_NAMES
    ),
    "gpt-oss": Family("gpt-oss, attention sinks", "GptOssConfig", "mixed", "GQA", MOE | {
        "sliding_window": WINDOW,
    }, ("eager",)),
    "stablelm": Family("StableLM", "StableLmConfig", "full"),
    "falcon": Family(
        "Falcon without ALiBi", "FalconConfig", "full", "MQA",
        {"alibi": False, "multi_query": True, "new_decoder_architecture": False,
         "initializer_range": 0.4},
    ),
    "opt": Family("OPT", "OPTConfig", "full", "MHA", {
        "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.8,
    }),
    "smollm3": Family("SmolLM3", "SmolLM3Config", "full", "GQA", {
        "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0],
    }),
    "granite": Family("Granite", "GraniteConfig", "full"),
    "cohere": Family("Cohere", "CohereConfig", "full"),
    "cohere2": Family("Cohere 2", "Cohere2Config", "mixed", "GQA", {
        "sliding_window": WINDOW, "num_hidden_layers": 4,
    }),
    "starcoder2": Family("StarCoder2", "Starcoder2Config", "sliding", "GQA", {
        "sliding_window": WINDOW,
    }),
    "glm4": Family("GLM-4", "Glm4Config", "full"),
    "exaone4": Family("EXAONE 4", "Exaone4Config", "mixed", "GQA", {
        "sliding_window": WINDOW, "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }),
    "llama4": Family("Llama 4 (text)", "Llama4TextConfig", "mixed", "GQA", MOE | {
        "attention_chunk_size": WINDOW, "num_hidden_layers": 4, "intermediate_size_mlp": 48,
        "no_rope_layers": [1, 0, 1, 0], "interleave_moe_layer_step": 2,
    }),
    "mixtral": Family("Mixtral", "MixtralConfig", "full", "GQA", MOE | {"sliding_window": None}),
    "qwen2-moe": Family("Qwen2-MoE", "Qwen2MoeConfig", "full", "GQA", MOE),
    "qwen3-moe": Family("Qwen3-MoE", "Qwen3MoeConfig", "full", "GQA", MOE),
    "olmoe": Family("OLMoE", "OlmoeConfig", "full", "GQA", MOE),
    "deepseek-v2": Family("DeepSeek-V2", "DeepseekV2Config", "latent", "MHA", LATENT),
    "deepseek-v3": Family("DeepSeek-V3", "DeepseekV3Config", "latent", "MHA", LATENT),
}  # fmt: skip


def build(name: str, *, attention: str = "sdpa", seed: int = 0, **changes: Any) -> Any:
    """Return a random model of a family in float32 and eval mode.

    Args:
        attention: an attention implementation of transformers.
        changes: settings of the config that differ from the table's.
    """
    family = FAMILIES[name]
    config_class = getattr(transformers, family.config)
    known = set(config_class().to_dict()) | set(config_class.attribute_map)
    settings = {key: value for key, value in COMMON.items() if key in known}
    config = config_class(**(settings | family.settings | changes))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(family.sharpness)
    return model.requires_grad_(False)


def perturbed(model: Any, *, scale: float = 0.03, seed: int = 5) -> Any:
    """Return a copy with noise on its weights: a draft that is right more often than not."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for weight in draft.parameters():
        if weight.numel() > 1:
            weight.add_(scale * weight.std() * torch.randn(weight.shape, generator=generator))
    return draft


class RandomLookahead(FixedLookahead):
    """Drafts 0 to 6 tokens, and stops early now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__(6)
        self._random = random.Random(seed)

    def begin_round(self, start: RoundStart) -> int:
        return self._random.randint(0, min(self.gamma_max, start.gamma_limit))

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return self._random.random() < 0.8


def make_decoder(target: Any, draft: Any, lookahead: FixedLookahead) -> SpeculativeDecoder:
    """Return a decoder of token ids."""
    return SpeculativeDecoder(target, None, ModelDrafter(draft, width=VOCABULARY), lookahead)


def random_prompts(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Return prompts of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def transformers_greedy(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    """Return what transformers' `generate` says after a prompt."""
    whole = model.generate(torch.tensor([prompt]), max_new_tokens=max_tokens, do_sample=False)
    return [int(token) for token in whole[0, len(prompt) :]]
