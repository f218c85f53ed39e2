"""Self-speculation: the split model against the whole, the loop, what is run once, laws, refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from shared_law import assert_law_is_the_targets
from test_families_limits import SHORT, longrope

from controller_sim import predictor
from controller_sim import table as latency_table
from families import (
    FAMILIES,
    VOCABULARY,
    RandomLookahead,
    build,
    random_prompts,
    transformers_greedy,
)
from foredraft.controller import AdaptiveLookahead, RoundCosts
from foredraft.spec import (
    BatchDecoder,
    DecodeStats,
    FixedLookahead,
    LookaheadPolicy,
    RequestOutput,
    SamplingParams,
    SelfDrafter,
    SpeculativeDecoder,
    foredraft_generate,
)
from toys import byte_tokenizer, greedy, tiny_llama

LAYERS = 4


def deep(name: str) -> Any:
    own_name = {"n_layer": LAYERS} if name == "gpt2" else {}
    attention = FAMILIES[name].attention[0]
    return build(name, attention=attention, num_hidden_layers=LAYERS, **own_name)


def decoder_of(
    model: Any, layers: int, lookahead: LookaheadPolicy, tokenizer: Any = None
) -> SpeculativeDecoder:
    width = model.get_output_embeddings().weight.shape[0]
    return SpeculativeDecoder(model, tokenizer, SelfDrafter(model, layers, width=width), lookahead)


def total(outputs: list[RequestOutput]) -> DecodeStats:
    return sum((output.stats for output in outputs), DecodeStats())


def idle_after(model: Any, layers: int) -> Any:
    """Let the later layers add nothing: the exit says what the target says."""
    for layer in model.model.layers[layers:]:
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            torch.nn.init.zeros_(linear.weight)
    return model


@pytest.mark.parametrize("name", ["llama", "qwen2-sliding", "gpt2", "gemma2", "phi"])
def test_greedy_equals_generate(name: str) -> None:
    model = deep(name)
    prompts = random_prompts(2, 19)
    expected = [transformers_greedy(model, prompt, 20) for prompt in prompts]
    for layers, lookahead in ((1, RandomLookahead(2)), (3, FixedLookahead(4))):
        decoder = decoder_of(model, layers, lookahead)
        outputs = decoder.generate(prompts, greedy(max_tokens=20))
        assert [output.token_ids for output in outputs] == expected
    stats = total(outputs)
    assert stats.tested > stats.accepted > 3  # both ways of emitting are there


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_logits_after_drafts_of_all_lengths_are_those_of_the_whole(name: str) -> None:
    # Sharper than token equality: blocks drafted in part, in full, one further, not at all; rejected in part.
    model = deep(name)
    [tokens] = random_prompts(30, seed=3)
    [wrong] = random_prompts(30, seed=4)
    with torch.no_grad():
        fresh = model(input_ids=torch.tensor([tokens])).logits[0]  # [30, V]
    target = SelfDrafter(model, 2, width=VOCABULARY).target
    target.reset(30)
    for begin, drafted, end in ((0, 0, 7), (7, 3, 11), (11, 4, 15), (15, 0, 16), (16, 2, 21)):
        for token in tokens[begin : begin + drafted]:
            target.exit.advance([token])
        logits = target.advance(tokens[begin:end], keep=end - begin)
        assert (logits - fresh[begin:end]).abs().max() / fresh.std() < 1e-4
        for token in wrong[end : end + 2]:
            target.exit.advance([token])
        target.advance(wrong[end : end + 3])
        target.exit.advance(wrong[end + 3 : end + 5])
        target.roll_back(end + 1)
        target.roll_back(end)


def test_no_layer_runs_twice_and_nothing_is_held_twice() -> None:
    model = deep("llama")
    decoder = decoder_of(model, 2, FixedLookahead(3))
    fed: Counter[int] = Counter()
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(
            lambda _, args, index=index: fed.update({index: args[0].shape[1]})
        )
    heads: list[int] = []
    model.lm_head.register_forward_pre_hook(lambda _, args: heads.append(args[0].shape[1]))
    [prompt] = random_prompts(9)
    stats = decoder.generate([prompt], greedy(max_tokens=30))[0].stats
    assert stats.drafted > stats.accepted > 0
    tokens = len(prompt) - 1 + stats.drafted + stats.rounds
    assert fed == dict.fromkeys(range(LAYERS), tokens)
    assert sum(heads) == 1 + 2 * stats.drafted + stats.rounds  # 1: after the prompt

    drafter = decoder.drafter
    assert isinstance(drafter, SelfDrafter)
    own = {weight.data_ptr() for weight in model.parameters()}
    assert {weight.data_ptr() for weight in drafter.cached.model.parameters()} < own
    assert drafter.cached.cache is decoder.target.cache
    assert sum(p.numel() for p in drafter.cached.model.parameters()) < sum(
        p.numel() for p in model.parameters()
    )


@pytest.mark.parametrize("offset", range(7))
def test_an_output_ends_at_every_offset_of_an_accepted_block(offset: int) -> None:
    model = idle_after(deep("llama"), 2)
    [prompt] = random_prompts(11)
    plain = transformers_greedy(model, prompt, 12)
    decoder = decoder_of(model, 2, FixedLookahead(3))
    limited = decoder.generate([prompt], greedy(max_tokens=offset + 1))[0]
    assert limited.token_ids == plain[: offset + 1]
    assert limited.stats.emitted == offset + 1  # nothing was drafted beyond the limit
    assert limited.stats.accepted == limited.stats.drafted
    end = plain[offset]
    model.generation_config.eos_token_id = [end]
    ended = decoder.generate([prompt], greedy(max_tokens=12))[0]
    assert ended.token_ids == plain[: plain.index(end) + 1]
    assert ended.finish_reason == "stop"


@pytest.mark.parametrize("gamma", [2, 5])
def test_streams_and_stop_strings_are_the_plain_ones(gamma: int) -> None:
    model = idle_after(tiny_llama(layers=3), 1)
    plain = SpeculativeDecoder(model, byte_tokenizer())
    decoder = decoder_of(model, 1, FixedLookahead(gamma), byte_tokenizer())
    text = plain.generate("Hello", greedy(max_tokens=40))[0].text
    stop = text[8:11]
    assert "".join(decoder.stream("Hello", greedy(max_tokens=40))) == text
    [output] = decoder.generate("Hello", greedy(max_tokens=40, stop=(stop,)))
    assert output.text == text[: text.index(stop)]
    assert output.stats.accepted > 0


@pytest.mark.parametrize("length", [SHORT - 4, SHORT, SHORT + 9])
def test_longrope_is_exact_across_the_switch(length: int) -> None:
    model = longrope("phi3")
    [prompt] = random_prompts(length)
    [output] = decoder_of(model, 1, FixedLookahead(4)).generate([prompt], greedy(max_tokens=20))
    assert output.token_ids == transformers_greedy(model, prompt, 20)
    assert output.stats.drafted > 10


class LooksThenStops(FixedLookahead):
    """Draws the first token only: the exit has run for one token more than was drafted, or for all."""

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return depth == 1 and float(draft_logits.max()) > 0.5


@pytest.mark.parametrize("policy", [FixedLookahead(2), LooksThenStops(2)], ids=repr)
@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=0.6, top_k=2, repetition_penalty=1.4)],
    ids=["T=1", "T=0.6,top_k=2,repetition"],
)
def test_the_loop_emits_the_targets_law(params: SamplingParams, policy: LookaheadPolicy) -> None:
    model = tiny_llama(vocabulary=3, layers=3, sharpness=1.0).double()
    drafter = SelfDrafter(model, 1, width=3)
    rounds = assert_law_is_the_targets(model, drafter, params, policy)
    assert {(1, 0), (1, 1)} <= rounds


def test_the_adaptive_lookahead_and_a_batch_work_with_it() -> None:
    model = idle_after(deep("llama"), 2)
    torch.nn.init.normal_(model.model.layers[3].mlp.down_proj.weight, std=0.05)
    prompts = random_prompts(3, 12, 30)
    expected = [transformers_greedy(model, prompt, 24) for prompt in prompts]
    costs = RoundCosts(draft_step=0.05, verify=(1.0, 1.02, 1.04, 1.06))
    adaptive = AdaptiveLookahead(predictor(), latency_table(costs), gamma_max=3)
    decoder = decoder_of(model, 2, adaptive)
    outputs = decoder.generate(prompts, greedy(max_tokens=24))
    assert [output.token_ids for output in outputs] == expected
    assert total(outputs).accepted > 0

    twin = decoder.twin(FixedLookahead(2))
    outputs = twin.generate(prompts, greedy(max_tokens=24))
    assert [output.token_ids for output in outputs] == expected
    assert twin.target.cache is not decoder.target.cache
    assert twin.drafter.target is twin.target  # type: ignore[union-attr]

    batch = BatchDecoder(decoder.with_lookahead(FixedLookahead(3)), rows=3)
    assert batch.obstacle is None
    outputs = batch.generate(prompts, greedy(max_tokens=24))
    assert [output.token_ids for output in outputs] == expected
    assert total(outputs).accepted > 0


def test_after_an_error_the_next_output_is_right() -> None:
    model = deep("llama")
    decoder = decoder_of(model, 2, FixedLookahead(3))
    [prompt] = random_prompts(8)
    calls: list[int] = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:  # the prompt's forward is the first
            raise MemoryError("once")

    hook = model.model.layers[3].register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        decoder.generate([prompt], greedy(max_tokens=5))
    target = decoder.target
    assert target.cover == target.cache.cover == len(prompt) - 1  # whole, not half a block
    again = decoder.generate([prompt], greedy(max_tokens=20))[0].token_ids
    hook.remove()
    assert again == transformers_greedy(model, prompt, 20)


def test_a_decoder_and_the_drop_in_take_it_by_name(tmp_path: Path) -> None:
    model = build("llama", num_hidden_layers=3, vocab_size=260)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    [prompt] = random_prompts(10)
    expected = transformers_greedy(model, prompt, 20)
    decoder = SpeculativeDecoder.from_pretrained(str(tmp_path), draft="self:2", lookahead=3)
    assert repr(decoder.drafter) == "SelfDrafter(layers=2)"
    [output] = decoder.generate([prompt], greedy(max_tokens=20))
    assert output.token_ids == expected
    assert output.stats.drafted > 0
    ours = foredraft_generate("self:2", 3)
    whole = model.generate(
        torch.tensor([prompt]), max_new_tokens=20, do_sample=False, custom_generate=ours
    )
    assert whole[0, len(prompt) :].tolist() == expected
    assert ours.stats[0].drafted > 0
    for draft, message in (
        ("self:3", r"layers must be an integer in \[1, 2\], got 3"),
        ("self:0", r"layers must be an integer in \[1, 2\], got 0"),
        ("self:", r'expected "self:K" with K layers before the exit, got \'self:\''),
    ):
        with pytest.raises(ValueError, match=message):
            SpeculativeDecoder.from_pretrained(str(tmp_path), draft=draft)


@pytest.mark.parametrize("name", ["gemma3n", "falcon", "gpt-neo"])
def test_families_that_cannot_be_split_are_named(name: str) -> None:
    # Layers that read keys of earlier ones, or that give more than their states.
    model = build(name, attention=FAMILIES[name].attention[0])
    with pytest.raises(
        ValueError, match=rf"{type(model).__name__} cannot be split after its layer 1"
    ):
        SelfDrafter(model, 1, width=VOCABULARY)


def test_parts_that_say_something_else_than_the_whole_are_refused() -> None:
    class Counting(torch.nn.Module):
        """A layer with a state beside the cache."""

        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer, self.calls = layer, 0

        def forward(self, *args: Any, **settings: Any) -> Any:
            self.calls += 1
            return self.layer(*args, **settings) + 3.0 * self.calls

    model = deep("llama")
    model.model.layers[1] = Counting(model.model.layers[1])
    with pytest.raises(ValueError, match="its parts say something else than the whole"):
        SelfDrafter(model, 2, width=VOCABULARY)


def test_a_drafter_of_another_target_is_refused() -> None:
    drafter = SelfDrafter(tiny_llama(), 1, width=260)
    with pytest.raises(ValueError, match=r"SelfDrafter\(layers=1\) was made of another target"):
        SpeculativeDecoder(tiny_llama(), None, drafter)
