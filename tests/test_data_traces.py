"""Decode traces: the recorder changes nothing and writes down what the loop really did."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from foredraft.data import (
    COLUMNS,
    Prompt,
    TraceConfig,
    TraceManifest,
    TraceRecorder,
    read_trace_texts,
    read_traces,
    record_traces,
    signals,
)
from foredraft.data.files import write_lines
from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    RoundOutcome,
    RoundStart,
    SamplingParams,
    SpeculativeDecoder,
    dense,
    model_fingerprint,
    render_chat,
)
from toys import byte_tokenizer, tiny_llama

PROMPTS = [Prompt("one", "x", "hello there"), Prompt("two", "y", "how are you?")]
FILES = ["manifest.json", "texts.jsonl", "traces.parquet"]
CONFIG = TraceConfig(gamma=3, max_tokens=20, temperatures=(0.0, 0.8))


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    """A target, and a draft that is the target with some noise: accepted now and then."""
    target, draft = tiny_llama(seed=1), tiny_llama(seed=1)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.03 * torch.randn(weight.shape, generator=noise)
    return SpeculativeDecoder(
        target, byte_tokenizer(), ModelDrafter(draft, width=260), FixedLookahead(2)
    )


@pytest.fixture(scope="module")
def recorded(decoder: SpeculativeDecoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "made" / "here"
    record_traces(decoder, PROMPTS, folder, CONFIG)
    return folder


class Scripted(FixedLookahead):
    """A lookahead that answers from a script and notes every call."""

    gamma_max = 5

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.outcomes: list[RoundOutcome] = []

    def begin_request(self, params: SamplingParams) -> None:
        self.calls.append(params)

    def begin_round(self, start: RoundStart) -> int:
        self.calls.append(start)
        return min(len(self.calls) % 5, start.gamma_limit)

    def wants_step(self, depth: int) -> bool:
        self.calls.append(("step", depth))
        return len(self.calls) % 7 != 0

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        self.calls.append(("token", depth, draft_logits.tolist()))
        return len(self.calls) % 4 != 0

    def end_round(self, outcome: RoundOutcome) -> None:
        self.calls.append(("end", outcome.drafted, outcome.accepted))
        self.outcomes.append(outcome)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_recorder_is_transparent(decoder: SpeculativeDecoder, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=3)
    alone, inner = Scripted(), Scripted()
    recorder = TraceRecorder(inner)
    assert recorder.gamma_max == 5
    chats = [prompt.messages for prompt in PROMPTS]
    plain = decoder.with_lookahead(alone).chat(chats, params)
    traced = decoder.with_lookahead(recorder).chat(chats, params)
    assert [output.token_ids for output in traced] == [output.token_ids for output in plain]
    assert inner.calls == alone.calls
    assert len(recorder.rows) == sum(outcome.drafted for outcome in inner.outcomes)
    assert 0 in {outcome.drafted for outcome in inner.outcomes}  # the script had plain rounds too


def expected_rows(calls: list[Any], outcomes: Iterator[RoundOutcome]) -> list[dict[str, Any]]:
    """Work the rows out again from the calls that the inner policy saw, the slow way."""
    rows: list[dict[str, Any]] = []
    request = -1
    drawn: list[list[float]] = []
    for call, following in zip(calls, [*calls[1:], None], strict=True):
        if isinstance(call, SamplingParams):
            request, turn, recent, previous = request + 1, -1, 0.5, (math.nan, math.nan)
        elif isinstance(call, RoundStart):
            turn, context, drawn = turn + 1, call.context_length, []
        elif call[0] == "token" and not (following[0] == "end" and following[1] == len(drawn)):
            drawn.append(call[2])
        elif call[0] == "end":
            outcome = next(outcomes)
            for depth, logits in enumerate(drawn, start=1):
                law = signals(torch.tensor(logits))
                tested = depth <= outcome.accepted + 1
                p = dense(outcome.target_probs)[depth - 1]
                q = dense(outcome.draft_probs)[depth - 1]
                rows.append(
                    {
                        "request": request,
                        "round": turn,
                        "depth": depth,
                        "context_length": context,
                        "top1_logprob": law.top1_logprob,
                        "margin": law.margin,
                        "entropy": law.entropy,
                        "prev_target_top1_logprob": previous[0],
                        "prev_target_entropy": previous[1],
                        "recent_acceptance": recent,
                        "tested": tested,
                        "accepted": depth <= outcome.accepted,
                        "acceptance_prob": float(torch.minimum(p, q).sum()) if tested else math.nan,
                    }
                )
            for depth in range(1, outcome.drafted + 1):
                if depth <= outcome.accepted + 1:
                    recent = 0.85 * recent + 0.15 * (depth <= outcome.accepted)
            last = outcome.target_logits[outcome.accepted].double().log_softmax(-1)
            previous = (float(last.max()), float(-(last.exp() * last).sum()))
    return rows


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_say_what_happened(decoder: SpeculativeDecoder, temperature: float) -> None:
    inner = Scripted()
    recorder = TraceRecorder(inner)
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=3)
    decoder.with_lookahead(recorder).chat([prompt.messages for prompt in PROMPTS], params)
    expected = expected_rows(inner.calls, iter(inner.outcomes))
    assert len(recorder.rows) == len(expected) > 10
    for row, wanted in zip(recorder.rows, expected, strict=True):
        assert row.temperature == temperature
        for name, value in wanted.items():
            assert getattr(row, name) == pytest.approx(value, abs=1e-5, nan_ok=True), name
    assert {row.accepted for row in recorder.rows} == {True, False}


def test_labels_name_the_next_requests(decoder: SpeculativeDecoder) -> None:
    recorder = TraceRecorder(FixedLookahead(2))
    tracing = decoder.with_lookahead(recorder)
    params = SamplingParams(temperature=0.0, max_tokens=4)
    for prompt in PROMPTS:
        recorder.label(prompt.id, prompt.domain)
        tracing.chat([prompt.messages], params)
    assert {(r.request, r.prompt_id, r.domain) for r in recorder.rows} == {
        (0, "one", "x"),
        (1, "two", "y"),
    }


def test_recorded_columns(recorded: Path, decoder: SpeculativeDecoder) -> None:
    traces = read_traces(recorded)
    assert list(traces) == list(COLUMNS)
    kinds = {"int": np.int64, "float": np.float64, "bool": np.bool_, "str": np.str_}
    for name, kind in COLUMNS.items():
        assert np.issubdtype(traces[name].dtype, kinds[kind]), name
    assert len({len(column) for column in traces.values()}) == 1
    assert set(traces["prompt_id"]) == {"one", "two"}
    assert set(traces["request"]) == {0, 1, 2, 3}
    assert set(traces["temperature"]) == {0.0, 0.8}
    assert traces["depth"].max() == 3
    tokens = len(render_chat(decoder.tokenizer, PROMPTS[0].messages))
    assert traces["context_length"][0] == tokens
    assert not (traces["accepted"] & ~traces["tested"]).any()
    assert (np.isnan(traces["acceptance_prob"]) == ~traces["tested"]).all()
    assert (np.isnan(traces["prev_target_entropy"]) == (traces["round"] == 0)).all()
    alphas = traces["acceptance_prob"][traces["tested"]]
    assert ((alphas >= 0) & (alphas <= 1 + 1e-6)).all()
    for name in ("top1_logprob", "margin", "entropy", "recent_acceptance"):
        assert np.isfinite(traces[name]).all()


def test_acceptance_prob_predicts_acceptance(recorded: Path) -> None:
    """At temperature 0 α is the outcome; above it the sums agree within their noise."""
    traces = read_traces(recorded)
    tested = traces["tested"]
    alpha, accepted = traces["acceptance_prob"][tested], traces["accepted"][tested]
    greedy = traces["temperature"][tested] == 0.0
    assert (alpha[greedy] == accepted[greedy]).all()
    alpha, accepted = alpha[~greedy], accepted[~greedy]
    spread = math.sqrt(float((alpha * (1 - alpha)).sum()))
    # 4.9 standard deviations: one false alarm in a million seeds
    assert abs(float((accepted - alpha).sum())) < 4.9 * spread


def test_manifest_says_where_the_traces_come_from(
    recorded: Path, decoder: SpeculativeDecoder
) -> None:
    manifest, traces = TraceManifest.load(recorded), read_traces(recorded)
    assert isinstance(decoder.drafter, ModelDrafter)
    assert manifest.target_fingerprint == model_fingerprint(decoder.target.model)
    assert manifest.draft_fingerprint == model_fingerprint(decoder.drafter.cached.model)
    assert manifest.target_fingerprint != manifest.draft_fingerprint
    assert manifest.config == CONFIG
    assert (manifest.requests, manifest.rows) == (4, len(traces["depth"]))
    assert (manifest.tested, manifest.accepted) == (
        traces["tested"].sum(),
        traces["accepted"].sum(),
    )
    assert manifest.domains == {d: int((traces["domain"] == d).sum()) for d in ("x", "y")}
    assert manifest.acceptance_prob == traces["accepted"].sum() / traces["tested"].sum()


def test_recording_is_reproducible_and_each_request_alone(
    recorded: Path, decoder: SpeculativeDecoder, tmp_path: Path
) -> None:
    seen: list[tuple[int, int, int]] = []
    record_traces(decoder, PROMPTS[1:], tmp_path, CONFIG, progress=lambda *now: seen.append(now))
    alone, both = read_traces(tmp_path), read_traces(recorded)
    second = both["prompt_id"] == "two"
    for name in COLUMNS.keys() - {"request"}:
        np.testing.assert_array_equal(alone[name], both[name][second])
    assert [now[:2] for now in seen] == [(1, 2), (2, 2)]
    assert seen[-1][2] == len(alone["depth"])


def test_each_request_has_its_own_seed(
    decoder: SpeculativeDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, seeds = SpeculativeDecoder.chat, list[int | None]()

    def note_seed(self: SpeculativeDecoder, chats: Any, params: SamplingParams) -> Any:
        seeds.append(params.seed)
        return chat(self, chats, params)

    monkeypatch.setattr(SpeculativeDecoder, "chat", note_seed)
    for seed in (0, 1):
        config = TraceConfig(gamma=1, max_tokens=4, temperatures=(0.0, 0.8), seed=seed)
        record_traces(decoder, PROMPTS, tmp_path, config)
    assert None not in seeds
    assert len(set(seeds)) == len(seeds) == 8


def test_texts_are_what_was_decoded(
    recorded: Path, decoder: SpeculativeDecoder, tmp_path: Path
) -> None:
    texts = read_trace_texts(recorded)
    assert [(text.prompt_id, text.temperature) for text in texts] == [
        (prompt.id, temperature) for temperature in CONFIG.temperatures for prompt in PROMPTS
    ]
    assert len({text.id for text in texts}) == len(texts)
    greedy = decoder.chat(
        [p.messages for p in PROMPTS], SamplingParams(temperature=0, max_tokens=20)
    )
    for text, output in zip(texts, greedy, strict=False):
        assert (text.prompt_ids, text.response_ids) == (output.prompt_token_ids, output.token_ids)
        assert (text.text, text.finish_reason) == (output.text, output.finish_reason)
    with pytest.raises(ValueError, match=r"holds no texts"):
        read_trace_texts(tmp_path)


def test_line_separators_in_a_text_survive(tmp_path: Path) -> None:
    row: dict[str, Any] = dict.fromkeys(
        ["id", "prompt_id", "domain", "split", "finish_reason"], "x"
    )
    row |= {"prompt_ids": [1], "response_ids": [2], "text": "a\u2028b\x85c", "temperature": 0.0}
    write_lines(tmp_path / "texts.jsonl", [row])
    assert read_trace_texts(tmp_path)[0].text == row["text"]


def test_traces_are_plain_parquet(recorded: Path, tmp_path: Path) -> None:
    table = datasets.Dataset.from_parquet(
        str(recorded / "traces.parquet"), cache_dir=str(tmp_path), keep_in_memory=True
    )
    assert table["prompt_id"][0] == "one"
    assert sorted(file.name for file in recorded.iterdir()) == FILES


def test_what_differs_is_named(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no traces"):
        read_traces(tmp_path)
    content = json.loads((recorded / "manifest.json").read_text())

    def with_manifest(**change: Any) -> None:
        (tmp_path / "manifest.json").write_text(json.dumps(content | change))

    with_manifest()
    with pytest.raises(ValueError, match=r"has a manifest\.json but no traces\.parquet"):
        read_traces(tmp_path)
    data = (recorded / "traces.parquet").read_bytes()
    (tmp_path / "traces.parquet").write_bytes(data)
    assert len(read_traces(tmp_path)["depth"]) == content["rows"]
    with_manifest(schema=3)
    with pytest.raises(ValueError, match="schema is 3, expected 2"):
        read_traces(tmp_path)
    with_manifest(sha256="0" * 64)
    with pytest.raises(ValueError, match="not the file that"):
        read_traces(tmp_path)


def test_other_columns_are_named(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("manifest.json", "traces.parquet"):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    monkeypatch.setitem(COLUMNS, "temper", "float")
    monkeypatch.setitem(COLUMNS, "round", "float")
    with pytest.raises(
        ValueError, match=r"'round': 'int64 for double', 'temper': 'None for double'"
    ):
        read_traces(tmp_path)


def test_an_interruption_leaves_the_old_traces(
    recorded: Path, decoder: SpeculativeDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("manifest.json", "traces.parquet"):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    before = read_traces(tmp_path)

    def full(self: Any, path: str) -> None:
        Path(path).write_text("half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets.Dataset, "to_parquet", full)
    with pytest.raises(OSError, match="No space left"):
        record_traces(decoder, PROMPTS[:1], tmp_path, CONFIG)
    np.testing.assert_array_equal(read_traces(tmp_path)["entropy"], before["entropy"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["manifest.json", "traces.parquet"]


def test_bad_requests_are_named(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="prompts must not be empty"):
        record_traces(decoder, [], tmp_path, CONFIG)
    plain = SpeculativeDecoder(decoder.target.model, decoder.tokenizer)
    with pytest.raises(ValueError, match="must draft with a model, its drafter is None"):
        record_traces(plain, PROMPTS, tmp_path, CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("gamma", 0), ("max_tokens", 1), ("temperatures", (math.inf,)), ("seed", -1)],
)
def test_config_names_the_bad_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        TraceConfig(**{field: value})
