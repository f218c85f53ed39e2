"""Prompt sets: what is shipped, what a user brings, and the errors in between."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from foredraft.data import Prompt, load_prompts, split_of


def write_rows(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_shipped_prompts_have_six_english_domains_and_japanese() -> None:
    prompts = load_prompts()
    languages = {prompt.domain: prompt.language for prompt in prompts}
    assert languages["japanese"] == "ja"
    assert sum(language == "en" for language in languages.values()) >= 6
    for domain in languages:
        assert sum(prompt.domain == domain for prompt in prompts) >= 40
    assert (
        len({prompt.id for prompt in prompts})
        == len({prompt.text for prompt in prompts})
        == len(prompts)
    )


def test_every_shipped_domain_is_in_every_split() -> None:
    domains = {prompt.domain for prompt in load_prompts()}
    for split in ("train", "dev", "test"):
        assert {prompt.domain for prompt in load_prompts(split=split)} == domains
    sizes = [len(load_prompts(split=split)) for split in ("train", "dev", "test")]
    assert sum(sizes) == len(load_prompts())


def test_no_held_out_prompt_is_a_training_prompt_in_other_words() -> None:
    """Sharing a pattern ("Explain in one sentence …") is fine, sharing what is asked is not."""
    words = {prompt: set(prompt.text.lower().split()) for prompt in load_prompts()}
    training = [prompt for prompt in words if prompt.split == "train"]
    for prompt in words:
        if prompt.split == "train":
            continue
        for other in training:
            common = len(words[prompt] & words[other]) / len(words[prompt] | words[other])
            assert common <= 0.75, (prompt.id, other.id)


def test_split_depends_on_the_text_alone() -> None:
    assert (
        Prompt("a", "x", "same").split == Prompt("b", "y", "same", "ja").split == split_of("same")
    )
    # frozen: SHA-256 begins ca97, 3e23, de7d; another rule would move prompts from train to test
    assert [split_of(text) for text in ("a", "b", "i")] == ["dev", "train", "test"]


def test_split_shares_are_70_15_15() -> None:
    count = 20_000
    found = [split_of(f"prompt {i}") for i in range(count)]
    for split, share in (("train", 0.70), ("dev", 0.15), ("test", 0.15)):
        # 5 standard deviations: one false alarm in 1.7 million, were the texts not fixed
        assert abs(found.count(split) / count - share) < 5 * (share * (1 - share) / count) ** 0.5


def test_filters_keep_the_order(tmp_path: Path) -> None:
    source = write_rows(
        tmp_path / "mine.jsonl",
        *({"prompt": f"text {i}", "domain": "ab"[i % 2], "id": i} for i in range(8)),
    )
    assert [p.id for p in load_prompts(source)] == [str(i) for i in range(8)]
    assert [p.id for p in load_prompts(source, domains=["b"])] == ["1", "3", "5", "7"]
    assert [p.id for p in load_prompts(source, limit_per_domain=2)] == ["0", "1", "2", "3"]
    split = split_of("text 0")
    assert all(p.split == split for p in load_prompts(source, split=split))


def test_a_row_needs_no_more_than_its_text(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "mine.jsonl", {"question": "Why?"}, {"prompt": "How?"})
    first, second = load_prompts(source, field="question")
    assert (first.text, first.domain, first.language) == ("Why?", "mine", "en")
    assert second.text == "How?"
    assert first.id != second.id
    assert [p.id for p in load_prompts(source, field="question")] == [first.id, second.id]


def test_folder_reads_all_its_files(tmp_path: Path) -> None:
    write_rows(tmp_path / "b.jsonl", {"prompt": "two", "id": "1"})
    write_rows(tmp_path / "a.jsonl", {"prompt": "one", "id": "1"})
    (tmp_path / "notes.txt").write_text("not a prompt")
    first, second = load_prompts(str(tmp_path))
    assert (first.domain, second.domain) == ("a", "b")
    assert first.id == "1"
    assert second.id.startswith("1-")  # the same id, another text


def test_repeated_texts_are_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_rows(tmp_path / "mine.jsonl", *({"prompt": text} for text in "abaca"))
    with caplog.at_level(logging.WARNING, logger="foredraft.data"):
        assert [p.text for p in load_prompts(source)] == ["a", "b", "c"]
    assert "dropped 2 prompts" in caplog.text


def test_unusual_characters_survive(tmp_path: Path) -> None:
    text = "line one\u2028line two\n日本語 \U0001f600"
    path = tmp_path / "mine.jsonl"
    path.write_text("\ufeff" + json.dumps({"prompt": text}, ensure_ascii=False) + "\n\n", "utf-8")
    assert load_prompts(str(path))[0].text == text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            '{"text": "x"}',
            r"mine\.jsonl, line 2: expected a text under 'question' or 'prompt'.* text",
        ),
        ('{"question": 3}', r"line 2: .*got 3 under 'question'"),
        ('{"prompt": " "}', r"line 2: .*got ' ' under 'prompt'"),
        ("{", r"line 2: not JSON"),
        ("[1]", r"line 2: expected an object"),
    ],
)
def test_broken_rows_are_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "fine"}\n' + row + "\n")
    with pytest.raises(ValueError, match=message):
        load_prompts(str(path), field="question")


def test_bad_requests_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no file or folder .*nowhere"):
        load_prompts(str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ValueError, match=r"holds no \.jsonl"):
        load_prompts(str(tmp_path))
    with pytest.raises(ValueError, match="has no poetry; it has chat, code"):
        load_prompts(domains=["poetry", "code"])
    with pytest.raises(ValueError, match="split must be one of train, dev, test, got 'eval'"):
        load_prompts(split="eval")
    with pytest.raises(ValueError, match="limit_per_domain must be an integer >= 1, got 0"):
        load_prompts(limit_per_domain=0)
    with pytest.raises(ValueError, match='must be a path, "id" or "id:config:split"'):
        load_prompts("name:train")
    source = write_rows(tmp_path / "mine.jsonl", {"prompt": "x"})
    other = "dev" if split_of("x") != "dev" else "test"
    with pytest.raises(ValueError, match="no prompts left of 1"):
        load_prompts(source, split=other)


def test_data_sets_load_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> Any:
        asked.append((name, config, split))
        return datasets.Dataset.from_dict({"question": ["one", "two"], "id": [7, 8]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    prompts = load_prompts("someone/questions:main:validation", field="question")
    assert [(p.id, p.domain, p.text) for p in prompts] == [
        ("7", "questions", "one"),
        ("8", "questions", "two"),
    ]
    load_prompts("someone/questions", field="question")
    assert asked == [
        ("someone/questions", "main", "validation"),
        ("someone/questions", None, "train"),
    ]
    with pytest.raises(ValueError, match=r"row 0: expected a text under 'prompt'.*question, id"):
        load_prompts("someone/questions")


def test_a_data_set_that_fails_to_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        ValueError, match=r"'someone/questions' is no path here.*no route to the hub"
    ):
        load_prompts("someone/questions")


def test_settings_import_without_torch() -> None:
    code = "import sys, foredraft.data.config as c; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
