"""Dense traces: what the draft proposes at every position, alone or together, and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.data import (
    CorpusRow,
    DenseConfig,
    DenseManifest,
    DenseText,
    read_dense_traces,
    record_dense_traces,
    signals,
)
from foredraft.data.dense_positions import dense_text, one_by_one, read_text
from foredraft.data.dense_rollouts import draft_chains, together
from foredraft.spec import CachedModel, FixedLookahead, ModelDrafter, SpeculativeDecoder
from toys import byte_tokenizer, greedy, noisy_copy, tiny_gpt2, tiny_llama

pytestmark = pytest.mark.usefixtures("one_thread")
GAMMA = 4
PROMPT = [10, 11, 12, 13, 14]
CONFIG = DenseConfig(gamma_max=GAMMA, max_tokens=20, texts_per_part=2)


def answer(model: Any, prompt: list[int], count: int) -> list[int]:
    """Return the target's greedy answer."""
    return SpeculativeDecoder(model).generate([prompt], greedy(max_tokens=count))[0].token_ids


def both(target: Any, drafter: ModelDrafter, *, count: int = 24) -> tuple[DenseText, DenseText]:
    """Return the same text drafted one position at a time and all together."""
    response = answer(target, PROMPT, count)
    text = read_text(
        CachedModel(target, width=drafter.width), PROMPT, response,
        gamma_max=GAMMA, max_tokens=count, ended=False,
    )  # fmt: skip
    alone = dense_text("x", "d", text, one_by_one(drafter, text, GAMMA), drafter, GAMMA)
    joined = dense_text("x", "d", text, together(drafter, text, GAMMA), drafter, GAMMA)
    return alone, joined


def assert_equal(one: DenseText, other: DenseText) -> None:
    for name in ("tokens", "gamma_limit", "accepted_length", "drafts"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("looks", "acceptance_prob", "target_looks"):
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), rtol=1e-4, atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_together_is_one_by_one(attention: str) -> None:
    target = tiny_llama(seed=1, attn_implementation=attention)
    drafter = ModelDrafter(noisy_copy(target, scale=0.05), width=260)
    alone, joined = both(target, drafter)
    assert_equal(alone, joined)
    assert set(alone.accepted_length.tolist()) >= {0, 1, GAMMA}, "the draft must err now and then"


def test_together_is_one_by_one_with_learned_positions_and_a_short_draft_context() -> None:
    target = tiny_gpt2(seed=2, context=128)
    draft = tiny_gpt2(seed=2, context=20)
    state = {name: value.clone() for name, value in target.state_dict().items()}
    state["transformer.wpe.weight"] = state["transformer.wpe.weight"][:20]
    draft.load_state_dict(state)
    drafter = ModelDrafter(noisy_copy(draft, scale=0.02), width=260)
    alone, joined = both(target, drafter)
    assert_equal(alone, joined)
    assert alone.gamma_limit.tolist()[-9:] == [0] * 9
    assert alone.gamma_limit.max() == 15


def test_together_is_one_by_one_with_a_cut_head() -> None:
    target = tiny_llama(seed=1)
    draft = noisy_copy(target, scale=0.02)
    kept = torch.tensor(sorted({*range(0, 260, 3), *answer(target, PROMPT, 24)[::2]}))
    whole = draft.get_output_embeddings()
    head = torch.nn.Linear(32, len(kept), bias=False)
    head.weight.data = whole.weight.data[kept].clone()
    draft.set_output_embeddings(head)
    drafter = ModelDrafter(draft, width=260, kept=kept)
    alone, joined = both(target, drafter)
    assert_equal(alone, joined)
    assert alone.accepted_length.max() > 0
    drawn = alone.drafts[alone.drafts >= 0]
    assert set(drawn.tolist()) <= set(kept.tolist())


def test_an_attention_that_takes_no_such_mask_is_drafted_one_by_one() -> None:
    target = tiny_llama(seed=1)
    draft = noisy_copy(target, scale=0.05)
    draft.config.layer_types = ["full_attention", "sliding_attention"]
    text = read_text(
        CachedModel(target, width=260), PROMPT, answer(target, PROMPT, 8),
        gamma_max=2, max_tokens=8, ended=False,
    )  # fmt: skip
    chains = draft_chains(ModelDrafter(draft, width=260), text, 2)
    assert [len(chain.tokens) for chain in chains] == [2] * 6 + [1, 0]


def test_a_row_says_what_the_definition_says() -> None:
    """Against plain forwards over whole sequences, position by position."""
    target = tiny_llama(seed=1)
    draft = noisy_copy(target, scale=0.05)
    dense, _ = both(target, ModelDrafter(draft, width=260), count=10)
    sequence = PROMPT + dense.tokens.tolist()
    for position in (0, 3, 6):
        context = sequence[: len(PROMPT) + position]
        with torch.inference_mode():
            law = target(torch.tensor([context])).logits[0, -1]
        np.testing.assert_allclose(dense.target_looks[position], signals(law), atol=1e-4)
        on_text = 0
        agreed = True
        for depth in range(GAMMA if position < 6 else 3):
            with torch.inference_mode():
                q = draft(torch.tensor([context])).logits[0, -1]
                p = target(torch.tensor([context])).logits[0, -1]
            np.testing.assert_allclose(dense.looks[position, depth], signals(q), atol=1e-4)
            overlap = torch.minimum(p.softmax(-1), q.softmax(-1)).sum() if agreed else torch.nan
            np.testing.assert_allclose(dense.acceptance_prob[position, depth], overlap, atol=1e-4)
            token = int(q.argmax())
            assert dense.drafts[position, depth] == token
            agreed = agreed and token == sequence[len(PROMPT) + position + depth]
            on_text += agreed
            context = [*context, token]
        assert dense.accepted_length[position] == on_text


def test_a_text_that_ended_is_followed_past_its_end() -> None:
    """A block may reach over the end token: what the target would accept there is known."""
    target = tiny_llama(seed=1)
    whole = answer(target, PROMPT, 16)
    text = read_text(
        CachedModel(target, width=260), PROMPT, whole[:9], gamma_max=4, max_tokens=30, ended=True
    )
    assert text.length == 9
    assert text.tokens == whole[:13]
    assert text.end == len(PROMPT) + 30
    cut = read_text(
        CachedModel(target, width=260), PROMPT, whole[:9], gamma_max=4, max_tokens=7, ended=True
    )
    assert (cut.tokens, cut.length, cut.end) == (whole[:7], 7, len(PROMPT) + 7)


def corpus_rows(target: Any, *, temperature: float = 0.0) -> list[CorpusRow]:
    prompts = [[10 + i, 20 + i, 30] for i in range(5)]
    return [
        CorpusRow(
            id=f"t{i}", prompt_id=f"p{i}", domain="xy"[i % 2], split="test", prompt_ids=prompt,
            response_ids=answer(target, prompt, 6 + i), text="", finish_reason="stop",
            temperature=temperature,
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    target = tiny_llama(seed=1)
    drafter = ModelDrafter(noisy_copy(target, scale=0.05), width=260)
    return SpeculativeDecoder(target, byte_tokenizer(), drafter, FixedLookahead(2))


def test_an_interrupted_recording_goes_on(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    rows = corpus_rows(decoder.target.model)

    def interrupt(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_dense_traces(decoder, rows, tmp_path, CONFIG, progress=interrupt)
    assert not DenseManifest.load(tmp_path).complete
    assert [text.id for text in read_dense_traces(tmp_path)] == ["t0", "t1", "t2", "t3"]
    kept = (tmp_path / "part-00001.parquet").stat().st_mtime_ns
    manifest = record_dense_traces(decoder, rows, tmp_path, CONFIG)
    assert manifest.complete
    assert (tmp_path / "part-00001.parquet").stat().st_mtime_ns == kept
    texts = read_dense_traces(tmp_path)
    assert [text.domain for text in texts] == ["x", "y", "x", "y", "x"]
    for row, text in zip(rows, texts, strict=True):
        assert text.tokens.tolist() == row.response_ids
        assert text.prompt_length == len(row.prompt_ids)
        assert text.gamma_max == GAMMA
        written = read_text(
            decoder.target, row.prompt_ids, row.response_ids,
            gamma_max=GAMMA, max_tokens=CONFIG.max_tokens, ended=True,
        )  # fmt: skip
        drafter = decoder.drafter
        assert isinstance(drafter, ModelDrafter)
        chains = one_by_one(drafter, written, GAMMA)
        assert_equal(text, dense_text(row.id, row.domain, written, chains, drafter, GAMMA))


def test_what_cannot_be_recorded_is_named(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    rows = corpus_rows(decoder.target.model)
    with pytest.raises(ValueError, match="texts must not be empty"):
        record_dense_traces(decoder, [], tmp_path, CONFIG)
    with pytest.raises(ValueError, match=r"t0 has temperature 0\.7, not 0"):
        record_dense_traces(
            decoder, corpus_rows(decoder.target.model, temperature=0.7), tmp_path, CONFIG
        )
    with pytest.raises(ValueError, match="holds no dense traces"):
        read_dense_traces(tmp_path)
    record_dense_traces(decoder, rows[:1], tmp_path, CONFIG)
    with pytest.raises(ValueError, match="holds dense traces with texts_hash"):
        record_dense_traces(decoder, rows, tmp_path, CONFIG)
    with pytest.raises(ValueError, match="holds dense traces with config"):
        record_dense_traces(decoder, rows[:1], tmp_path, DenseConfig(gamma_max=3))
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema": 2', '"schema": 9'))
    with pytest.raises(ValueError, match="schema is 9, expected 1 or 2"):
        read_dense_traces(tmp_path)
    with pytest.raises(ValueError, match="gamma_max must be an integer >= 1, got 0"):
        DenseConfig(gamma_max=0)
