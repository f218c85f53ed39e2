"""Rows of a batch end by themselves: stops, limits, errors, and what each is charged for."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from controller_sim import CHEAP, predictor, table
from foredraft.controller import AdaptiveLookahead
from foredraft.spec import (
    BatchDecoder,
    FixedLookahead,
    RoundOutcome,
    RoundStart,
    SamplingParams,
    Together,
    strip_padding,
)
from toys import (
    greedy,
    make_decoder,
    tiny_gpt2,
    tiny_llama,
)

PROMPTS = ["Hello", "a", "日本語", "x y z", "12345"]


@pytest.mark.parametrize("gamma", [0, 3, 8])
def test_b01_eos_ends_each_row_at_every_offset_of_a_block(gamma: int) -> None:
    model = tiny_llama()
    plain = make_decoder(model, FixedLookahead(0)).generate(PROMPTS[:3], greedy(max_tokens=12))
    batch = BatchDecoder(make_decoder(model, FixedLookahead(gamma), draft=model), rows=2)
    for offset in range(0, 11, 1 if gamma else 5):
        ends = [plain[0].token_ids[offset], 259]
        model.generation_config.eos_token_id = ends
        for output, whole in zip(
            batch.generate(PROMPTS[:3], greedy(max_tokens=12)), plain, strict=True
        ):
            at = [i for i, token in enumerate(whole.token_ids) if token in ends][:1]
            expected = whole.token_ids[: at[0] + 1] if at else whole.token_ids
            assert output.token_ids == expected
            assert output.finish_reason == ("stop" if at else "length")


def test_max_tokens_at_every_offset_of_a_block() -> None:
    model = tiny_llama()
    decoder = make_decoder(model, FixedLookahead(4), draft=model)
    plain = decoder.generate("Hello", greedy(max_tokens=12))[0].token_ids
    asked = [greedy(max_tokens=length) for length in range(1, 12)]
    outputs = BatchDecoder(decoder, rows=4).generate(["Hello"] * 11, asked)
    for length, output in enumerate(outputs, start=1):
        assert output.token_ids == plain[:length]
        assert output.stats.emitted == length  # nothing was drafted beyond the limit
        assert output.finish_reason == "length"


def test_b02_stop_strings_end_their_own_row_over_block_edges() -> None:
    model = tiny_llama(seed=2)
    decoder = make_decoder(model, FixedLookahead(5), draft=model)
    whole = decoder.generate(PROMPTS, greedy(max_tokens=20))
    asked = [
        greedy(max_tokens=20, stop=() if index % 2 else (output.text[3:6],))
        for index, output in enumerate(whole)
    ]
    outputs = BatchDecoder(decoder, rows=5).generate(PROMPTS, asked)
    for index, (output, plain) in enumerate(zip(outputs, whole, strict=True)):
        stop = asked[index].stop
        assert output.text == (plain.text.split(stop[0])[0] if stop else plain.text)
        assert output.finish_reason == ("stop" if stop else "length")
    assert outputs[0].stats.block_efficiency > 1.5  # type: ignore[operator]


def test_b30_rows_finish_apart() -> None:
    decoder = make_decoder(tiny_llama(), FixedLookahead(3))
    alone = decoder.generate(PROMPTS[:2], greedy(max_tokens=30))
    end = alone[0].token_ids[1]
    early = greedy(max_tokens=30, stop_token_ids=(end,))
    batch = BatchDecoder(decoder, rows=2)
    outputs = batch.generate(PROMPTS[:2], [early, greedy(max_tokens=30)])
    assert outputs[0].token_ids == alone[0].token_ids[:2]
    assert outputs[1].token_ids == alone[1].token_ids
    first, _ = next(batch.as_ended(PROMPTS[:2], [early, greedy(max_tokens=30)]))
    assert first == 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_b29_padded_rows_equal_the_unpadded(side: str) -> None:
    decoder = make_decoder(tiny_gpt2(), FixedLookahead(3))
    ids, mask = torch.full((2, 12), 77), torch.zeros(2, 12, dtype=torch.int64)
    prompts = [[5, 6, 7], list(range(30, 42))]
    for row, prompt in enumerate(prompts):
        at = slice(12 - len(prompt), 12) if side == "left" else slice(0, len(prompt))
        ids[row, at], mask[row, at] = torch.tensor(prompt), 1
    outputs = BatchDecoder(decoder).generate(strip_padding(ids, mask), greedy(max_tokens=15))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt_token_ids == prompt
        assert output.token_ids == decoder.generate([prompt], greedy(max_tokens=15))[0].token_ids


class NothingSpeculative(Together):
    def verify(self, *_: Any) -> Any:
        raise AssertionError("a plain round ran the verifier")


def test_b39_plain_rounds_run_nothing_of_speculation() -> None:
    model, draft = tiny_llama(), tiny_llama(seed=3)
    draft.forward = None  # a draft forward would raise
    decoder = make_decoder(model, FixedLookahead(0), draft=draft)
    outputs = BatchDecoder(decoder, rows=2, draws=NothingSpeculative()).generate(
        PROMPTS, greedy(max_tokens=6)
    )
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.token_ids == decoder.generate(prompt, greedy(max_tokens=6))[0].token_ids
        assert output.stats.draft_steps == 0
        assert output.stats.draft_seconds == 0.0
        assert output.stats.acceptance_rate is None


def test_b46_rounds_without_a_draft_leave_nothing_behind() -> None:
    class SomeRounds(FixedLookahead):
        def begin_request(self, params: SamplingParams) -> None:
            self.round = 0

        def begin_round(self, start: RoundStart) -> int:
            self.round += 1
            return 0 if self.round in (1, 3, 4) else min(2, start.gamma_limit)

    model = tiny_gpt2()
    decoder = make_decoder(model, SomeRounds(2))
    plain = decoder.with_lookahead(FixedLookahead(0))
    outputs = BatchDecoder(decoder, rows=3).generate(PROMPTS, greedy(max_tokens=16))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.token_ids == plain.generate(prompt, greedy(max_tokens=16))[0].token_ids
        assert output.stats.gammas[0] >= 3
        assert output.stats.rounds == sum(output.stats.gammas.values())


def test_b48_rows_beyond_the_drafts_context_decode_plainly() -> None:
    model, draft = tiny_llama(context=128), tiny_llama(context=32)
    decoder = make_decoder(model, FixedLookahead(4), draft=draft)
    prompts = ["x" * 20, "y" * 31, "z" * 32, "w" * 60, "v"]
    outputs = BatchDecoder(decoder, rows=3).generate(prompts, greedy(max_tokens=20))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.token_ids == decoder.generate(prompt, greedy(max_tokens=20))[0].token_ids
        if len(prompt) >= 32:
            assert output.stats.drafted == 0
            assert output.stats.acceptance_rate is None
    assert outputs[4].stats.drafted > 0


def test_b25_the_targets_context_is_never_overrun() -> None:
    model = tiny_gpt2(context=64)
    decoder = make_decoder(model, FixedLookahead(5), draft=model)
    outputs = BatchDecoder(decoder, rows=2).generate(
        ["y" * 58, "a", "y" * 63], greedy(max_tokens=20)
    )
    assert [len(output.token_ids) for output in outputs] == [6, 20, 1]
    assert {output.finish_reason for output in outputs} == {"length"}


def test_penalties_samples_and_logprobs_are_those_of_single_decoding() -> None:
    decoder = make_decoder(tiny_llama().double(), FixedLookahead(3))
    params = SamplingParams(
        n=2, seed=3, max_tokens=12, logprobs=2, repetition_penalty=1.2, frequency_penalty=0.3,
        min_tokens=4, logit_bias={5: 2.0}, stop_token_ids=(10, 60, 90, 120, 200),
    )  # fmt: skip
    alone = decoder.generate(PROMPTS[:4], params)
    together = BatchDecoder(decoder, rows=3).generate(PROMPTS[:4], params)
    for single, row in zip(alone, together, strict=True):
        assert len(row.outputs) == 2
        for one, other in zip(single.outputs, row.outputs, strict=True):
            assert other.token_ids == one.token_ids
            assert (other.text, other.finish_reason) == (one.text, one.finish_reason)
            assert other.stats.discarded == one.stats.discarded
            assert [t.token_id for t in other.logprobs or ()] == other.token_ids
            for a, b in zip(other.logprobs or (), one.logprobs or (), strict=True):
                assert (a.rank, list(a.top)) == (b.rank, list(b.top))
                assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_the_rows_seconds_add_up_to_the_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that ticks once a look: each row's share is known, and together they are all ticks.
    clock = itertools.count()
    fake = SimpleNamespace(perf_counter=clock.__next__)
    for module in ("batch_round", "batch_drafter", "batch"):
        monkeypatch.setattr(f"foredraft.spec.{module}.time", fake)
    outcomes: list[RoundOutcome] = []

    class Noting(FixedLookahead):
        def end_round(self, outcome: RoundOutcome) -> None:
            outcomes.append(outcome)

        def for_rows(self, count: int) -> list[Any]:
            return [Noting(gamma) for gamma in (0, 1, 3)[:count]]

    decoder = make_decoder(tiny_llama(), Noting(3))
    BatchDecoder(decoder, rows=3).generate(["a", "b", "c"], greedy(max_tokens=5))
    first = outcomes[:3]
    assert [outcome.drafted for outcome in first] == [0, 1, 3]
    # looks: begin; 2 a depth; forward begun, forward ended; end. A forward of the target is 1 tick.
    assert sum(outcome.round_seconds for outcome in first) == pytest.approx(9)
    assert [outcome.verify_seconds for outcome in first] == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert [outcome.draft_seconds for outcome in first] == pytest.approx([0, 1 / 2, 5 / 2])


def test_adaptive_rows_learn_together_and_keep_the_output() -> None:
    model = tiny_llama()
    adaptive = AdaptiveLookahead(predictor(), table(CHEAP))
    decoder = make_decoder(model, adaptive)
    batch = BatchDecoder(decoder, rows=3)
    outputs = batch.generate(PROMPTS, greedy(max_tokens=20))
    plain = decoder.with_lookahead(FixedLookahead(0))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.token_ids == plain.generate(prompt, greedy(max_tokens=20))[0].token_ids
    assert sum(output.stats.drafted for output in outputs) > 0
    rows: list[Any] = list(batch._policies)
    assert len({id(row) for row in rows}) == 3
    assert len({id(row._costs) for row in rows}) == 1  # shared
    assert sum(adaptive.kinds.values()) == 0  # what it was made from is left as it was
    assert sum(rows[0].kinds.values()) == sum(output.stats.rounds for output in outputs)
