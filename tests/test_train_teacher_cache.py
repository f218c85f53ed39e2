"""The teacher's cut laws on disk: whole or absent, bound to what they are of, and enough to train on."""

import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState

from foredraft.data import files
from foredraft.train import DistillConfig, distill, teacher_cache
from foredraft.train.batches import Example, make_examples
from foredraft.train.config import LOSSES
from foredraft.train.draft import first_layers
from foredraft.train.losses import DraftLoss
from foredraft.train.packing import collate
from foredraft.train.supervision import CachedLoss, answers_for, loss_module
from foredraft.train.teacher import Teacher
from foredraft.train.teacher_cache import (
    CacheOrigin,
    TeacherCache,
    example_key,
    write_teacher_cache,
)
from foredraft.train.topk import top_k
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama

ORIGIN = CacheOrigin("toy", width=260, top_k=8, temperature=0.7)
EXAMPLES = make_examples(random_rows(12), 100).examples


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(tiny_llama())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a cache goes, in several shards."""
    monkeypatch.setattr(teacher_cache, "SHARD_TOKENS", 30)
    return tmp_path / "cache"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_read_is_what_the_teacher_thinks(folder: Path, teacher: Teacher) -> None:
    write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN, chunk_tokens=3)
    assert len(list(folder.glob("laws-*.safetensors"))) > 2
    cache = TeacherCache(folder, ORIGIN)
    for some in (EXAMPLES, EXAMPLES[5:3:-1]):
        found = cache.laws(some)
        expected = top_k(teacher.logits(teacher.hidden(some)) / 0.7, 8)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.allclose(found.log_probs, expected.log_probs, atol=1e-3, rtol=1e-3)
        assert torch.allclose(found.log_sums, expected.log_sums, atol=1e-5)
        assert torch.allclose(found.log_rest, expected.log_rest, atol=1e-4)
        total = found.log_probs.float().exp().sum(-1) + found.log_rest.exp()
        assert torch.allclose(total, torch.ones(len(total)), atol=3e-3)


def test_an_interrupted_pass_goes_on_where_it_was(
    folder: Path, teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN)
    expected = contents(folder)
    shutil.rmtree(folder)

    real = files.append_group
    calls: list[Any] = []

    def fails_once(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 3:
            raise OSError("no space left")
        real(*args)

    monkeypatch.setattr(teacher_cache, "append_group", fails_once)
    with pytest.raises(OSError, match="no space"):
        write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN)
    with (folder / "index-0.jsonl").open("a") as file:
        file.write('{"group": ["x", 1], "file": "la')  # and a line that was cut off
    told: list[tuple[int, int]] = []
    write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN, progress=lambda *now: told.append(now))
    assert contents(folder) == expected
    assert 0 < told[-1][1] < sum(example.supervised for example in EXAMPLES)
    before = len(calls)
    write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN)
    assert len(calls) == before, "what is there is written again"


def test_processes_write_their_shares_and_read_all(folder: Path, teacher: Teacher) -> None:
    for part in (1, 0):
        write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN, part=part, parts=2)
    assert {path.name for path in folder.glob("index-*")} == {"index-0.jsonl", "index-1.jsonl"}
    cache = TeacherCache(folder, ORIGIN)
    assert all(example in cache for example in EXAMPLES)
    assert len(cache.laws(EXAMPLES).tokens) == sum(example.supervised for example in EXAMPLES)


def test_a_broken_shard_is_named_and_computed_anew_once_it_is_deleted(
    folder: Path, teacher: Teacher
) -> None:
    write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN)
    path = sorted(folder.glob("laws-*"))[0]
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path.name} is broken: its checksum"):
        TeacherCache(folder, ORIGIN)
    path.unlink()
    cache = TeacherCache(folder, ORIGIN)
    lost = [example for example in EXAMPLES if example not in cache]
    assert lost
    with pytest.raises(ValueError, match=f"no row {example_key(lost[0])}"):
        cache.laws(lost)
    write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN)
    assert all(example in TeacherCache(folder, ORIGIN) for example in EXAMPLES)


@pytest.mark.parametrize(
    "change",
    [{"target_fingerprint": "other"}, {"temperature": 1.0}, {"top_k": 4}, {"width": 250}],
    ids=lambda change: next(iter(change)),
)
def test_another_origin_is_refused_by_name(
    change: dict[str, Any], folder: Path, teacher: Teacher
) -> None:
    write_teacher_cache(folder, teacher, EXAMPLES[:1], ORIGIN)
    other = ORIGIN._replace(**change)
    for use in (
        lambda: write_teacher_cache(folder, teacher, EXAMPLES, other),
        lambda: TeacherCache(folder, other),
    ):
        with pytest.raises(ValueError, match=f"{next(iter(change))} = "):
            use()
    with pytest.raises(ValueError, match="holds no teacher cache"):
        TeacherCache(folder / "nothing", ORIGIN)


def test_a_row_is_bound_to_its_tokens_and_to_which_are_supervised() -> None:
    tokens = torch.arange(6)
    examples = [
        Example(tokens, 3), Example(tokens, 2), Example(tokens + 1, 3),
        Example(tokens, 3, spans=((1, 2), (4, 6))),
    ]  # fmt: skip
    assert len({example_key(example) for example in examples}) == 4
    assert example_key(Example(tokens, 3, "named")) == example_key(examples[0])


def test_the_size_is_known_and_the_disk_looked_at_before_anything_is_written(
    folder: Path, teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = sum(example.supervised for example in EXAMPLES)
    predicted = tokens * ORIGIN.token_bytes
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(predicted))
    with pytest.raises(ValueError, match=r"needs .* GB for the teacher cache, .* GB are free"):
        write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN)
    assert not folder.exists()
    monkeypatch.setattr(teacher_cache, "SHARD_TOKENS", 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2 * predicted))
    write_teacher_cache(folder, teacher, EXAMPLES, ORIGIN)
    (shard,) = folder.glob("laws-*")
    assert predicted <= shard.stat().st_size < predicted + 1000  # its header


def test_a_token_takes_about_as_much_as_was_said() -> None:
    """64 likeliest: 0.26 kB where ids fit in two bytes, 0.39 kB for Llama 3; 1 M tokens below 0.5 GB."""
    assert ORIGIN._replace(width=49_152, top_k=64).token_bytes == 264
    assert ORIGIN._replace(width=128_256, top_k=64).token_bytes == 392


@pytest.mark.parametrize("width", [40_000, 65_536, 70_000])
def test_ids_of_large_vocabularies_survive(
    width: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wide:
        width = 0

        def hidden(self, examples: list[Example]) -> torch.Tensor:
            return torch.zeros(examples[0].supervised, 1)

        def logits(self, states: torch.Tensor) -> torch.Tensor:
            return torch.arange(width, dtype=torch.float32).repeat(len(states), 1)

    origin = ORIGIN._replace(width=width, top_k=2)
    write_teacher_cache(folder, Wide(), EXAMPLES[:1], origin)  # type: ignore[arg-type]
    found = TeacherCache(folder, origin).laws(EXAMPLES[:1]).tokens
    assert found[0].tolist() == [width - 1, width - 2]


@pytest.mark.parametrize("name", LOSSES)
def test_with_all_tokens_cached_the_gradients_are_those_of_the_online_teacher(
    name: str, folder: Path, teacher: Teacher
) -> None:
    """And do not depend on the chunks."""
    origin = CacheOrigin("toy", 260, 260, 0.8)
    write_teacher_cache(folder, teacher, EXAMPLES, origin)
    columns = torch.arange(0, 260, 2)
    found = []
    for cache, chunk in ((None, 64), (TeacherCache(folder, origin), 7)):
        config = DistillConfig(
            target="toy", corpus="toy", loss=name, temperature=0.8, chunk_tokens=chunk
        )
        draft = first_layers(teacher.model, 1)
        head = draft.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach()[columns])
        loss = loss_module(config, draft, teacher, columns, cache)
        assert isinstance(loss, DraftLoss if cache is None else CachedLoss)
        answers = answers_for(config, teacher, columns, cache)(EXAMPLES)
        sums = loss(collate(EXAMPLES, torch.device("cpu")), *answers)
        sums.sum().backward()
        grads = torch.cat([w.grad.flatten() for w in draft.parameters() if w.grad is not None])
        found.append((sums.sum().item(), grads))
    assert found[1][0] == pytest.approx(found[0][0], rel=2e-3)  # float16
    assert (found[1][1] - found[0][1]).norm() < 5e-3 * found[0][1].norm()


def short_run(tmp_path: Path, **changes: Any) -> DistillConfig:
    corpus = tmp_path / "corpus"
    if not corpus.exists():
        rows = [*random_rows(60), *random_rows(6, split="dev", seed=1)]
        write_corpus_folder(corpus, tiny_llama(), rows)
    fields: dict[str, Any] = {
        "target": "toy", "corpus": str(corpus), "layers": 1, "head_tokens": 120, "steps": 8,
        "batch_rows": 6, "learning_rate": 5e-3, "eval_every": 8, "report_to": "none",
        "output": str(tmp_path / "run"), "loss": "nla", "head_start": "target",
        "eval_prompts": 0,
    }  # fmt: skip
    return DistillConfig(**fields | changes)


def test_a_draft_learns_from_the_cache_as_it_does_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once it is written, no run with the same rows asks the target but for held-out ones."""
    target, tokenizer = tiny_llama(), byte_tokenizer()
    real = Teacher.hidden
    asked: set[str] = set()

    def hidden(self: Teacher, examples: Any) -> Any:
        asked.update(map(example_key, examples))
        return real(self, examples)

    def run(**changes: Any) -> list[float]:
        AcceleratorState._reset_state(reset_partial_state=True)
        asked.clear()
        result = distill(short_run(tmp_path, **changes), target=target, tokenizer=tokenizer)
        return [row["eval/T1/kl"] for row in result.curve if "eval/T1/kl" in row]

    monkeypatch.setattr(Teacher, "hidden", hidden)
    online = run()
    cache: dict[str, Any] = {"teacher": "cache", "cache_top_k": 48}
    cached = run(output=str(tmp_path / "cached"), **cache)
    assert cached[0] == online[0]
    assert online[0] - online[-1] > 0.1
    assert cached[0] - cached[-1] > 0.7 * (online[0] - online[-1])
    assert len(asked) == 60 + 6

    folder = tmp_path / "cached" / "teacher-cache"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["top_k"], manifest["width"]) == (48, 260)
    cache |= {"cache_folder": str(folder), "head_tokens": None, "steps": 1}
    run(output=str(tmp_path / "again"), **cache)
    assert len(asked) == 6


def test_the_cache_is_no_choice_for_what_needs_states(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="state_weight must be 0 with teacher = cache"):
        short_run(tmp_path, teacher="cache", state_weight=1.0)
    with pytest.raises(ValueError, match="teacher must be online or cache"):
        short_run(tmp_path, teacher="both")
