"""Each row of a batch says what it says alone: token for token, whatever its neighbours do."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from foredraft.spec import (
    BatchDecoder,
    FixedLookahead,
    ModelDrafter,
    RequestOutput,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
)
from foredraft.spec.draft_temperature import DraftTemperature
from toys import byte_tokenizer, greedy, noisy_copy, tiny_gpt2, tiny_llama

SIZES = {
    "vocab_size": 260, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False,
    "initializer_range": 0.2,
}  # fmt: skip
TOKENS = 12
PROMPTS = [
    "a", "Hello there, how are you today?", "日本語", "1, 2, 3, 4, 5", "q", "x y z " * 9, "!?", "The",
    "0" * 33, "end",
]  # fmt: skip


def random_model(model_class: Any, config: Any, sharpness: float = 6.0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(sharpness)
    return model


def tiny_qwen2() -> Any:
    return random_model(Qwen2ForCausalLM, Qwen2Config(**SIZES))


def tiny_mistral() -> Any:
    """All layers slide, over 8 positions."""
    return random_model(MistralForCausalLM, MistralConfig(**SIZES, sliding_window=8))


def tiny_gemma3() -> Any:
    """Sliding and full layers mixed."""
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**SIZES, sliding_window=6, layer_types=kinds, head_dim=8)
    return random_model(Gemma3ForCausalLM, config)


def tiny_gemma2() -> Any:
    """Capped scores: eager attention, whose masks are added."""
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma2Config(
        **SIZES, sliding_window=6, layer_types=kinds, head_dim=8, attn_implementation="eager"
    )
    return random_model(Gemma2ForCausalLM, config)


class RandomLookahead(FixedLookahead):
    """Each row and round another γ, and sometimes a stop before a draw."""

    def __init__(self, seed: int, gamma_max: int = 6) -> None:
        super().__init__(gamma_max)
        self.seed = seed
        self.random = random.Random(seed)

    def begin_round(self, start: RoundStart) -> int:
        return self.random.randint(0, min(self.gamma_max, start.gamma_limit))

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return self.random.random() < 0.8

    def for_rows(self, count: int) -> list[Any]:
        return [RandomLookahead(self.seed + row, self.gamma_max) for row in range(count)]


LOOKAHEADS = {
    "0": FixedLookahead(0),
    "1": FixedLookahead(1),
    "3": FixedLookahead(3),
    "8": FixedLookahead(8),
    "random": RandomLookahead(3),
}


def make_decoder(model: Any, lookahead: Any, *, draft: Any = None, scale: float = 0.03) -> Any:
    draft = noisy_copy(model, scale=scale) if draft is None else draft
    return SpeculativeDecoder(model, byte_tokenizer(), ModelDrafter(draft, width=260), lookahead)


def total(outputs: list[RequestOutput]) -> Any:
    return sum((output.stats for output in outputs[1:]), outputs[0].stats)


@functools.cache
def model_and_expected(make_model: Any) -> tuple[Any, list[list[int]]]:
    """Return a model and what transformers' own `generate` makes of each prompt."""
    model, tokenizer = make_model(), byte_tokenizer()
    expected = []
    for text in PROMPTS:
        prompt = torch.tensor([tokenizer.encode(text)])
        whole = model.generate(prompt, max_new_tokens=TOKENS, do_sample=False)[0]
        expected.append(whole[prompt.shape[1] :].tolist())
    return model, expected


def check_equality(make_model: Any, lookahead: Any, rows: int) -> None:
    model, expected = model_and_expected(make_model)
    batch = BatchDecoder(make_decoder(model, lookahead), rows=rows)
    assert batch.obstacle is None
    prompts = PROMPTS[: rows + 3]
    outputs = batch.generate(prompts, greedy(max_tokens=TOKENS))
    assert [output.token_ids for output in outputs] == expected[: len(prompts)]
    stats = total(outputs)
    assert stats.emitted == TOKENS * len(prompts)
    if lookahead.gamma_max >= 3:  # else the test would not have tested rows of different length
        assert 0.2 < (stats.acceptance_prob or 0.0) < 0.98
        assert len(stats.accepted_lengths) > 2


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_gpt2, tiny_qwen2])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize("lookahead", LOOKAHEADS.values(), ids=LOOKAHEADS)
def test_b28_greedy_rows_equal_transformers_generate(
    make_model: Any, rows: int, lookahead: Any
) -> None:
    check_equality(make_model, lookahead, rows)


@pytest.mark.parametrize("make_model", [tiny_mistral, tiny_gemma3, tiny_gemma2])
@pytest.mark.parametrize("name", ["3", "random"])
def test_windows_are_in_the_masks_of_every_row(make_model: Any, name: str) -> None:
    check_equality(make_model, LOOKAHEADS[name], rows=4)


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_gpt2, tiny_qwen2])
@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
def test_sampled_rows_equal_single_decoding_with_the_same_seed(make_model: Any, gamma: int) -> None:
    model = make_model().double()
    decoder = make_decoder(model, FixedLookahead(gamma))
    params = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, max_tokens=10, seed=11)
    alone = decoder.generate(PROMPTS[:5], params)
    outputs = BatchDecoder(decoder, rows=3).generate(PROMPTS[:5], params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in alone]
    assert [o.text for o in outputs] == [o.text for o in alone]
    for output, single in zip(outputs, alone, strict=True):
        assert output.stats.accepted_lengths == single.stats.accepted_lengths
        assert output.stats.drafted == single.stats.drafted
        assert output.stats.draft_steps == single.stats.draft_steps


def test_each_request_may_have_its_own_params() -> None:
    model = tiny_llama().double()
    decoder = make_decoder(model, FixedLookahead(3))
    asked = [
        greedy(max_tokens=9),
        SamplingParams(seed=5, max_tokens=30),
        SamplingParams(seed=5, temperature=0.5, repetition_penalty=1.3, max_tokens=14),
        greedy(max_tokens=21, repetition_penalty=1.5),
        SamplingParams(seed=6, min_p=0.1, max_tokens=1),
    ]
    outputs = BatchDecoder(decoder, rows=3).generate(PROMPTS[:5], asked)
    for prompt, params, output in zip(PROMPTS, asked, outputs, strict=False):
        assert output.token_ids == decoder.generate(prompt, params)[0].token_ids
        assert len(output.token_ids) == params.max_tokens
    with pytest.raises(ValueError, match="params must be one or 2, one a prompt, got 5"):
        BatchDecoder(decoder).generate(PROMPTS[:2], asked)


def test_a_row_does_not_change_when_its_neighbours_do() -> None:
    decoder = make_decoder(tiny_gpt2().double(), RandomLookahead(1))
    params = SamplingParams(seed=3, max_tokens=15)
    first = PROMPTS[1]
    said = set()
    for others in ([], ["a"], ["zz" * 20, "b"], ["c" * 40, "d", "e"], ["same"] * 5):
        batch = BatchDecoder(decoder, rows=3)
        output = batch.generate([first, *others], params)[0]
        said.add((tuple(output.token_ids), tuple(sorted(output.stats.gammas.items()))))
    assert len(said) == 1


def test_b47_rows_with_speculation_off_leave_the_others_in_place() -> None:
    class OwnGamma(FixedLookahead):
        def for_rows(self, count: int) -> list[Any]:
            return [FixedLookahead(gamma) for gamma in (0, 4, 2)[:count]]

    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=2, max_tokens=20)
        decoder = make_decoder(tiny_llama().double(), OwnGamma(4))
        outputs = BatchDecoder(decoder, rows=3).generate(PROMPTS[:3], params)
        for row, gamma in enumerate((0, 4, 2)):
            single = decoder.with_lookahead(FixedLookahead(gamma)).generate(
                [PROMPTS[row]], SamplingParams(temperature=temperature, seed=2 + row, max_tokens=20)
            )[0]
            assert outputs[row].token_ids == single.token_ids
            assert outputs[row].stats.gammas == single.stats.gammas
            assert outputs[row].stats.accepted == single.stats.accepted


def test_rows_draw_their_drafts_at_the_calibrated_temperature_of_their_own_request() -> None:
    model = tiny_llama().double()
    draft = noisy_copy(model, scale=0.2)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12)
    counts = []
    for table in (DraftTemperature(((0.5, 0.5), (1.0, 1.5))), 1.0):
        drafter = ModelDrafter(draft, width=260, temperature=table)
        decoder = SpeculativeDecoder(model, byte_tokenizer(), drafter, FixedLookahead(4))
        together = BatchDecoder(decoder, rows=2).generate(PROMPTS[:2], params)
        alone = decoder.generate(PROMPTS[:2], params)
        assert [row.token_ids for row in together] == [row.token_ids for row in alone]
        assert [row.stats.accepted for row in together] == [row.stats.accepted for row in alone]
        counts.append([row.stats.gammas | row.stats.accepted_lengths for row in alone])
    assert counts[0] != counts[1]  # the table is read


def test_b21_a_full_acceptance_leaves_no_hole_in_the_drafts_cache() -> None:
    model = tiny_gpt2()
    decoder = make_decoder(model, FixedLookahead(4), draft=model)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=20)
        stats = total(BatchDecoder(decoder, rows=4).generate(PROMPTS[:6], params))
        assert stats.accepted == stats.drafted > 0


def test_stale_values_of_any_size_change_nothing() -> None:
    decoder = make_decoder(tiny_llama(), FixedLookahead(3))
    batch = BatchDecoder(decoder, rows=4)
    params = greedy(max_tokens=10)
    clean = [output.token_ids for output in batch.generate(PROMPTS, params)]
    with torch.inference_mode():
        for layer in batch._target._cache.layers:
            layer.keys.fill_(1e4)
            layer.values.fill_(-1e4)
    assert [output.token_ids for output in batch.generate(PROMPTS, params)] == clean


def test_prompts_join_rows_that_are_under_way() -> None:
    lengths = [3, 30, 5, 12, 1, 18, 9, 2]
    decoder = make_decoder(tiny_gpt2(), FixedLookahead(3))
    asked = [greedy(max_tokens=length) for length in lengths]
    ends = [index for index, _ in BatchDecoder(decoder, rows=2).as_ended(PROMPTS[:8], asked)]
    assert sorted(ends) == list(range(8))
    assert ends.index(1) > ends.index(2) > ends.index(0)  # the long row went on beside several
    for prompt, params, output in zip(
        PROMPTS, asked, BatchDecoder(decoder, rows=2).generate(PROMPTS[:8], asked), strict=False
    ):
        assert output.token_ids == decoder.generate(prompt, params)[0].token_ids
