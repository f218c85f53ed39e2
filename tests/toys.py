"""Small models and tokenizers for tests: tables with known laws, tiny random transformers, bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from foredraft.spec import ModelDrafter, SamplingParams, SpeculativeDecoder

SPECIAL = ["<pad>", "<eos>", "<user>", "<assistant>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def byte_tokenizer() -> Any:
    """Return a tokenizer with the 256 bytes and four special tokens: 260 ids, eos = 257, pad = 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_llama(
    *,
    seed: int = 0,
    vocabulary: int = 260,
    layers: int = 2,
    context: int = 512,
    sharpness: float = 6.0,
    **config: Any,
) -> Any:
    """Return a random Llama of width 32 in float32 whose greedy choices are not near ties.

    Args:
        sharpness: scales the head, so that laws are neither flat nor one-hot.
    """
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**(settings | config))).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(sharpness)
    return model


def tiny_gpt2(*, seed: int = 0, vocabulary: int = 260, layers: int = 2, context: int = 128) -> Any:
    """Return a random GPT-2 of width 32: learned positions, so a shift of positions shows."""
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=context, n_embd=32, n_layer=layers, n_head=4,
        bos_token_id=None, eos_token_id=None, initializer_range=0.2,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


def greedy(**settings: Any) -> SamplingParams:
    """Return params that decode greedily."""
    return SamplingParams(temperature=0.0, **settings)


def make_decoder(model: Any, lookahead: Any, *, draft: Any = None) -> SpeculativeDecoder:
    """Return a decoder over bytes; without a draft, one that is right about as often as it is wrong."""
    draft = noisy_copy(model, scale=0.03) if draft is None else draft
    return SpeculativeDecoder(model, byte_tokenizer(), ModelDrafter(draft, width=260), lookahead)


def noisy_copy(model: Any, *, scale: float, seed: int = 5) -> Any:
    """A draft that is right about as often as it is wrong."""
    draft = type(model)(model.config).eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(scale * weight.std() * torch.randn(weight.shape, generator=generator))
    return draft


class ForcedTokens(torch.nn.Module):
    """A model that says a script, one token after the other."""

    def __init__(self, like: Any, script: list[int]) -> None:
        super().__init__()
        self.config, self.generation_config = like.config, like.generation_config
        self.head = torch.nn.Linear(1, 260)
        self.script = script

    def forward(
        self, input_ids: torch.Tensor, cache: Any, use_cache: bool, logits_to_keep: int
    ) -> Any:
        positions = [cache.cover + i for i in range(input_ids.shape[1])]
        logits = torch.full((1, len(positions), 260), -9.0)
        for row, position in enumerate(positions):
            logits[0, row, self.script[position % len(self.script)]] = 9.0
        return type("Output", (), {"logits": logits[:, -logits_to_keep:]})

    def get_output_embeddings(self) -> Any:
        return self.head


class TableLM(torch.nn.Module):
    """A causal LM whose logits are looked up by (position, token): its law is known exactly."""

    def __init__(self, table: torch.Tensor) -> None:
        """Hold a table [T, V, V] of float64 logits: row [t, x] is the law after token x at position t."""
        super().__init__()
        self.table = torch.nn.Parameter(table, requires_grad=False)
        self.config = _TableConfig(len(table), table.shape[-1])
        self.generation_config = GenerationConfig()

    def forward(
        self, input_ids: torch.Tensor, cache: Any, use_cache: bool, logits_to_keep: int
    ) -> SimpleNamespace:
        start = cache.cover
        positions = torch.arange(start, start + input_ids.shape[1])
        return SimpleNamespace(logits=self.table[positions, input_ids][:, -logits_to_keep:])

    def get_output_embeddings(self) -> Any:
        return SimpleNamespace(weight=self.table[0])


class RowsTableLM(TableLM):
    """A table model whose rows stand at positions of their own."""

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        cache: Any,
        use_cache: bool,
        logits_to_keep: int,
    ) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[position_ids, input_ids][:, -logits_to_keep:])


class _TableConfig:
    is_encoder_decoder = False
    model_type = "table"
    _attn_implementation = "eager"  # none at all: a mask of any shape does
    num_hidden_layers = 0

    def __init__(self, context: int, vocabulary: int) -> None:
        self.max_position_embeddings = context
        self.vocab_size = vocabulary

    def get_text_config(self) -> _TableConfig:
        return self


def random_table(
    *, seed: int, vocabulary: int = 4, context: int = 8, spread: float = 1.5
) -> TableLM:
    """Return a table model with normal random logits."""
    generator = torch.Generator().manual_seed(seed)
    shape = (context, vocabulary, vocabulary)
    return TableLM(spread * torch.randn(shape, generator=generator, dtype=torch.float64))


class ScriptedDraws:
    """Answers each question of chance from a script and keeps the probability of the answers."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.options: list[int] = []  # how many answers each question had
        self.weight = 1.0

    def token(self, probs: torch.Tensor) -> int:
        support = torch.nonzero(probs).flatten().tolist()
        token = support[self._choose(len(support))]
        self.weight *= float(probs[token] / probs.sum())
        return int(token)

    def accepts(self, probability: float) -> bool:
        if probability >= 1.0 or probability <= 0.0:
            return probability >= 1.0
        accepted = self._choose(2) == 0
        self.weight *= probability if accepted else 1.0 - probability
        return accepted

    def _choose(self, options: int) -> int:
        position = len(self.options)
        self.options.append(options)
        if position == len(self.script):
            self.script.append(0)
        return self.script[position]


Outcome = TypeVar("Outcome", bound=Hashable)


def enumerate_law(run: Callable[[ScriptedDraws], Outcome]) -> dict[Outcome, float]:
    """Return the exact law of what `run` returns, by running it once for each way chance can go."""
    law: dict[Outcome, float] = {}
    script: list[int] = []
    while True:
        draws = ScriptedDraws(script)
        outcome = run(draws)
        law[outcome] = law.get(outcome, 0.0) + draws.weight
        while script and script[-1] == draws.options[len(script) - 1] - 1:
            script.pop()
        if not script:
            return law
        script[-1] += 1
