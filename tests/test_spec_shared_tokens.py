"""A draft over the tokens that two vocabularies share: greedy token for token, twins, refusals."""

from __future__ import annotations

import pytest

from controller_sim import predictor
from controller_sim import table as latency_table
from foredraft.controller import AdaptiveLookahead, RoundCosts
from foredraft.spec import (
    BatchDecoder,
    DecodeStats,
    FixedLookahead,
    SamplingParams,
    SharedTokensDrafter,
    SpeculativeDecoder,
)
from toy_tokenizers import TEXTS, BigramLM, make_tokenizer
from toys import greedy, tiny_llama

PROMPTS = (TEXTS[0][:9], TEXTS[3][:5], TEXTS[4][:9], "<user>the ")


def shared_drafter(target: str, draft: str) -> SharedTokensDrafter:
    ours, theirs = make_tokenizer(target), make_tokenizer(draft)
    return SharedTokensDrafter(BigramLM(theirs), theirs, ours, width=len(ours))


@pytest.mark.parametrize(
    ("target", "draft"),
    [("bytes", "chars"), ("byte-bpe", "unigram"), ("wordpiece", "byte-bpe"), ("bytes", "byte-bpe")],
)
def test_greedy_equals_plain_decoding(target: str, draft: str) -> None:
    tokenizer = make_tokenizer(target)
    model = BigramLM(tokenizer)
    params = greedy(max_tokens=16)
    expected = SpeculativeDecoder(model, tokenizer).generate(PROMPTS, params)
    drafter = shared_drafter(target, draft)
    decoder = SpeculativeDecoder(model, tokenizer, drafter, FixedLookahead(3))
    for one in (decoder, decoder.twin(FixedLookahead(2))):
        outputs = one.generate(PROMPTS, params)
        assert [output.token_ids for output in outputs] == [out.token_ids for out in expected]
        stats = sum((output.stats for output in outputs), DecodeStats())
        assert stats.tested > stats.accepted > 0
        assert stats.draft_steps == stats.drafted  # a step is one of the target's tokens


def test_the_controller_decides_by_its_logits() -> None:
    tokenizer = make_tokenizer("bytes")
    costs = RoundCosts(draft_step=0.1, verify=(1.0, 1.05, 1.1))
    adaptive = AdaptiveLookahead(predictor(), latency_table(costs), gamma_max=2)
    model = BigramLM(tokenizer)
    decoder = SpeculativeDecoder(model, tokenizer, shared_drafter("bytes", "chars"), adaptive)
    params = greedy(max_tokens=20)
    [expected] = SpeculativeDecoder(model, tokenizer).generate(TEXTS[4], params)
    [output] = decoder.generate(TEXTS[4], params)
    assert output.token_ids == expected.token_ids
    assert output.stats.drafted > 0


def test_a_seed_gives_the_same_tokens_again() -> None:
    tokenizer = make_tokenizer("bytes")
    decoder = SpeculativeDecoder(
        BigramLM(tokenizer), tokenizer, shared_drafter("bytes", "chars"), FixedLookahead(3)
    )
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=20)
    first, again = (decoder.generate(PROMPTS[:2], params) for _ in range(2))
    assert [out.token_ids for out in first] == [out.token_ids for out in again]
    assert sum(out.stats.accepted for out in first) > 0


def test_batches_and_vocabularies_without_a_common_token_are_refused() -> None:
    tokenizer = make_tokenizer("bytes")
    drafter = shared_drafter("bytes", "chars")
    decoder = SpeculativeDecoder(tiny_llama(vocabulary=len(tokenizer)), tokenizer, drafter)
    obstacle = BatchDecoder(decoder, rows=2).obstacle
    assert obstacle is not None
    assert "SharedTokensDrafter(BigramLM, shared=" in obstacle
    with pytest.raises(ValueError, match="draft: its vocabulary shares no token with the target's"):
        SharedTokensDrafter(drafter.cached.model, make_tokenizer("chars"), tokenizer, width=0)
