"""Edges of length, window, vocabulary and dtype; tests are named after the public bugs they are about."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from families import (
    VOCABULARY,
    WINDOW,
    RandomLookahead,
    build,
    make_decoder,
    perturbed,
    random_prompts,
    transformers_greedy,
)
from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    SamplingParams,
    SpeculativeDecoder,
    decode_rows,
    try_rollback,
)
from toys import byte_tokenizer, tiny_llama


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("gamma", [1, 4])
def test_b17_prompts_of_one_token_two_tokens_and_one_block(name: str, gamma: int) -> None:
    model = build(name, attention="eager")
    decoder = make_decoder(model, perturbed(model), FixedLookahead(gamma))
    prompts = [[5], *random_prompts(2, gamma, gamma + 1, gamma + 2)]
    outputs = decoder.generate(prompts, greedy(12))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.token_ids == transformers_greedy(model, prompt, 12)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("windowed", ["target", "draft", "both"])
def test_b19_a_sequence_that_passes_a_sliding_window(windowed: str, attention: str) -> None:
    full: dict[str, Any] = {"sliding_window": None}
    target = build("mistral-sliding", attention=attention, **(full if windowed == "draft" else {}))
    draft = perturbed(target)
    if windowed != "both":
        window = None if windowed == "target" else WINDOW
        draft = build("mistral-sliding", attention=attention, sliding_window=window)
        draft.load_state_dict(perturbed(target).state_dict())
    [prompt] = random_prompts(3)
    expected = transformers_greedy(target, prompt, 32)
    assert len(prompt) < WINDOW < len(expected)  # the window is passed on the way
    output = make_decoder(target, draft, FixedLookahead(5)).generate([prompt], greedy(32))[0]
    assert output.token_ids == expected
    assert 0 < output.stats.accepted < output.stats.drafted
    if windowed == "target":  # the window mattered: without it the output is another one
        other = build("mistral-sliding", attention=attention, **full)
        assert transformers_greedy(other, prompt, 32) != expected


class CoverWatch(ModelDrafter):
    """Notes how much the draft's cache covers, against what is committed, before each round."""

    behind: list[int]

    def propose(self, tokens: Any, *rest: Any) -> Any:
        self.behind.append(len(tokens) - self.cached.cover)
        return super().propose(tokens, *rest)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding"])
def test_b21_after_a_fully_accepted_block_the_draft_lacks_nothing(name: str) -> None:
    model = build(name)
    drafter = CoverWatch(model, width=VOCABULARY)
    drafter.behind = []
    decoder = SpeculativeDecoder(model, None, drafter, FixedLookahead(4))
    stats = decoder.generate(random_prompts(5), greedy(50))[0].stats
    assert stats.accepted == stats.drafted == 40  # ten rounds of 4, each with its bonus
    # After a round that was accepted in full, two tokens are to be fed: the last drafted one, which
    # the draft never read, and the bonus.
    assert drafter.behind == [5] + [2] * 9


def one_too_far(model: Any) -> Any:
    """A draft that proposes the token after the one that the target would say."""
    draft = copy.deepcopy(model)
    head = draft.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().roll(1, 0))
    return draft


@pytest.mark.parametrize("gamma", [1, 4])
def test_b22_the_first_drafted_token_is_checked(gamma: int) -> None:
    model = build("llama")
    decoder = SpeculativeDecoder(
        model, None, ModelDrafter(one_too_far(model), width=VOCABULARY), FixedLookahead(gamma)
    )
    [prompt] = random_prompts(7)
    output = decoder.generate([prompt], greedy(20))[0]
    assert output.token_ids == transformers_greedy(model, prompt, 20)
    assert output.stats.accepted == 0
    assert output.stats.rounds == 20  # one token of the target's a round
    assert output.stats.drafted >= 19


@pytest.mark.parametrize("length", [60, 63, 64, 65, 80])
def test_b24_a_prompt_at_or_beyond_the_drafts_context(length: int) -> None:
    for name in ("llama", "gpt2"):  # the second has a table of positions that ends
        target, draft = build(name), build(name, seed=1, max_position_embeddings=64)
        [prompt] = random_prompts(length)
        output = make_decoder(target, draft, FixedLookahead(4)).generate([prompt], greedy(12))[0]
        assert output.token_ids == transformers_greedy(target, prompt, 12)
        assert (output.stats.drafted > 0) == (length < 64)


@pytest.mark.parametrize("gamma", [0, 5, 8])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_b25_the_targets_own_limit_ends_the_output(name: str, gamma: int) -> None:
    model = build(name, max_position_embeddings=64)
    [prompt] = random_prompts(60)
    output = make_decoder(model, model, FixedLookahead(gamma)).generate([prompt], greedy(50))[0]
    assert output.token_ids == transformers_greedy(model, prompt, 4)
    assert output.finish_reason == "length"
    with pytest.raises(ValueError, match="prompt has 64 tokens; the target's context is 64"):
        make_decoder(model, model, FixedLookahead(gamma)).generate(random_prompts(64), greedy(1))


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(320, 264), (264, 320)])
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_b26_padded_vocabularies(target_rows: int, draft_rows: int, temperature: float) -> None:
    target, draft = tiny_llama(vocabulary=target_rows), tiny_llama(vocabulary=draft_rows, layers=1)
    with torch.no_grad():  # what is padded would win, were it looked at
        for model in (target, draft):
            model.get_output_embeddings().weight[260:] *= 10.0
    decoder = SpeculativeDecoder(
        target, byte_tokenizer(), ModelDrafter(draft, width=260), FixedLookahead(3)
    )
    params = SamplingParams(temperature=temperature, max_tokens=30, seed=0)
    output = decoder.generate("Hello", params)[0]
    assert max(output.token_ids) < 260
    plain = SpeculativeDecoder(target, byte_tokenizer()).generate("Hello", params)[0]
    if temperature == 0.0:
        assert output.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("target_dtype", "draft_dtype"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float64, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
    ],
)
def test_b34_draft_and_target_of_different_dtype(
    target_dtype: torch.dtype, draft_dtype: torch.dtype
) -> None:
    target = build("llama").to(target_dtype)
    draft = perturbed(build("llama")).to(draft_dtype)
    [prompt] = random_prompts(9)
    decoder = make_decoder(target, draft, FixedLookahead(3))
    sampled = decoder.generate([prompt], SamplingParams(max_tokens=10, seed=1))[0]
    assert len(sampled.token_ids) == 10
    output = decoder.generate([prompt], greedy(30))[0]
    assert 0 < output.stats.accepted < output.stats.drafted
    if target_dtype in (torch.float32, torch.float64):
        assert output.token_ids == transformers_greedy(target, prompt, 30)
    else:  # 16 bits: held against the fp32 forward, the choice is its best up to rounding
        with torch.no_grad():
            whole = torch.tensor([prompt + output.token_ids])
            logits = target.float()(whole).logits[0, len(prompt) - 1 : -1]  # [30, V]
        chosen = logits.gather(-1, torch.tensor(output.token_ids)[:, None])[:, 0]
        spread = logits.std()
        assert (logits.amax(-1) - chosen).max() < 0.1 * spread


SHORT, LONG = 24, 96  # positions that longrope's two sets of factors are for


def longrope(name: str, attention: str = "sdpa") -> Any:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 3.0, 6.0, 12.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0} | factors
    return build(
        name,
        attention=attention,
        max_position_embeddings=LONG,
        rope_parameters=rope | {"original_max_position_embeddings": SHORT, "factor": LONG / SHORT},
        **({"original_max_position_embeddings": SHORT} if name == "phi3" else {}),
    )


@pytest.mark.parametrize("length", [3, SHORT - 1, SHORT, SHORT + 1, SHORT + 9])
def test_longrope_is_exact_across_the_switch(length: int) -> None:
    # Beyond SHORT tokens every position is encoded otherwise: no block may reach over the edge, and
    # what was cached before it is computed again.
    model = longrope("phi3")
    [prompt] = random_prompts(length)
    expected = transformers_greedy(model, prompt, 24)
    pairs = [(model, FixedLookahead(4)), (perturbed(model), RandomLookahead(1))]
    for draft, lookahead in pairs:
        decoder = make_decoder(model, draft, lookahead)
        output = decoder.generate([prompt], greedy(24))[0]
        assert output.token_ids == expected
    assert output.stats.drafted > 10  # beyond the edge too there is drafting
    again = decoder.generate([prompt[:2]], greedy(10))[0]  # a short one after a long one
    assert again.token_ids == transformers_greedy(model, prompt[:2], 10)


def test_longrope_matters_here() -> None:
    model = longrope("phi3")
    [prompt] = random_prompts(SHORT + 1)
    with torch.no_grad():
        long = model(torch.tensor([prompt])).logits[0, :SHORT]
        short = model(torch.tensor([prompt[:SHORT]])).logits[0]
    assert (long - short).abs().max() > 0.5 * short.std()


@pytest.mark.parametrize("rope_type", ["linear", "dynamic", "yarn", "llama3"])
def test_other_scalings_of_positions_are_exact_up_to_the_context(rope_type: str) -> None:
    rope: dict[str, Any] = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 4.0}
    if rope_type in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = 16
    if rope_type == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = build("llama", rope_parameters=rope, max_position_embeddings=48)
    try_rollback(model)
    for prompt in random_prompts(5, 40):
        decoder = make_decoder(model, perturbed(model), FixedLookahead(4))
        output = decoder.generate([prompt], greedy(100))[0]
        assert output.token_ids == transformers_greedy(model, prompt, 48 - len(prompt))
        assert output.stats.accepted > 0


def test_rows_of_a_longrope_model_stay_on_one_side_of_the_switch() -> None:
    """Rows of different length share one encoding: up to the switch they are exact, beyond it refused."""
    model = longrope("phi3")
    prompts = random_prompts(4, 9)
    rows = decode_rows(
        model,
        prompts,
        [greedy(SHORT - 9)] * 2,
        seeds=[0, 1],
        rows=2,
        eos_token_ids=(),
        width=VOCABULARY,
    )
    for row in rows:
        prompt = prompts[row.index]
        assert row.token_ids == transformers_greedy(model, prompt, SHORT - 9)
    with pytest.raises(ValueError, match=f"encodes positions otherwise beyond {SHORT}"):
        list(
            decode_rows(model, prompts, [greedy(SHORT)] * 2, seeds=[0, 1], rows=2, eos_token_ids=())
        )
