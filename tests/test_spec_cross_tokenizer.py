"""A draft with another tokenizer: greedy token for token, what is proposed is what the draft said, limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from controller_sim import predictor
from controller_sim import table as latency_table
from families import FAMILIES, build, transformers_greedy
from foredraft.controller import AdaptiveLookahead, RoundCosts
from foredraft.spec import (
    BatchDecoder,
    CrossTokenizerDrafter,
    DecodeStats,
    Drafter,
    FixedLookahead,
    GeneratorDraws,
    Proposal,
    RequestOutput,
    SamplingParams,
    SpeculativeDecoder,
    TokenLaw,
    foredraft_generate,
)
from toy_tokenizers import COMBINING, EMOJI, PAIRS, TEXTS, BigramLM, make_tokenizer
from toys import greedy, tiny_llama

PROMPTS = (TEXTS[0][:9], TEXTS[2][:30], TEXTS[3][:5], TEXTS[4][:10], TEXTS[5][:8], "<user>the ")


def total(outputs: list[RequestOutput]) -> DecodeStats:
    return sum((output.stats for output in outputs), DecodeStats())


def bigram_drafter(draft: str, target: str, **settings: Any) -> CrossTokenizerDrafter:
    tokenizer = make_tokenizer(draft)
    model = BigramLM(tokenizer, **settings)
    return CrossTokenizerDrafter(model, tokenizer, make_tokenizer(target))


def propose(drafter: Drafter, tokens: Sequence[int], gamma: int, width: int) -> Proposal:
    law = TokenLaw(SamplingParams(), [], width=width, eos_token_ids=[], device=torch.device("cpu"))
    return drafter.propose(tokens, gamma, FixedLookahead(gamma), law, GeneratorDraws(0))


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_greedy_equals_plain_decoding(target: str, draft: str) -> None:
    tokenizer = make_tokenizer(target)
    model = BigramLM(tokenizer)
    params = greedy(max_tokens=16)
    expected = SpeculativeDecoder(model, tokenizer).generate(PROMPTS, params)
    decoder = SpeculativeDecoder(model, tokenizer, bigram_drafter(draft, target), FixedLookahead(3))
    outputs = decoder.generate(PROMPTS, params)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    assert [output.text for output in outputs] == [output.text for output in expected]
    stats = total(outputs)
    assert stats.accepted > 0
    assert stats.tested > stats.accepted  # both ways of emitting are there


class Reading(CrossTokenizerDrafter):
    """Notes what the draft model said and what was proposed for it."""

    said: list[tuple[str, str, bool]]

    def propose(self, tokens: Sequence[int], *asked: Any) -> Proposal:
        drawn: list[int] = []
        spell = self._spell

        def noting(ids: list[int]) -> Any:
            drawn[:] = ids
            return spell(ids)

        self._spell = noting  # type: ignore[method-assign,assignment]
        proposal = super().propose(tokens, *asked)
        self._spell = spell  # type: ignore[method-assign]
        ids = [token for token in proposal.tokens if token != self._target.eos]
        said = [*self._translation.target_end(), *self._translation.pending]
        before = self._translation.draft_end()
        theirs = self._own.decode([*before, *drawn])[len(self._own.decode(before)) :]
        known = self._target.decode(self._translation.target_end())
        ours = self._target.decode([*said, *ids])[len(known) :]
        self.said.append((ours, theirs.removeprefix(self._translation.uncovered), bool(ids)))
        return proposal


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_what_is_proposed_spells_what_the_draft_said(target: str, draft: str) -> None:
    """Emoji, CJK, combining characters, runs of white space: cut at every token of every text."""
    ours, theirs = make_tokenizer(target), make_tokenizer(draft)
    texts = (*TEXTS, EMOJI * 2, COMBINING, " \n \t  x")
    drafter = Reading(BigramLM(theirs), theirs, ours)
    proposals = 0
    for text in texts:
        drafter.said = []
        drafter.reset(200)
        ids = ours.encode(text)
        for length in range(1, len(ids) + 1, 3):
            drafted = propose(drafter, ids[:length], 4, len(ours)).tokens
            assert len(drafted) <= 4
            drafter.roll_back(length)
        for spelled, said, any_text in drafter.said:
            assert not any_text or said.startswith(spelled.rstrip("\ufffd"))
            proposals += any_text
    assert proposals > 10


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_greedy_equals_generate_with_random_models(name: str) -> None:
    ours, theirs = make_tokenizer("byte-bpe"), make_tokenizer("unigram", adds_bos=True)
    target = build(name, attention=FAMILIES[name].attention[0], vocab_size=len(ours))
    draft = tiny_llama(vocabulary=len(theirs), seed=3)
    prompts = [ours.encode(text) for text in PROMPTS[:3]]
    expected = [transformers_greedy(target, prompt, 16) for prompt in prompts]
    spoken = tuple(ours.decode([*p, *e]) for p, e in zip(prompts, expected, strict=True))
    for model in (draft, BigramLM(theirs, spoken)):  # what is never and what is often believed
        drafter = CrossTokenizerDrafter(model, theirs, ours)
        decoder = SpeculativeDecoder(target, ours, drafter, FixedLookahead(4))
        outputs = decoder.generate(prompts, greedy(max_tokens=16))
        assert [output.token_ids for output in outputs] == expected
        assert total(outputs).drafted > 3
    assert total(outputs).accepted > 0


def test_the_models_may_change_places() -> None:
    for target, draft in (("byte-bpe", "chars"), ("chars", "byte-bpe")):
        tokenizer = make_tokenizer(target)
        decoder = SpeculativeDecoder(
            BigramLM(tokenizer), tokenizer, bigram_drafter(draft, target), FixedLookahead(4)
        )
        stats = total(decoder.generate(PROMPTS[:3], greedy(max_tokens=30)))
        assert stats.accepted > 0
        # A piece of the target takes several characters to draft, a piece of the draft gives several.
        assert (stats.draft_steps > 1.5 * stats.drafted) == (draft == "chars")


def test_stop_strings_limits_and_streams() -> None:
    tokenizer = make_tokenizer("byte-bpe")
    decoder = SpeculativeDecoder(
        BigramLM(tokenizer), tokenizer, bigram_drafter("unigram", "byte-bpe"), FixedLookahead(5)
    )
    plain = SpeculativeDecoder(BigramLM(tokenizer), tokenizer)
    for params in (
        greedy(max_tokens=30, stop=("e do",)),
        greedy(max_tokens=30, stop=("猫",)),
        *(greedy(max_tokens=limit) for limit in range(1, 8)),
    ):
        for prompt in (TEXTS[0][:7], TEXTS[3][:2]):
            [expected] = plain.generate(prompt, params)
            [output] = decoder.generate(prompt, params)
            assert output.token_ids == expected.token_ids
            assert (output.text, output.finish_reason) == (expected.text, expected.finish_reason)
            assert "".join(decoder.stream(prompt, params)) == expected.text


def test_the_drafts_end_is_proposed_as_the_targets() -> None:
    ours, theirs = make_tokenizer("byte-bpe"), make_tokenizer("chars")
    text = "the rain."
    drafter = CrossTokenizerDrafter(BigramLM(theirs, ("n.",)), theirs, ours)
    drafter.reset(60)
    prompt = ours.encode(text[:-1])
    proposal = propose(drafter, prompt, 4, len(ours))
    assert proposal.tokens == [*ours.encode("."), ours.eos_token_id]
    assert proposal.steps == 2
    assert propose(drafter, prompt, 1, len(ours)).tokens == ours.encode(".")
    assert propose(drafter, prompt, 4, ours.eos_token_id).tokens == []  # "." has a higher id


def test_a_small_context_of_the_draft_does_not_end_its_drafts() -> None:
    ours, theirs = make_tokenizer("byte-bpe"), make_tokenizer("chars")
    target = BigramLM(ours)
    draft = tiny_llama(vocabulary=len(theirs), context=24)
    params = greedy(max_tokens=30, ignore_eos=True)
    [expected] = SpeculativeDecoder(target, ours).generate(TEXTS[0], params)
    drafter = CrossTokenizerDrafter(draft, theirs, ours)
    [output] = SpeculativeDecoder(target, ours, drafter, FixedLookahead(3)).generate(
        TEXTS[0], params
    )
    assert output.token_ids == expected.token_ids
    assert output.stats.draft_steps > 25
    assert drafter._draft.cached.cache.capacity <= 24


def test_the_draft_model_reads_the_text_in_its_own_tokens() -> None:
    """Its cache after every round holds the whole encoding, whatever was drafted and taken back."""
    ours, theirs = make_tokenizer("byte-bpe"), make_tokenizer("unigram", adds_bos=True)
    drafter = CrossTokenizerDrafter(tiny_llama(vocabulary=len(theirs)), theirs, ours)
    drafter.reset(300)
    ids = ours.encode(TEXTS[0] + TEXTS[1])
    for length in range(1, len(ids), 3):
        propose(drafter, ids[:length], 3, len(ours))
        logits = drafter._draft.logits([])
        whole = theirs(ours.decode(ids[:length]))["input_ids"]
        with torch.inference_mode():
            fresh = drafter._draft.cached.model(torch.tensor([whole])).logits[:, -1]
        assert torch.allclose(logits, fresh, atol=1e-3)


def test_refusals_name_the_way_out(tmp_path: Path) -> None:
    ours, theirs = make_tokenizer("byte-bpe"), make_tokenizer("chars")
    drafter = bigram_drafter("chars", "byte-bpe")
    decoder = SpeculativeDecoder(tiny_llama(vocabulary=len(ours)), ours, drafter)
    batch = BatchDecoder(decoder, rows=2)
    assert batch.obstacle is not None
    assert "CrossTokenizerDrafter(BigramLM) drafts one sequence at a time" in batch.obstacle
    prompts = list(PROMPTS[:2])
    params = greedy(max_tokens=8)
    alone = decoder.generate(prompts, params)
    assert [out.token_ids for out in batch.generate(prompts, params)] == [
        out.token_ids for out in alone
    ]
    costs = RoundCosts(draft_step=0.1, verify=(1.0, 1.05, 1.1))
    adaptive = AdaptiveLookahead(predictor(), latency_table(costs), gamma_max=2)
    with pytest.raises(ValueError, match="decides by a draft model's logits, and CrossTokenizer"):
        decoder.with_lookahead(adaptive)

    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="draft: a drafter across tokenizers needs fast ones"):
        CrossTokenizerDrafter(drafter._draft.cached.model, Slow(), ours)
    target, draft = str(tmp_path / "target"), str(tmp_path / "draft")
    for folder, tokenizer in ((target, ours), (draft, theirs)):
        model = tiny_llama(vocabulary=len(tokenizer))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match='cross-tokenizer drafter: draft="cross:" before its name'):
        SpeculativeDecoder.from_pretrained(target, draft=draft)
    by_name = SpeculativeDecoder.from_pretrained(target, draft=f"cross:{draft}", lookahead=3)
    assert isinstance(by_name.drafter, CrossTokenizerDrafter)
    prompt = ours.encode(TEXTS[0])
    [output] = by_name.generate([prompt], greedy(max_tokens=12))
    model = by_name.target.model
    drop_in = foredraft_generate(f"cross:{draft}", 3, tokenizer=ours)
    whole = model.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, custom_generate=drop_in
    )
    assert whole[0, len(prompt) :].tolist() == output.token_ids
    assert drop_in.stats[0].drafted > 0
