"""The target-written corpus: right tokens, right law, and whole after any interruption."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from foredraft.data import (
    CorpusConfig,
    CorpusManifest,
    Prompt,
    answers,
    corpus,
    files,
    read_corpus,
    split_of,
    write_corpus,
)
from foredraft.spec import RowOutput, full_attention, render_chat
from toys import byte_tokenizer, tiny_gpt2, tiny_llama

END = 257  # <eos> of the byte tokenizer
PROMPTS = [Prompt(f"p{i}", "xy"[i % 2], "word " * (1 + i % 3) + str(i)) for i in range(10)]
CONFIG = CorpusConfig(max_new_tokens=12, batch_size=4)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture(scope="module", params=["one by one", "by shards"])
def target(request: pytest.FixtureRequest) -> Any:
    """A model that ends about half of its answers within 12 tokens, for each way of decoding."""
    model = tiny_llama(seed=3) if request.param == "one by one" else tiny_sliding(seed=3)
    with torch.no_grad():
        model.get_output_embeddings().weight[END] *= 2.0
    model.generation_config.eos_token_id = [END, 258]
    return model


def tiny_sliding(*, seed: int) -> Any:
    """Return a random model whose layers look back 8 tokens, so that its rows go by shards."""
    config = MistralConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        sliding_window=8,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MistralForCausalLM(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(6.0)
    assert not full_attention(model)
    return model


def lines_of(folder: Path) -> list[bytes]:
    """Return the corpus' lines in an order that does not depend on which answer ended first."""
    return sorted((folder / "rows.jsonl").read_bytes().splitlines())


@pytest.fixture(scope="module")
def written(target: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "made" / "here"
    write_corpus(target, tokenizer, PROMPTS, folder, CONFIG)
    return folder


def test_each_prompt_is_answered_once_per_temperature(written: Path, tokenizer: Any) -> None:
    rows = read_corpus(written, complete_only=False)
    assert len({row.id for row in rows}) == len(rows) == 20
    by_id = {prompt.id: prompt for prompt in PROMPTS}
    for row in rows:
        prompt = by_id[row.prompt_id]
        assert (row.domain, row.split) == (prompt.domain, split_of(prompt.text))
        assert row.prompt_ids == render_chat(tokenizer, prompt.messages)
    pairs = {(row.prompt_id, row.temperature) for row in rows}
    assert pairs == {(prompt.id, t) for prompt in PROMPTS for t in (0.0, 0.7)}


def test_responses_end_at_the_first_end_token_or_the_limit(written: Path, tokenizer: Any) -> None:
    rows = read_corpus(written, complete_only=False)
    assert {row.finish_reason for row in rows} == {"stop", "length"}
    for row in rows:
        ended = [token in (END, 258) for token in row.response_ids]
        if row.finish_reason == "stop":
            assert ended.index(True) == len(ended) - 1
        else:
            assert len(row.response_ids) == 12
            assert not any(ended)
        assert row.text == tokenizer.decode(row.response_ids, skip_special_tokens=True)


def check_greedy(model: Any, folder: Path) -> None:
    """Every token is the likeliest after all before it, in a forward of that row alone."""
    rows = read_corpus(folder, complete_only=False)
    assert len({len(row.prompt_ids) for row in rows}) > 1  # else nothing was padded
    for row in rows:
        tokens = list(row.prompt_ids)
        if row.temperature > 0.0:
            continue
        for token in row.response_ids:
            assert token == int(model(torch.tensor([tokens])).logits[0, -1].argmax())
            tokens.append(token)


def test_greedy_answers_are_those_of_single_rows(written: Path, target: Any) -> None:
    check_greedy(target, written)


def test_learned_positions_start_at_the_first_token_of_a_row(
    tokenizer: Any, tmp_path: Path
) -> None:
    model = tiny_gpt2()
    write_corpus(model, tokenizer, PROMPTS, tmp_path, replace(CONFIG, temperatures=(0.0,)))
    check_greedy(model, tmp_path)


@torch.inference_mode()
def test_sampled_answers_follow_the_target_law() -> None:
    """The tokens' mean surprise is the law's entropy; a top-k or another temperature shows."""
    model = tiny_llama(seed=5, sharpness=1.5)
    prompts = [[i, 7, 2 * i] for i in range(64)]
    temperature = 1.5
    responses = answers.answer_batch(
        model, prompts, temperature=temperature, max_new_tokens=24, width=260, seed=11
    )
    surprise = variance = 0.0
    for prompt, response in zip(prompts, responses, strict=True):
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        logp = (logits.double() / temperature).log_softmax(-1)  # [24, V]
        mean = (logp.exp() * logp).sum(-1, keepdim=True)  # [24, 1]
        chosen = logp.gather(-1, torch.tensor(response)[:, None])
        surprise += float((chosen - mean).sum())
        variance += float((logp.exp() * (logp - mean) ** 2).sum())
    # 4.9 standard deviations: one false alarm in a million seeds
    assert abs(surprise) < 4.9 * variance**0.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_taste_of_the_checkpoint_takes_no_part(temperature: float) -> None:
    plain, picky = tiny_llama(), tiny_llama()
    picky.generation_config.repetition_penalty = 5.0
    picky.generation_config.top_k = 1
    picky.generation_config.bad_words_ids = [[token] for token in range(130)]
    picky.generation_config.min_new_tokens = 5
    plain_answers, picky_answers = (
        answers.answer_batch(
            model, [[1, 2]] * 4, temperature=temperature, max_new_tokens=8, width=260, seed=0
        )
        for model in (plain, picky)
    )
    assert plain_answers == picky_answers


def test_each_draw_has_its_own_seed(
    target: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def shard(model: Any, prompts: list[list[int]], *, seed: int, **_: Any) -> list[list[int]]:
        seeds.append(seed)
        return [[END] for _ in prompts]

    def one_by_one(
        model: Any, prompts: Any, params: Any, *, seeds: list[int], **_: Any
    ) -> list[RowOutput]:
        note(seeds)
        return [RowOutput(index, [END], "stop", None) for index in range(len(prompts))]

    note = seeds.extend
    monkeypatch.setattr(corpus, "answer_batch", shard)
    monkeypatch.setattr(corpus, "decode_rows", one_by_one)
    for seed in (0, 1):
        write_corpus(target, tokenizer, PROMPTS, tmp_path / str(seed), replace(CONFIG, seed=seed))
    assert len(set(seeds)) == len(seeds) == (40 if full_attention(target) else 12)


def test_padding_of_the_head_is_never_drawn() -> None:
    model = tiny_llama(vocabulary=300)
    with torch.no_grad():
        model.get_output_embeddings().weight[260:] *= 30.0
    for temperature in (0.0, 1.0):
        responses = answers.answer_batch(
            model, [[1, 2]] * 4, temperature=temperature, max_new_tokens=8, width=260, seed=0
        )
        assert max(map(max, responses)) < 260


def test_nothing_of_the_caller_is_changed(target: Any) -> None:
    settings, attributes = target.generation_config.to_dict(), set(vars(target))
    state = torch.get_rng_state()
    answers.answer_batch(
        target, [[1, 2], [3]], temperature=1.0, max_new_tokens=4, width=260, seed=0
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert target.generation_config.to_dict() == settings
    assert set(vars(target)) == attributes


def test_the_seed_decides_the_sampled_rows_only(
    written: Path, target: Any, tokenizer: Any, tmp_path: Path
) -> None:
    def responses(folder: Path, temperature: float) -> dict[str, list[int]]:
        rows = read_corpus(folder, complete_only=False)
        return {r.prompt_id: r.response_ids for r in rows if r.temperature == temperature}

    write_corpus(target, tokenizer, PROMPTS[::-1], tmp_path / "same", CONFIG)
    write_corpus(target, tokenizer, PROMPTS, tmp_path / "other", replace(CONFIG, seed=1))
    for temperature in (0.0, 0.7):
        assert responses(tmp_path / "same", temperature) == responses(written, temperature)
    assert responses(tmp_path / "other", 0.0) == responses(written, 0.0)
    assert responses(tmp_path / "other", 0.7) != responses(written, 0.7)


def test_manifest_counts_what_is_there(written: Path, target: Any) -> None:
    manifest, rows = CorpusManifest.load(written), read_corpus(written, complete_only=False)
    assert manifest.complete
    assert manifest.config == CONFIG
    assert manifest.rows == len(rows) == sum(manifest.finish_reasons.values())
    assert manifest.domains == {"x": 10, "y": 10}
    assert manifest.finish_reasons["stop"] == len(read_corpus(written))
    assert manifest.prompt_tokens == sum(len(row.prompt_ids) for row in rows)
    assert manifest.response_tokens == sum(len(row.response_ids) for row in rows)


def test_reading_filters(written: Path, target: Any, tokenizer: Any, tmp_path: Path) -> None:
    assert all(row.finish_reason == "stop" for row in read_corpus(written))
    train = read_corpus(written, split="train", complete_only=False)
    assert train
    assert all(row.split == "train" for row in train)
    with pytest.raises(ValueError, match="split must be one of train, dev, test, got 'all'"):
        read_corpus(written, split="all")
    with pytest.raises(ValueError, match="holds no corpus"):
        read_corpus(tmp_path)
    endless = tiny_llama()
    write_corpus(endless, tokenizer, PROMPTS[:1], tmp_path, CONFIG)
    with pytest.raises(ValueError, match=r"all 2 rows .* were cut at max_new_tokens = 12"):
        read_corpus(tmp_path)
    other = "test" if PROMPTS[0].split != "test" else "dev"
    with pytest.raises(ValueError, match=f"has no rows with split = '{other}'"):
        read_corpus(tmp_path, split=other)


def test_a_finished_corpus_is_not_written_again(written: Path, target: Any, tokenizer: Any) -> None:
    before = (written / "rows.jsonl").read_bytes()
    seen: list[tuple[int, int, int]] = []
    manifest = write_corpus(
        target, tokenizer, PROMPTS, written, CONFIG, progress=lambda *now: seen.append(now)
    )
    assert manifest.complete
    assert manifest.rows == 20
    assert seen == [(20, 20, 0)]
    assert (written / "rows.jsonl").read_bytes() == before


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("good_writes", [0, 1, 5])
def test_an_interrupted_corpus_resumes_into_the_same_rows(
    error: BaseException,
    good_writes: int,
    written: Path,
    target: Any,
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_all, writes = files._write_all, 0

    def failing(file: Any, data: bytes) -> None:
        nonlocal writes
        if writes == good_writes:
            file.write(data[: len(data) // 2])
            raise error
        writes += 1
        write_all(file, data)

    monkeypatch.setattr(files, "_write_all", failing)
    with pytest.raises(type(error)):
        write_corpus(target, tokenizer, PROMPTS, tmp_path, CONFIG)
    monkeypatch.undo()
    kept = (tmp_path / "rows.jsonl").read_bytes()
    assert (written / "rows.jsonl").read_bytes().startswith(kept)
    assert not CorpusManifest.load(tmp_path).complete
    sharded = [0, 4, 8, 12, 16, 18][good_writes]  # 10 prompts in 4, 4, 2, twice
    assert kept.count(b"\n") == (good_writes if full_attention(target) else sharded)
    assert write_corpus(target, tokenizer, PROMPTS, tmp_path, CONFIG).complete
    assert lines_of(tmp_path) == lines_of(written)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_a_killed_process_loses_no_more_than_its_shard(
    share: float, written: Path, target: Any, tokenizer: Any, tmp_path: Path
) -> None:
    whole = (written / "rows.jsonl").read_bytes()
    (tmp_path / "manifest.json").write_bytes((written / "manifest.json").read_bytes())
    (tmp_path / "rows.jsonl").write_bytes(whole[: int(len(whole) * share)])
    seen: list[tuple[int, int, int]] = []
    write_corpus(
        target, tokenizer, PROMPTS, tmp_path, CONFIG, progress=lambda *now: seen.append(now)
    )
    assert lines_of(tmp_path) == lines_of(written)
    cut = whole[: int(len(whole) * share)].count(b"\n")
    assert seen[0][0] == cut if full_attention(target) else cut - 4 <= seen[0][0] <= cut
    assert [now[0] for now in seen] == sorted({now[0] for now in seen})
    assert seen[-1][:2] == (20, 20)
    rows = read_corpus(tmp_path, complete_only=False)
    assert seen[-1][2] == sum(len(row.response_ids) for row in rows[seen[0][0] :])


def test_more_prompts_add_to_a_corpus(target: Any, tokenizer: Any, tmp_path: Path) -> None:
    write_corpus(target, tokenizer, PROMPTS[:5], tmp_path, CONFIG)
    first = (tmp_path / "rows.jsonl").read_bytes()
    write_corpus(target, tokenizer, PROMPTS, tmp_path, CONFIG)
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(first)
    rows = read_corpus(tmp_path, complete_only=False)
    assert len({row.id for row in rows}) == len(rows) == 20


def test_another_origin_is_refused(
    written: Path, target: Any, tokenizer: Any, tmp_path: Path
) -> None:
    before = (written / "rows.jsonl").read_bytes()
    changes: dict[str, Any] = {
        "temperatures": (0.0,),
        "max_new_tokens": 13,
        "batch_size": 5,
        "seed": 1,
    }
    for name, value in changes.items():
        config = replace(CONFIG, **{name: value})
        message = rf"config\.{name} = {getattr(CONFIG, name)!r}, not {value!r}"
        with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
            write_corpus(target, tokenizer, PROMPTS, written, config)
    with pytest.raises(
        ValueError, match=r"target_fingerprint = '[0-9a-f]{16}', not '[0-9a-f]{16}'"
    ):
        write_corpus(tiny_llama(seed=9), tokenizer, PROMPTS, written, CONFIG)
    other = byte_tokenizer()
    other.add_tokens(["another piece"])
    with pytest.raises(ValueError, match=r"tokenizer_hash = '[0-9a-f]{16}', not"):
        write_corpus(target, other, PROMPTS, written, CONFIG)
    assert (written / "rows.jsonl").read_bytes() == before
    (tmp_path / "rows.jsonl").write_bytes(before)
    with pytest.raises(ValueError, match=r"has rows\.jsonl but no manifest\.json"):
        write_corpus(target, tokenizer, PROMPTS, tmp_path, CONFIG)


def test_a_manifest_of_another_version_is_refused(written: Path, tmp_path: Path) -> None:
    content = json.loads((written / "manifest.json").read_text())
    for change, message in (
        ({"schema": 99}, "schema is 99, expected 1"),
        ({"config": {"speed": 3}}, "speed"),
        ({"surprise": 3}, "surprise"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=rf"manifest\.json: not a corpus.*{message}"):
            read_corpus(tmp_path)


def test_bad_requests_are_named(target: Any, tokenizer: Any, tmp_path: Path) -> None:
    """B85: also a prompt that leaves no room for an answer; none is cut."""
    with pytest.raises(ValueError, match="prompts must not be empty"):
        write_corpus(target, tokenizer, [], tmp_path, CONFIG)
    long = Prompt("long", "x", "a" * 600)
    with pytest.raises(ValueError, match=r"'long' has 60\d tokens; .* 512 .* allows 1 to 500"):
        write_corpus(target, tokenizer, [*PROMPTS, long], tmp_path, CONFIG)
    with pytest.raises(ValueError, match="eval mode"):
        write_corpus(tiny_llama().train(), tokenizer, PROMPTS, tmp_path, CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperatures", ()),
        ("temperatures", (0.5, 0.5)),
        ("temperatures", (-0.1,)),
        ("temperatures", (float("nan"),)),
        ("temperatures", 0.7),
        ("max_new_tokens", 0),
        ("batch_size", 0),
        ("batch_size", 2.5),
        ("seed", -1),
        ("seed", True),
    ],
)
def test_config_names_the_bad_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        CorpusConfig(**{field: value})
