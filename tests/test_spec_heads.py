"""Heads on the target's states in the loop: what they read, greedy equality, laws, batches, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from shared_law import assert_law_is_the_targets

from families import (
    FAMILIES,
    RandomLookahead,
    build,
    random_prompts,
    transformers_greedy,
)
from foredraft.data.dense_positions import read_text
from foredraft.data.dense_rollouts import draft_chains
from foredraft.spec import (
    BatchDecoder,
    EagleHead,
    FixedLookahead,
    HeadDrafter,
    MedusaHeads,
    SamplingParams,
    SpeculativeDecoder,
    with_heads,
)
from toys import greedy, tiny_llama

Make = Callable[[Any], HeadDrafter]


def shaken(heads: Any, scale: float = 0.3) -> Any:
    """Give every weight a part: at the start an EAGLE head reads no states."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in heads.parameters():
            spread = weight.std() if weight.numel() > 1 and weight.std() > 0 else 0.1
            weight.add_(scale * spread * torch.randn(weight.shape, generator=generator))
    return heads.requires_grad_(False)


def eagle(model: Any, kept: torch.Tensor | None = None) -> HeadDrafter:
    return drafter_of(model, shaken(EagleHead(model)), kept)


def medusa(model: Any, kept: torch.Tensor | None = None) -> HeadDrafter:
    return drafter_of(model, shaken(MedusaHeads(model, 3)), kept)


def drafter_of(model: Any, heads: Any, kept: torch.Tensor | None = None) -> HeadDrafter:
    width = model.get_output_embeddings().weight.shape[0]
    return HeadDrafter(model, with_heads(model, heads, kept), width=width, kept=kept)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("llama", eagle),
        ("qwen2-sliding", eagle),
        ("qwen3", eagle),
        ("gemma2", eagle),
        ("gpt2", eagle),
        ("gemma3", medusa),
        ("gpt2", medusa),
    ],
)
def test_greedy_equals_generate(name: str, make: Make) -> None:
    model = build(name, attention=FAMILIES[name].attention[0])
    prompts = random_prompts(1, 13)
    expected = [transformers_greedy(model, prompt, 16) for prompt in prompts]
    decoder = SpeculativeDecoder(model, None, make(model), RandomLookahead(2))
    outputs = decoder.generate(prompts, greedy(max_tokens=16))
    assert [output.token_ids for output in outputs] == expected
    drafted, accepted = (
        sum(getattr(output.stats, name) for output in outputs) for name in ("drafted", "accepted")
    )
    assert drafted > accepted
    assert drafted > 10


def test_an_untrained_head_of_a_target_of_one_layer_is_the_target() -> None:
    # Its layer, norm and head are the target's: nothing is rejected, whatever the lengths of rounds.
    model = build("llama", num_hidden_layers=1)
    drafter = drafter_of(model, EagleHead(model))
    [prompt] = random_prompts(9)
    [output] = SpeculativeDecoder(model, None, drafter, RandomLookahead(4)).generate(
        [prompt], greedy(max_tokens=40)
    )
    assert output.token_ids == transformers_greedy(model, prompt, 40)
    assert output.stats.accepted == output.stats.drafted > 15


def test_an_eagle_head_reads_the_state_before_each_token_and_its_own_of_drafted_ones() -> None:
    # Against a head that is fed all at once, by hand: token j beside the state of token j − 1.
    model = build("llama")
    drafter = eagle(model)
    target, cached = drafter.target, drafter.cached
    [tokens] = random_prompts(12, seed=4)
    [wrong] = random_prompts(12, seed=5)
    prompt, length = 5, 9
    with torch.no_grad():
        states = model.base_model(input_ids=torch.tensor([tokens])).last_hidden_state[0]  # [12, d]
    target.start(tokens[:prompt], 20)
    drafter.reset(20)
    for committed in range(prompt, length + 1):
        if committed > prompt:
            target.advance([tokens[committed - 2]])
        for text in (wrong, tokens):  # what was rejected is forgotten
            drafter._driven.begin_round(committed, 3)
            first = cached.advance(tokens[cached.cover : committed])  # [1, V]
            second = cached.advance([text[committed]])
            drafter.roll_back(committed - (text is wrong))
    features = torch.zeros(length + 1, states.shape[1])
    features[prompt:length] = states[prompt - 1 : length - 1]  # of a prompt only its last token's
    heads = cached.model.heads
    with torch.no_grad():
        for depth, found in ((1, first), (2, second)):
            new = length + depth - 1
            embedded = model.get_input_embeddings()(torch.tensor(tokens[:new]))
            fused = heads.fuse(torch.cat([embedded, features[:new]], dim=-1))
            hidden = cached.model.base_model(inputs_embeds=fused[None]).last_hidden_state[0]
            said = heads.out(torch.cat([hidden, features[:new]], dim=-1))
            assert torch.allclose(model.lm_head(said[-1]), found[0], atol=1e-4)
            features[length] = said[-1]


@pytest.mark.parametrize("make", [eagle, medusa])
@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=0.6, top_k=2, repetition_penalty=1.4)],
    ids=["T=1", "T=0.6,top_k=2,repetition"],
)
def test_the_loop_emits_the_targets_law(params: SamplingParams, make: Make) -> None:
    model = tiny_llama(vocabulary=3, layers=2, sharpness=1.0).double().requires_grad_(False)
    kept = torch.tensor([0, 2]) if params.temperature == 1.0 else None
    drafter = make(model, kept) if kept is not None else make(model)  # type: ignore[call-arg]
    rounds = assert_law_is_the_targets(model, drafter, params, FixedLookahead(2))
    assert {(2, 0), (2, 1), (2, 2)} <= rounds


@pytest.mark.parametrize("make", [eagle, medusa])
def test_twins_streams_and_a_batch(make: Make) -> None:
    model = build("llama")
    prompts = random_prompts(3, 12)
    expected = [transformers_greedy(model, prompt, 12) for prompt in prompts]
    decoder = SpeculativeDecoder(model, None, make(model), FixedLookahead(5))
    twin = decoder.twin(FixedLookahead(2))
    assert isinstance(twin.drafter, HeadDrafter)
    assert twin.drafter.target is twin.target is not decoder.target
    assert twin.drafter.cached.model is decoder.drafter.cached.model  # type: ignore[union-attr]
    for one in (decoder, twin):
        outputs = one.generate(prompts, greedy(max_tokens=12))
        assert [output.token_ids for output in outputs] == expected
    if make is medusa:
        assert decoder.generate([prompts[0]], greedy(max_tokens=12))[0].stats.gammas.keys() <= {
            0,
            1,
            2,
            3,
        }

    batch = BatchDecoder(decoder, rows=2)
    assert batch.obstacle is not None
    assert "reads the target's states, which a batch of 2 rows does not keep" in batch.obstacle
    outputs = batch.generate(prompts, greedy(max_tokens=12))  # one by one
    assert [output.token_ids for output in outputs] == expected


def test_no_layer_of_the_target_runs_for_a_draft_and_none_of_its_weights_is_held_twice() -> None:
    model = build("llama")
    decoder = SpeculativeDecoder(model, None, eagle(model), FixedLookahead(3))
    fed: list[int] = []
    model.model.layers[0].register_forward_pre_hook(lambda _, args: fed.append(args[0].shape[1]))
    [prompt] = random_prompts(9)
    stats = decoder.generate([prompt], greedy(max_tokens=20))[0].stats
    assert sum(fed) == len(prompt) - 1 + stats.drafted + stats.rounds
    assert decoder.drafter is not None
    part = decoder.drafter.cached.model  # type: ignore[attr-defined]
    own = {weight.data_ptr() for weight in model.parameters()}
    new = [each for each in part.parameters() if each.data_ptr() not in own]
    assert {id(each) for each in new} == {id(each) for each in part.heads.parameters()}
    assert len(model.model.layers) == model.config.num_hidden_layers == 2  # as it was


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("opt", "OPTForCausalLM does not show its last hidden states"),
        ("cohere", "CohereForCausalLM changes its logits after its head"),
    ],
)
def test_targets_that_heads_cannot_read_are_named(name: str, message: str) -> None:
    model = build(name)
    with pytest.raises(ValueError, match=message):
        medusa(model)


def test_heads_of_another_target_are_refused() -> None:
    drafter = eagle(tiny_llama())
    with pytest.raises(ValueError, match=r"HeadDrafter\(eagle\) was made of another target"):
        SpeculativeDecoder(tiny_llama(), None, drafter)


@pytest.mark.parametrize("make", [eagle, medusa])
def test_dense_chains_are_what_the_loop_drafts(make: Make) -> None:
    model = build("llama", num_hidden_layers=1)
    drafter = make(model)
    if make is eagle:
        drafter = drafter_of(model, shaken(EagleHead(model), 0.1))
    decoder = SpeculativeDecoder(model, None, drafter, FixedLookahead(2))
    [prompt] = random_prompts(6)
    [output] = decoder.generate([prompt], greedy(max_tokens=30))
    text = read_text(
        decoder.target, prompt, output.token_ids, gamma_max=2, max_tokens=30, ended=False
    )
    chains = draft_chains(drafter, text, 2)
    position = accepted = 0
    while position < 30:
        right = 0
        for token in chains[position].tokens:
            if token != text.tokens[position + right]:
                break
            right += 1
        accepted += right
        position += right + 1
    assert accepted == output.stats.accepted > 0
    assert output.stats.accepted < output.stats.drafted
