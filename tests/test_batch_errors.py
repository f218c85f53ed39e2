"""An error ends the row it belongs to; models whose rows cannot share a forward still decode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft.spec import (
    BatchDecoder,
    FixedLookahead,
    ModelDrafter,
    RoundOutcome,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
)
from toys import greedy, make_decoder, noisy_copy, tiny_llama

PROMPTS = ["Hello", "a", "日本語", "x y z", "12345"]


class Failing(FixedLookahead):
    """Raises in one call of the second row."""

    def __init__(self, where: str) -> None:
        super().__init__(3)
        self.where = where
        self.asked = 0

    def _maybe(self, where: str) -> None:
        self.asked += where == self.where
        if where == self.where and self.asked == 2:
            raise RuntimeError(f"no {where}")

    def begin_request(self, params: SamplingParams) -> None:
        if self.where == "begin_request":
            self.asked += 1  # of two requests that ask, the first is refused
        self._maybe("begin_request")

    def begin_round(self, start: RoundStart) -> int:
        self._maybe("begin_round")
        return 9 if self.where == "gamma" else super().begin_round(start)

    def wants_step(self, depth: int) -> bool:
        self._maybe("wants_step")
        return True

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        self._maybe("wants_token")
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        self._maybe("end_round")

    def for_rows(self, count: int) -> list[Any]:
        return [Failing(self.where) if row == 1 else FixedLookahead(3) for row in range(count)]


@pytest.mark.parametrize(
    "where", ["begin_request", "begin_round", "gamma", "wants_step", "wants_token", "end_round"]
)
def test_an_error_in_one_row_leaves_the_others_alone(where: str) -> None:
    decoder = make_decoder(tiny_llama(), Failing(where))
    with pytest.warns(RuntimeWarning, match=r"prompts\[1\] failed"):
        outputs = BatchDecoder(decoder, rows=3).generate(PROMPTS[:3], greedy(max_tokens=8))
    plain = decoder.with_lookahead(FixedLookahead(0)).generate(PROMPTS[:3], greedy(max_tokens=8))
    assert outputs[1].finish_reason == "error"
    assert ("gamma must lie in" if where == "gamma" else f"no {where}") in str(outputs[1].error)
    for row in (0, 2):
        assert outputs[row].token_ids == plain[row].token_ids
        assert outputs[row].error is None


def test_all_is_checked_before_any_work() -> None:
    model = tiny_llama(context=32)
    decoder = SpeculativeDecoder(model, None, ModelDrafter(model, width=260), FixedLookahead(2))
    batch = BatchDecoder(decoder, rows=2)
    model.forward = None  # any work would raise
    good = greedy(max_tokens=5)
    wrong: list[tuple[Any, SamplingParams, str]] = [
        ([], good, "at least one token"),
        ([3] * 32, good, "context is 32"),
        ([4, 260], good, r"token ids in \[0, 260\)"),
        ("text", good, "needs a tokenizer"),
        ([5], greedy(stop=("x",)), "stop strings"),
    ]
    for prompt, params, message in wrong:
        with pytest.raises(ValueError, match=message):
            batch.generate([[1, 2], prompt], [good, params])
    assert batch.generate([]) == []
    with pytest.raises(ValueError, match="rows must be an integer >= 1, got 0"):
        BatchDecoder(decoder, rows=0)


def test_a_processor_that_raises_ends_its_own_row() -> None:
    def refuse_long(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] > 9 and int(input_ids[0, 0]) == 7:
            raise RuntimeError("too long for me")
        return scores

    decoder = make_decoder(tiny_llama(), FixedLookahead(3))
    prompts, params = [[1, 2, 3], [7, 8], [4] * 9], greedy(max_tokens=12)
    with pytest.warns(RuntimeWarning, match=r"prompts\[1\] failed: .*too long for me"):
        outputs = BatchDecoder(decoder, rows=2).generate(
            prompts, params, logits_processors=[refuse_long]
        )
    assert [output.finish_reason for output in outputs] == ["length", "error", "length"]
    assert 0 < len(outputs[1].token_ids) < 12
    for row in (0, 2):
        assert outputs[row].token_ids == decoder.generate([prompts[row]], params)[0].token_ids
    with pytest.raises(RuntimeError, match="too long"):  # nothing succeeded
        BatchDecoder(decoder).generate([prompts[1]], params, logits_processors=[refuse_long])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_of_nan_change_nothing_for_those_who_take_their_slots(temperature: float) -> None:
    model = tiny_llama()
    draft = noisy_copy(model, scale=0.03)
    with torch.no_grad():
        for some in (model, draft):
            some.get_input_embeddings().weight[200] = torch.nan
    decoder = make_decoder(model, FixedLookahead(2), draft=draft)
    prompts = [[1] * 30, [200, *[2] * 20], [5, 6], [200] * 9, [8, 9, 10]]
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=length)
        for seed, length in enumerate((24, 3, 8, 3, 8))
    ]
    outputs = dict(BatchDecoder(decoder, rows=2).as_ended(prompts, params))
    for index, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
        output = outputs[index]
        if 200 not in prompt:
            assert output.token_ids == decoder.generate([prompt], own)[0].token_ids
        elif temperature > 0.0:  # the greedy law of NaN is a token like any other
            assert output.finish_reason == "error"
            assert "not finite" in str(output.error)


def test_models_whose_rows_cannot_share_a_forward_go_one_by_one() -> None:
    model = tiny_llama()
    params = SamplingParams(max_tokens=6, seed=4)
    stretched = tiny_llama(
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    )
    decoder = make_decoder(stretched, FixedLookahead(2), draft=model)
    batch = BatchDecoder(decoder, rows=4)
    assert "dynamic rotary positions" in (batch.obstacle or "")
    outputs = batch.generate(PROMPTS, params)
    alone = decoder.generate(PROMPTS, params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in alone]
