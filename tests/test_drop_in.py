"""Our loop on a user's own `generate` call: the same tokens, types and shapes as transformers gives."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import GenerateDecoderOnlyOutput

from foredraft.spec import FixedLookahead, drop_in, foredraft_generate
from foredraft.spec.drop_in_law import call_law, lifted
from toys import (
    ScriptedDraws,
    byte_tokenizer,
    enumerate_law,
    noisy_copy,
    tiny_gpt2,
    tiny_llama,
)

GREEDY: dict[str, Any] = {
    "plain": {},
    "one_end": {"eos_token_id": 217, "pad_token_id": 3},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 12, "eos_token_id": list(range(0, 260, 5))},
    "suppress": {"suppress_tokens": list(range(100, 200)), "begin_suppress_tokens": [1, 2, 3]},
    "sequence_bias": {"sequence_bias": {(7,): 5.0, (9, 11): 3.0}},
    "bad_words": {"bad_words_ids": [[5], [6, 7]]},
    "forced_end": {"forced_eos_token_id": 8, "eos_token_id": 8},
    "decay": {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 8},
    "renormalized": {"renormalize_logits": True, "remove_invalid_values": True},
    "max_length": {"max_length": 17, "max_new_tokens": None},
    "chunks": {"prefill_chunk_size": 3},
}


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.puts: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.puts.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


class CountingProcessor(LogitsProcessor):  # type: ignore[misc]
    """Forces token n at call n: right only where it is asked once for each token."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert scores.ndim == 2
        self.calls += 1
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.calls] = 0.0
        return forced


class OddPositions(LogitsProcessor):  # type: ignore[misc]
    """Allows token ids of the length's parity; a function of its arguments."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, (input_ids.shape[1] + 1) % 2 :: 2] = -torch.inf
        return scores


class AfterTokens(StoppingCriteria):  # type: ignore[misc]
    """Ends a row whose last tokens sum to a multiple of 7; keeps the lengths it was asked about."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.lengths.append(input_ids.shape[1])
        return input_ids[:, -2:].sum(-1) % 7 == 0


def pair(model: Any) -> Any:
    return noisy_copy(model, scale=0.03)


def prompt(length: int = 6, *, seed: int = 0, vocabulary: int = 260) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (1, length), generator=generator)  # [1, L]


def both(model: Any, ours: Any, ids: torch.Tensor, **arguments: Any) -> tuple[Any, Any]:
    arguments = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None} | arguments
    return (
        model.generate(ids, **arguments),
        model.generate(ids, custom_generate=ours, **arguments),
    )


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("options", GREEDY.values(), ids=GREEDY)
def test_greedy_equals_generate(make_model: Any, options: dict[str, Any]) -> None:
    model = make_model()
    ours = foredraft_generate(pair(model), 3)
    expected, got = both(model, ours, prompt(), **options)
    assert torch.equal(expected, got)
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype
    assert ours.stats[0].drafted > 0


@pytest.mark.parametrize("gamma", [0, 1, 8])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_b17_greedy_equals_generate_from_prompts_of_any_length(gamma: int, length: int) -> None:
    model = tiny_gpt2()
    expected, got = both(model, foredraft_generate(pair(model), gamma), prompt(length))
    assert torch.equal(expected, got)


def padded_batch() -> dict[str, torch.Tensor]:
    rows = [prompt(length, seed=length)[0] for length in (3, 9, 1)]
    ids = torch.full((3, 9), 4)  # [B, L]
    mask = torch.zeros(3, 9, dtype=torch.int64)
    for row, tokens in enumerate(rows):
        ids[row, 9 - len(tokens) :] = tokens
        mask[row, 9 - len(tokens) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("make_model", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize(
    "options", [{}, {"repetition_penalty": 1.4}, {"no_repeat_ngram_size": 2}, {"num": 2}]
)
def test_b29_left_padding_and_b30_rows_that_end_apart(
    make_model: Any, options: dict[str, Any]
) -> None:
    model = make_model()
    ours = foredraft_generate(pair(model), 3)
    ends = {"eos_token_id": list(range(0, 260, 9)), "pad_token_id": 4}
    arguments = {"max_new_tokens": 24, "do_sample": False} | ends
    if options.pop("num", None):  # a pad token of any value changes nothing
        arguments["pad_token_id"] = 200
    batch = padded_batch()
    expected = model.generate(**batch, **arguments, **options)
    got = model.generate(**batch, **arguments, **options, custom_generate=ours)
    assert torch.equal(expected, got)
    generated = [row[9:].tolist() for row in got]
    lengths = {next((i for i, t in enumerate(row) if t % 9 == 0), 24) for row in generated}
    assert len(lengths) > 1  # else nothing ended apart
    assert len(ours.stats) == 3


def test_prefix_function_sees_the_row_it_belongs_to() -> None:
    model = tiny_llama()

    def allowed(row: int, ids: torch.Tensor) -> list[int]:
        return list(range(row * 80, row * 80 + 60 + len(ids) % 7))

    arguments = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 4, "eos_token_id": 259}
    expected, got = (
        model.generate(
            **padded_batch(), **arguments, prefix_allowed_tokens_fn=allowed, custom_generate=custom
        )
        for custom in (None, foredraft_generate(pair(model), 3))
    )
    assert torch.equal(expected, got)


@pytest.mark.parametrize("offset", range(1, 10))
def test_b01_an_end_token_anywhere_in_a_block_ends_the_row(offset: int) -> None:
    model = tiny_llama()
    plain = model.generate(prompt(), max_new_tokens=16, do_sample=False)[0, 6:].tolist()
    ours = foredraft_generate(model, 5)  # the target drafts for itself: every block is accepted
    ends = [plain[offset], 258]
    expected, got = both(model, ours, prompt(), eos_token_id=ends, pad_token_id=0)
    assert torch.equal(expected, got)
    assert got.shape[1] == 6 + min(plain.index(end) for end in ends if end in plain) + 1


@pytest.mark.parametrize("gamma", [0, 2, 12])
def test_b02_stop_strings_and_custom_criteria_see_every_prefix(gamma: int) -> None:
    model, tokenizer = tiny_llama(), byte_tokenizer()
    text = tokenizer.decode(model.generate(prompt(), max_new_tokens=24, do_sample=False)[0, 6:])
    stops = [text[at : at + size] for at in (2, 9) for size in (1, 3) if text[at : at + size]]
    ours = foredraft_generate(model, gamma)
    for stop in stops:
        criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, [stop])])
        expected, got = both(model, ours, prompt(), stopping_criteria=criteria)
        assert torch.equal(expected, got)
    theirs, mine = AfterTokens(), AfterTokens()
    expected = both(model, ours, prompt(), stopping_criteria=[theirs])[0]
    theirs_lengths = list(theirs.lengths)[: expected.shape[1] - 6]
    got = both(model, ours, prompt(), stopping_criteria=[mine])[1]
    assert torch.equal(expected, got)
    assert mine.lengths[-len(theirs_lengths) :] == theirs_lengths


def test_stop_strings_of_the_config_are_refused_not_ignored() -> None:
    model = tiny_llama()
    with pytest.raises(ValueError, match="tokenizer"):
        both(model, foredraft_generate(), prompt(), stop_strings=["a"], tokenizer=byte_tokenizer())


@pytest.mark.parametrize("gamma", [0, 4])
def test_dict_output_has_scores_and_logits_close_to_generates(gamma: int) -> None:
    model = tiny_llama()
    ours = foredraft_generate(pair(model), gamma)
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    for options in ({}, {"repetition_penalty": 1.3, "suppress_tokens": [5, 6]}):
        expected, got = both(model, ours, prompt(), **asked, **options)
        assert type(got) is GenerateDecoderOnlyOutput
        assert torch.equal(expected.sequences, got.sequences)
        for theirs, mine in ((expected.scores, got.scores), (expected.logits, got.logits)):
            assert len(mine) == len(theirs) == 20
            torch.testing.assert_close(torch.stack(mine), torch.stack(theirs), atol=2e-4, rtol=1e-4)
            assert mine[0].dtype == theirs[0].dtype
            mine[0].add_(1.0)  # an ordinary tensor, not one of inference mode
        transitions = model.compute_transition_scores(got.sequences, got.scores)
        assert transitions.shape == (1, 20)
    without = both(model, ours, prompt(), return_dict_in_generate=True)[1]
    assert without.scores is None
    assert without.logits is None


def test_scores_of_a_row_that_has_ended_are_sure_of_the_padding() -> None:
    model = tiny_llama()
    arguments = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 4}
    got = model.generate(
        **padded_batch(),
        **arguments,
        eos_token_id=list(range(0, 260, 9)),
        return_dict_in_generate=True,
        output_scores=True,
        custom_generate=foredraft_generate(pair(model), 3),
    )
    assert len(got.scores) == got.sequences.shape[1] - 9
    laws = torch.stack(got.scores, 1).softmax(-1)  # [B, steps, V]
    assert torch.equal(laws.argmax(-1), got.sequences[:, 9:])
    assert not laws.isnan().any()


def test_streamer_gets_every_token_and_the_end() -> None:
    model = tiny_llama()
    theirs, mine = Recorder(), Recorder()
    ours = foredraft_generate(model, 4)
    model.generate(prompt(), max_new_tokens=12, do_sample=False, streamer=theirs)
    model.generate(
        prompt(), max_new_tokens=12, do_sample=False, streamer=mine, custom_generate=ours
    )
    assert mine.puts == theirs.puts
    assert mine.ended == theirs.ended == 1
    streamer = TextIteratorStreamer(byte_tokenizer(), skip_prompt=True, timeout=5.0)
    output = model.generate(
        prompt(), max_new_tokens=12, do_sample=False, streamer=streamer, custom_generate=ours
    )
    assert "".join(streamer) == byte_tokenizer().decode(output[0, 6:])
    with pytest.raises(ValueError, match="streamer: rows are decoded one after the other"):
        model.generate(
            prompt().repeat(2, 1), max_new_tokens=2, streamer=Recorder(), custom_generate=ours
        )


@pytest.mark.parametrize("rows", [1, 2])
def test_b14_a_processor_that_counts_is_asked_once_for_each_token(rows: int) -> None:
    model = tiny_llama()
    ours = foredraft_generate(model, 4)
    counting = CountingProcessor()
    ids = prompt().repeat(rows, 1)
    arguments = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": 40, "pad_token_id": 0}
    got = model.generate(ids, logits_processor=[counting], custom_generate=ours, **arguments)
    expected = model.generate(ids, logits_processor=[CountingProcessor()], **arguments)
    assert torch.equal(got, expected)
    assert torch.equal(got[0, 6:], torch.arange(1, 21))
    assert counting.calls == 0  # copies were asked
    assert ours.stats[0].accepted == ours.stats[0].drafted > 0  # the draft obeys it too


def test_what_is_left_to_our_law_is_what_the_processors_do() -> None:
    chain = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.4),
            NoRepeatNGramLogitsProcessor(2),
            TemperatureLogitsWarper(0.7),
            TopKLogitsWarper(40),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.01),
        ]
    )
    params, rest = lifted(chain, greedy=False)
    assert [type(each) for each in rest] == [NoRepeatNGramLogitsProcessor]
    assert (params.repetition_penalty, params.temperature, params.top_k) == (1.4, 0.7, 40)
    assert (params.top_p, params.min_p) == (0.9, 0.01)
    ids, drafted = prompt(), [9, 9, 200]
    logits = 3.0 * torch.randn(4, 260, generator=torch.Generator().manual_seed(1))  # [γ+1, V]
    laws = [
        call_law(
            chain, ids, row=0, width=260, device=ids.device, greedy=False, whole_scores=whole
        ).probs(logits, drafted)
        for whole in (False, True)
    ]
    torch.testing.assert_close(laws[0], laws[1])
    for place, row in enumerate(laws[0]):
        before = torch.cat([ids, torch.tensor([drafted[:place]], dtype=torch.int64)], -1)
        torch.testing.assert_close(row, chain(before, logits[place : place + 1]).softmax(-1)[0])
    # not where something comes after them, or more is set than the one number
    assert lifted([TopKLogitsWarper(4), OddPositions()], greedy=False)[0].top_k == 0
    assert len(lifted([TopKLogitsWarper(4, min_tokens_to_keep=2)], greedy=False)[1]) == 1


def test_a_processor_that_cannot_be_copied_raises() -> None:
    class Locked(CountingProcessor):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    model = tiny_llama()
    with pytest.raises(ValueError, match=r"Locked.*cannot be copied"):
        both(model, foredraft_generate(model, 2), prompt(), logits_processor=[Locked()])


def test_b15_a_processor_without_state_is_asked_about_drafted_positions() -> None:
    model = tiny_llama()
    ours = foredraft_generate(model, 4)
    expected, got = both(model, ours, prompt(), logits_processor=[OddPositions()])
    assert torch.equal(expected, got)
    assert ours.stats[0].accepted > 0


def test_seed_comes_from_the_global_generator_or_from_the_call() -> None:
    model = tiny_llama()
    ours = foredraft_generate(pair(model), 3)

    def say(**arguments: Any) -> list[int]:
        arguments = {"do_sample": True, "max_new_tokens": 12, "custom_generate": ours} | arguments
        return model.generate(prompt(), **arguments)[0].tolist()  # type: ignore[no-any-return]

    torch.manual_seed(5)
    first, second = say(), say()
    torch.manual_seed(5)
    assert say() == first != second
    state = torch.get_rng_state()
    mine = [say(generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert mine[0] == mine[1] != mine[2]
    say(do_sample=False)
    assert torch.equal(state, torch.get_rng_state())
    rows = model.generate(
        prompt(), do_sample=True, max_new_tokens=12, num_return_sequences=4, custom_generate=ours
    )
    assert rows.shape == (4, 18)
    assert len({tuple(row) for row in rows.tolist()}) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 0},
        {"top_k": 3, "temperature": 0.7},
        {"top_k": 0, "top_p": 0.8},
        {"typical_p": 0.6},
    ],
)
def test_b05_sampling_follows_the_processed_law(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = 4
    model = tiny_llama(vocabulary=vocabulary, sharpness=2.0)
    ours = foredraft_generate(tiny_llama(vocabulary=vocabulary, seed=3, sharpness=2.0), 1)
    ids = prompt(3, vocabulary=vocabulary)

    def run(draws: ScriptedDraws) -> tuple[int, ...]:
        monkeypatch.setattr(drop_in, "GeneratorDraws", lambda seed: draws)
        rows = model.generate(
            ids, do_sample=True, max_new_tokens=2, custom_generate=ours, **options
        )
        return tuple(rows[0, 3:].tolist())

    law = enumerate_law(run)  # every way that chance can go, with its probability
    expected = {}
    for first, mass in enumerate(_law(model, ids, options)):
        after = torch.cat([ids, torch.tensor([[first]])], -1)
        for second, rest in enumerate(_law(model, after, options)):
            expected[first, second] = float(mass * rest)
    for tokens, probability in expected.items():
        assert law.get(tokens, 0.0) == pytest.approx(probability, abs=1e-5)


def _law(model: Any, ids: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        asked = {"return_dict_in_generate": True, "output_scores": True}
        out = model.generate(ids, do_sample=True, max_new_tokens=1, **asked, **options)
    law: torch.Tensor = out.scores[0][0].double().softmax(-1)  # [V]
    return law


class Spy(FixedLookahead):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(2)
        self.heard: list[Any] = []

    def begin_request(self, params: Any) -> None:
        self.heard.append(params)

    def end_round(self, outcome: Any) -> None:
        self.heard.append(outcome)


def test_policy_is_told_the_settings_and_the_raw_logits() -> None:
    model, policy = tiny_llama(), Spy()
    model.generate(
        prompt(), do_sample=True, temperature=0.5, top_k=7, top_p=0.9, max_new_tokens=4,
        custom_generate=foredraft_generate(model, policy),
    )  # fmt: skip
    params, outcome = policy.heard[:2]
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 7, 0.9)
    assert outcome.target_logits.isfinite().all()
    assert (outcome.target_probs > 0).sum(-1).max() <= 7
