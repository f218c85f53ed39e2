"""Verifier, sampling, cache and parameters by themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    T5Config,
    T5ForConditionalGeneration,
)

import foredraft.spec.rows as rows_module
from foredraft.spec import (
    CachedModel,
    DraftInfo,
    FixedLookahead,
    GeneratorDraws,
    ModelDrafter,
    SamplingParams,
    SpeculativeDecoder,
    TokenLaw,
    acceptance_prob,
    check_same_vocabulary,
    cut_head,
    decode_rows,
    encode_text,
    load_causal_lm,
    load_kept_tokens,
    load_lookahead,
    render_chat,
    residual,
    save_kept_tokens,
    tokenizer_hash,
    verify,
    vocabulary_size,
)
from toys import byte_tokenizer, tiny_gpt2, tiny_llama


class Always:
    """Draws that accept or reject everything and take the likeliest token."""

    def __init__(self, accept: bool) -> None:
        self.accept = accept

    def accepts(self, probability: float) -> bool:
        return self.accept

    def token(self, probs: torch.Tensor) -> int:
        return int(probs.argmax())


def test_b09_residual_is_normalised_by_its_sum() -> None:
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    assert residual(p, q).tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert residual(p, p).tolist() == p.tolist()  # nothing left: p itself, never NaN
    assert acceptance_prob(p, q).item() == pytest.approx(0.6)


def test_verify_counts_a_prefix_and_draws_bonus_or_correction() -> None:
    p = torch.eye(4)[[0, 1, 2, 3]].double()  # [4, V]: greedy 0, 1, 2, then bonus 3
    q = torch.full((3, 4), 0.25).double()
    draws = GeneratorDraws(0)
    assert verify(p, q, [0, 1, 2], draws) == (3, 3)
    assert verify(p, q, [0, 3, 2], draws) == (1, 1)
    assert verify(p[:1], q[:0], [], draws) == (0, 0)
    assert verify(p, p[:3], [0, 1, 2], Always(False)) == (0, 0)  # a forced rejection where p = q
    with pytest.raises(ValueError, match="3 drafted tokens need 4 target rows"):
        verify(p[:3], q, [0, 1, 2], draws)


def test_draws_never_give_what_is_impossible() -> None:
    draws = GeneratorDraws(0)
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert {draws.token(probs) for _ in range(200)} == {1, 3}
    assert not any(draws.accepts(0.0) for _ in range(200))
    assert all(draws.accepts(1.0) for _ in range(200))


def test_draws_follow_the_law() -> None:
    # chi-square with 3 degrees of freedom over 20,000 draws: above 21.1 once in 10,000 runs; fixed seed
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4])
    draws = GeneratorDraws(3)
    counts = torch.bincount(torch.tensor([draws.token(probs) for _ in range(20_000)]), minlength=4)
    expected = 20_000 * probs
    assert ((counts - expected) ** 2 / expected).sum() < 21.1


def test_repetition_penalty_follows_each_positions_own_history() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 8, generator=generator)
    law = TokenLaw(
        SamplingParams(repetition_penalty=1.7),
        [1, 2, 1],
        width=8,
        eos_token_ids=(),
        device=torch.device("cpu"),
    )
    ours = law.scores(logits, [5, 6])
    theirs = RepetitionPenaltyLogitsProcessor(1.7)
    for row, history in enumerate(([1, 2, 1], [1, 2, 1, 5], [1, 2, 1, 5, 6])):
        assert torch.equal(
            ours[row], theirs(torch.tensor([history]), logits[row : row + 1].clone())[0]
        )


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_gpt2])
def test_cached_logits_equal_fresh_ones_after_rollbacks(make_model: Any) -> None:
    model = make_model()
    cached = CachedModel(model)
    generator = torch.Generator().manual_seed(1)
    cached.reset(64)
    tokens: list[int] = []
    for step in range(12):
        cached.roll_back(max(0, len(tokens) - step % 4))
        tokens = tokens[: cached.cover]
        tokens += torch.randint(0, 260, (1 + step % 5,), generator=generator).tolist()
        keep = len(tokens) - cached.cover
        logits = cached.advance(tokens[cached.cover :], keep)
        with torch.no_grad():
            fresh = model(torch.tensor([tokens])).logits[0, -keep:]
        torch.testing.assert_close(logits, fresh, rtol=1e-4, atol=1e-4)


def test_rolling_back_neither_allocates_nor_copies() -> None:
    cached = CachedModel(tiny_llama())
    cached.start([1, 2, 3], 64)
    pointer = cached._cache.layers[0].keys.data_ptr()
    for _ in range(50):
        cached.advance([1, 2, 3, 4, 5, 6][cached.cover :], 4 if cached.cover == 2 else 3)
        cached.roll_back(3)
    cached.start([4, 5], 32)  # a shorter sequence reuses the buffers
    assert cached._cache.layers[0].keys.data_ptr() == pointer


def test_stale_slots_change_nothing() -> None:
    cached = CachedModel(tiny_llama())
    cached.start([1, 2, 3, 4], 32)
    expected = cached.advance([4])
    cached.roll_back(3)
    for layer in cached._cache.layers:
        with torch.inference_mode():
            layer.keys[:, :, 3:] = 1e4
            layer.values[:, :, 3:] = 1e4
    assert torch.equal(cached.advance([4]), expected)


def test_models_that_cannot_roll_back_are_refused_by_name() -> None:
    config = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=16)
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder"):
        CachedModel(T5ForConditionalGeneration(config))
    model = tiny_llama()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has layers \(linear_attention\)"):
        CachedModel(model)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("n", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", float("nan")),
        ("logit_bias", [(1, 2.0)]),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: float("inf")}),
        ("bad_words", ("",)),
        ("bad_words", ((),)),
        ("bad_words", ((1, -2),)),
        ("bad_words", (3,)),
        ("min_tokens", -1),
        ("min_tokens", 257),
        ("logprobs", -1),
        ("include_stop_str_in_output", 1),
        ("seed", 2**63),
        ("stop", ("",)),
        ("stop_token_ids", (-1,)),
        ("seed", -1),
    ],
)
def test_bad_parameters_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("gamma", [-1, 1.5, True, "3"])
def test_bad_gamma_is_named(gamma: Any) -> None:
    with pytest.raises(ValueError, match="gamma must be an integer >= 0"):
        FixedLookahead(gamma)


def test_a_policy_that_asks_too_much_is_caught() -> None:
    class Greedy(FixedLookahead):
        def begin_round(self, start: Any) -> int:
            return 99

    decoder = SpeculativeDecoder(
        tiny_llama(), None, ModelDrafter(tiny_llama(), width=260), Greedy(1)
    )
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, "):
        decoder.generate([[1, 2]], SamplingParams(max_tokens=4))


def test_bad_prompts_are_named() -> None:
    decoder = SpeculativeDecoder(tiny_llama())
    with pytest.raises(ValueError, match="text needs a tokenizer"):
        decoder.generate("Hello")
    with pytest.raises(ValueError, match="at least one token"):
        decoder.generate([[]])
    with pytest.raises(ValueError, match=r"token ids in \[0, 260\)"):
        decoder.generate([[1, 260]])
    assert decoder.generate([]) == []


def test_loading_says_what_is_wrong(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        load_causal_lm(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="dtype must be one of"):
        load_causal_lm("x", dtype="int8")
    T5ForConditionalGeneration(
        T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=16)
    ).save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match="'t5' model, not a causal LM"):
        load_causal_lm(str(tmp_path / "t5"))
    with pytest.raises(ValueError, match=r"has no lookahead\.json"):
        load_lookahead(tmp_path)
    (tmp_path / "lookahead.json").write_text('{"policy": "nobody"}')
    with pytest.raises(ValueError, match="policy must be one of"):
        load_lookahead(tmp_path)


def test_draft_folder_round_trip_and_a_missing_map(tmp_path: Any) -> None:
    info = DraftInfo(target="t", target_fingerprint="f", tokenizer_hash="h", kept_tokens=3)
    info.save(tmp_path)
    assert DraftInfo.load(tmp_path) == info
    with pytest.raises(ValueError, match="missing, but"):
        load_kept_tokens(tmp_path, info)
    save_kept_tokens(tmp_path, torch.tensor([1, 5, 4]))
    with pytest.raises(ValueError, match="ascending"):
        load_kept_tokens(tmp_path, info)
    save_kept_tokens(tmp_path, torch.tensor([1, 4, 5]))
    assert load_kept_tokens(tmp_path, info).tolist() == [1, 4, 5]  # type: ignore[union-attr]
    (tmp_path / "foredraft.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="schema is 99, expected 1"):
        DraftInfo.load(tmp_path)


def test_a_cut_head_gives_the_kept_rows_of_the_whole_one() -> None:
    model = tiny_llama()
    ids = torch.tensor([[1, 2, 3]])
    kept = torch.tensor([0, 7, 99, 259])
    with torch.no_grad():
        whole = model(ids).logits
        cut_head(model, kept)
        torch.testing.assert_close(model(ids).logits, whole[..., kept])
    with pytest.raises(ValueError, match=r"kept tokens must lie in \[0, 4\)"):
        cut_head(model, kept)


def test_b27_another_tokenizer_is_refused_by_the_first_id_that_differs() -> None:
    """Of another size, and of the same size with two ids swapped. One special token more is refused too."""
    content = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    swapped = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)))
    assert vocabulary_size(swapped) == vocabulary_size(byte_tokenizer())
    with pytest.raises(ValueError, match="is 'a' to the target and 'b' to the draft"):
        check_same_vocabulary(byte_tokenizer(), swapped)
    assert tokenizer_hash(byte_tokenizer()) != tokenizer_hash(swapped)
    one, other = byte_tokenizer(), byte_tokenizer()
    check_same_vocabulary(one, other)
    assert tokenizer_hash(one) == tokenizer_hash(other)
    other.add_tokens(["<extra>"])
    with pytest.raises(ValueError, match="id 260 is None to the target and '<extra>' to the draft"):
        check_same_vocabulary(one, other)
    assert tokenizer_hash(one) != tokenizer_hash(other)


def test_b81_prompts_have_exactly_one_bos() -> None:
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<pad> $A", special_tokens=[("<pad>", 256)]
    )  # a tokenizer that writes BOS, <pad> here, by itself
    messages = [{"role": "user", "content": "hi"}]
    assert encode_text(tokenizer, "hi").count(256) == 1
    template = tokenizer.chat_template
    tokenizer.chat_template = "{{ '<pad>' }}" + template  # a template that writes BOS, too
    chat = render_chat(tokenizer, messages)
    assert chat.count(256) == 1
    decoder = SpeculativeDecoder(tiny_llama(), tokenizer)
    params = SamplingParams(temperature=0.0, max_tokens=2)
    assert decoder.chat([messages], params)[0].prompt_token_ids == chat
    assert decoder.generate("hi", params)[0].prompt_token_ids == encode_text(tokenizer, "hi")
    tokenizer.chat_template = None
    assert render_chat(tokenizer, messages) == encode_text(tokenizer, "hi")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_decoded_together_equal_rows_decoded_alone(temperature: float) -> None:
    model, tokenizer = tiny_llama(), byte_tokenizer()
    prompts = [tokenizer.encode(text) for text in ("Hello", "a", "日本語", "x y z", "12345", "q")]
    params = SamplingParams(temperature=temperature, max_tokens=24)
    alone = SpeculativeDecoder(model, tokenizer)
    model.generation_config.eos_token_id = ends = [10, 60, 90, 120, 150, 180, 210, 240]
    rows: dict[int, tuple[list[int], str]] = {}
    for row in decode_rows(
        model,
        prompts,
        [params] * len(prompts),
        seeds=range(6),
        rows=2,
        eos_token_ids=ends,
        width=260,
        keep_states=True,
    ):
        rows[row.index] = (row.token_ids, row.finish_reason)
        assert row.states is not None
        ids = torch.tensor([prompts[row.index] + row.token_ids[:-1]])
        with torch.no_grad():
            whole = model.base_model(ids).last_hidden_state[0]  # [T, d]
        torch.testing.assert_close(row.states, whole[-len(row.token_ids) :], rtol=1e-3, atol=1e-4)
    for index, prompt in enumerate(prompts):
        output = alone.generate(
            [prompt], SamplingParams(temperature=temperature, max_tokens=24, seed=index)
        )[0]
        assert rows[index] == (output.token_ids, output.finish_reason)
    assert {reason for _, reason in rows.values()} == {"stop", "length"}


def test_rows_of_any_parameters_share_a_batch_and_equal_prompts_a_computation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_llama()
    computed: list[list[int]] = []
    compute = rows_module._Batch.compute

    def note(self: Any, prompts: list[list[int]]) -> None:
        computed.extend(prompts)
        compute(self, prompts)

    monkeypatch.setattr(rows_module._Batch, "compute", note)
    distinct = [[9, 3 + i, *range(i)] for i in range(20)]  # more than are computed together
    settings = [
        SamplingParams(temperature=0.0, max_tokens=9),
        SamplingParams(temperature=0.7, max_tokens=14),
        SamplingParams(temperature=1.0, top_k=5, max_tokens=3, stop_token_ids=(7,)),
    ]
    prompts = [prompt for prompt in distinct for _ in settings]
    params = settings * len(distinct)
    outputs = list(
        decode_rows(
            model, prompts, params, seeds=range(60), rows=7, eos_token_ids=(20, 40), width=260
        )
    )
    assert sorted(computed) == sorted(prompt[:-1] for prompt in distinct)
    assert sorted(output.index for output in outputs) == list(range(60))
    model.generation_config.eos_token_id = [20, 40]
    alone = SpeculativeDecoder(model, byte_tokenizer())
    for output in outputs:
        request = replace(params[output.index], seed=output.index)
        expected = alone.generate([prompts[output.index]], request)[0]
        assert (output.token_ids, output.finish_reason) == (
            expected.token_ids,
            expected.finish_reason,
        )
    with pytest.raises(ValueError, match="params must be one a prompt, got 1 of 60"):
        next(decode_rows(model, prompts, params[:1], seeds=range(60), rows=7, eos_token_ids=()))


def test_loop_acceptance_is_alpha_on_a_tiny_llama() -> None:
    # A share of about 3,000 tested tokens against the mean α: 4.5 standard errors, 1 in 100,000; fixed seed
    target, draft = tiny_llama(vocabulary=16), tiny_llama(vocabulary=16, seed=3)
    decoder = SpeculativeDecoder(target, None, ModelDrafter(draft, width=16), FixedLookahead(1))
    params = SamplingParams(max_tokens=400, seed=0)
    outputs = decoder.generate([[1], [2], [3], [4], [5], [6], [7], [8]], params)
    alphas = []
    for output in outputs:
        ids = torch.tensor([output.prompt_token_ids + output.token_ids])
        with torch.no_grad():
            p, q = (model(ids).logits[0, :-1].softmax(-1) for model in (target, draft))
        alphas.append(acceptance_prob(p, q))
    alpha = torch.cat(alphas)
    stats = sum((output.stats for output in outputs[1:]), outputs[0].stats)
    error = (alpha.mean() * (1 - alpha.mean()) / stats.tested).sqrt()
    assert abs(stats.acceptance_prob - alpha.mean()) < 4.5 * error  # type: ignore[operator]
