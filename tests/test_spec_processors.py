"""Custom logits processors in a block: 2-D scores, one logical call a position, state that rolls back."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TypicalLogitsWarper,
    WatermarkLogitsProcessor,
)

from foredraft.spec import FixedLookahead, ModelDrafter, SamplingParams, SpeculativeDecoder
from toys import byte_tokenizer, noisy_copy, tiny_llama

MODEL = tiny_llama()
DRAFT = noisy_copy(MODEL, scale=0.03)
PROMPT = byte_tokenizer().encode("Hello")
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
CPU = "cpu"
ENDS = torch.tensor([3])

STOCK: dict[str, Any] = {
    "repetition": lambda: RepetitionPenaltyLogitsProcessor(1.5),
    "ngram": lambda: NoRepeatNGramLogitsProcessor(2),
    "bad words": lambda: NoBadWordsLogitsProcessor([[5], [7, 8], [1, 2, 3]]),
    "bias": lambda: SequenceBiasLogitsProcessor({(9,): 4.0, (9, 9): -20.0}),
    "suppress": lambda: SuppressTokensLogitsProcessor(range(0, 200, 3), device=CPU),
    "suppress first": lambda: SuppressTokensAtBeginLogitsProcessor(range(0, 200, 2), 5, device=CPU),
    "decay": lambda: ExponentialDecayLengthPenalty((2, 1.5), ENDS, 5),
    "prefix": lambda: PrefixConstrainedLogitsProcessor(
        lambda _, ids: list(range(int(ids[-1]) % 7, 260, 7)), 1
    ),
    "min length": lambda: MinLengthLogitsProcessor(12, ENDS, device=CPU),
    "min new": lambda: MinNewTokensLengthLogitsProcessor(5, 6, ENDS, device=CPU),
    "forced bos": lambda: ForcedBOSTokenLogitsProcessor(6),
    "inf": lambda: InfNanRemoveLogitsProcessor(),
    "warpers": lambda: LogitsProcessorList(
        [TemperatureLogitsWarper(0.7), TopKLogitsWarper(20), TypicalLogitsWarper(0.9)]
    ),
    "watermark": lambda: WatermarkLogitsProcessor(vocab_size=260, device=CPU, bias=6.0),
    "synthid": lambda: SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3, keys=[3, 5, 7], sampling_table_size=256, sampling_table_seed=0,
        context_history_size=16, device=torch.device(CPU),
    ),
    "normal": lambda: LogitNormalization(),
}  # fmt: skip


def decoder_of(gamma: int) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        MODEL, byte_tokenizer(), ModelDrafter(DRAFT, width=260), FixedLookahead(gamma)
    )


def generated(processors: list[Any]) -> list[int]:
    whole = MODEL.generate(
        torch.tensor([PROMPT]),
        do_sample=False,
        max_new_tokens=24,
        logits_processor=LogitsProcessorList(processors),
    )
    return whole[0, len(PROMPT) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", STOCK)
def test_b15_stock_processors_give_in_a_block_what_they_give_in_generate(name: str) -> None:
    made = [STOCK[name](), STOCK[name]()]
    flat = [list(each) if isinstance(each, LogitsProcessorList) else [each] for each in made]
    output = decoder_of(4).generate([PROMPT], GREEDY, logits_processors=flat[0])[0]
    assert output.token_ids == generated(flat[1])
    assert output.stats.accepted > 0


class Script:
    """Forces token n at call n, and keeps count by itself."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.calls = tokens, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert scores.ndim == input_ids.ndim == 2
        scores = torch.full_like(scores, -torch.inf)
        scores[:, self.tokens[self.calls]] = 0.0
        self.calls += 1
        return scores


class Sticky:
    """Remembers the scores of the last position and mixes them in: its state is a tensor."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        mixed = scores if self.last is None else 0.6 * scores + 0.4 * self.last
        self.last = mixed
        return mixed


@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("make", [lambda: Script(list(range(60, 90))), Sticky])
def test_b14_state_is_one_logical_call_a_position(make: Any, gamma: int) -> None:
    processor = make()
    decoder = decoder_of(gamma)
    outputs = decoder.generate([PROMPT, PROMPT], GREEDY, logits_processors=[processor])
    expected = generated([make()])
    assert [output.token_ids for output in outputs] == [expected, expected]
    assert vars(processor) == vars(make())  # requests share no state
    if isinstance(processor, Script) and gamma:  # the draft obeys it too, so all is accepted
        assert outputs[0].stats.accepted == outputs[0].stats.drafted > 0


def test_processors_may_share_state_and_functions_are_shared() -> None:
    shared = {"calls": 0}

    class Half:
        def __init__(self, state: dict[str, int]) -> None:
            self.state = state

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.state["calls"] += 1
            scores[:, self.state["calls"]] += 30.0
            return scores

    def plain(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores - (torch.arange(260) > 200) * 50.0

    processors: list[Any] = [Half(shared), plain, Half(shared)]
    output = decoder_of(3).generate([PROMPT], GREEDY, logits_processors=processors)[0]
    assert shared == {"calls": 0}
    again = decoder_of(0).generate([PROMPT], GREEDY, logits_processors=processors)[0]
    assert output.token_ids == again.token_ids


class Uncopyable:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


class Shared(Uncopyable):
    def __deepcopy__(self, memo: Any) -> Shared:
        return self


def test_what_cannot_follow_the_rule_is_refused() -> None:
    decoder = decoder_of(2)

    def run(processor: Any) -> Any:
        return decoder.generate([PROMPT], GREEDY, logits_processors=[processor])

    with pytest.raises(ValueError, match=r"\['Uncopyable'\] cannot be copied.*__deepcopy__"):
        run(Uncopyable())
    assert run(Shared())[0].token_ids == generated([])
    with pytest.raises(ValueError, match="logits_processors must be callables, got 3"):
        run(3)
    with pytest.raises(ValueError, match=r"must return scores of shape \(1, 260\), got \(1, 259\)"):
        run(lambda ids, scores: scores[:, 1:])
    with pytest.raises(ValueError, match="left no token after 5 tokens"):
        run(lambda ids, scores: scores - torch.inf)


def test_an_error_of_a_processor_is_one_prompts_own() -> None:
    def picky(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if int(input_ids[0, 0]) == 7:
            raise KeyError("seven")
        return scores

    with pytest.warns(RuntimeWarning, match=r"prompts\[0\] failed: KeyError\('seven'\)"):
        outputs = decoder_of(2).generate([[7, 1], PROMPT], GREEDY, logits_processors=[picky])
    assert isinstance(outputs[0].error, KeyError)
    assert outputs[1].token_ids == generated([])
