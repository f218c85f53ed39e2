"""How a corpus is sampled: what takes part, what is recorded, and which rows it is bound to."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_data_corpus import tiny_sliding

from foredraft.data import CorpusConfig, CorpusManifest, Prompt, read_corpus, write_corpus
from foredraft.spec import render_chat
from toys import byte_tokenizer, tiny_llama

PROMPTS = [Prompt(f"p{i}", "x", f"word {i}") for i in range(6)]


@pytest.mark.parametrize("make", [tiny_llama, tiny_sliding], ids=["one by one", "by shards"])
def test_sampled_answers_are_drawn_from_the_likeliest_and_greedy_ones_are_as_they_were(
    make: Any, tmp_path: Path
) -> None:
    model, tokenizer = make(seed=3), byte_tokenizer()
    whole = CorpusConfig(temperatures=(0.0, 1.5), max_new_tokens=6, batch_size=4)
    cut = CorpusConfig(temperatures=(0.0, 1.5), max_new_tokens=6, batch_size=4, top_k=2)
    rows = {}
    for name, config in (("whole", whole), ("cut", cut)):
        write_corpus(model, tokenizer, PROMPTS, tmp_path / name, config)
        for row in read_corpus(tmp_path / name, complete_only=False):
            rows[name, row.prompt_id, row.temperature] = row
    for prompt in PROMPTS:
        greedy = [rows[name, prompt.id, 0.0] for name in ("whole", "cut")]
        assert greedy[0].id == greedy[1].id
        assert greedy[0].response_ids == greedy[1].response_ids
        sampled = [rows[name, prompt.id, 1.5] for name in ("whole", "cut")]
        assert sampled[0].id != sampled[1].id
    assert all(_ranks(model, row).max() < 2 for key, row in rows.items() if key[0] == "cut")
    assert any(_ranks(model, row).max() >= 2 for key, row in rows.items() if key[0] == "whole")


def _ranks(model: Any, row: Any) -> torch.Tensor:
    """Return how many tokens were likelier than each that was said."""
    tokens = torch.tensor([*row.prompt_ids, *row.response_ids])
    with torch.no_grad():
        logits = model(tokens[None]).logits[0, len(row.prompt_ids) - 1 : -1]
    said = logits.gather(-1, tokens[len(row.prompt_ids) :, None])
    likelier: torch.Tensor = logits > said + 1e-4
    return likelier.sum(-1)


def test_what_was_recommended_and_what_was_done_are_recorded(tmp_path: Path) -> None:
    model = tiny_llama()
    model.generation_config.update(do_sample=True, temperature=0.6, top_p=0.95, top_k=20)
    config = CorpusConfig(temperatures=(0.6,), top_p=0.95, top_k=20, max_new_tokens=4)
    write_corpus(model, byte_tokenizer(), PROMPTS, tmp_path, config)
    manifest = CorpusManifest.load(tmp_path)
    assert manifest.recommended == {
        "do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20,
    }  # fmt: skip
    assert (manifest.config.top_p, manifest.config.top_k) == (0.95, 20)
    with pytest.raises(ValueError, match=r"config\.top_p = 0\.95, not 1\.0"):
        write_corpus(model, byte_tokenizer(), PROMPTS, tmp_path, CorpusConfig(
            temperatures=(0.6,), top_k=20, max_new_tokens=4))  # fmt: skip


def test_written_again_in_another_order_a_corpus_has_the_same_rows(tmp_path: Path) -> None:
    """Rows are found by a hash of what they depend on, not by their place: speculators#584."""
    model, tokenizer = tiny_llama(seed=3), byte_tokenizer()
    config = CorpusConfig(max_new_tokens=5, batch_size=4, top_p=0.9)
    write_corpus(model, tokenizer, PROMPTS[3:], tmp_path / "a", config)
    write_corpus(model, tokenizer, PROMPTS[::-1], tmp_path / "a", config)
    write_corpus(model, tokenizer, PROMPTS, tmp_path / "b", config)
    found = [
        {row.id: row.response_ids for row in read_corpus(tmp_path / name, complete_only=False)}
        for name in "ab"
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 12
    before = (tmp_path / "b" / "rows.jsonl").read_bytes()
    write_corpus(model, tokenizer, PROMPTS, tmp_path / "b", config)
    assert (tmp_path / "b" / "rows.jsonl").read_bytes() == before


def test_an_older_corpus_without_these_fields_is_read(tmp_path: Path) -> None:
    config = CorpusConfig(temperatures=(0.7,), max_new_tokens=4)
    write_corpus(tiny_llama(), byte_tokenizer(), PROMPTS[:1], tmp_path, config)
    path = tmp_path / "manifest.json"
    text = path.read_text().replace('"top_p": 1.0,', "").replace(',\n    "top_k": 0', "")
    path.write_text(text.replace(',\n    "top_p": 1.0', ""))
    assert "top_p" not in path.read_text()
    assert CorpusManifest.load(tmp_path).config == config


def test_b85_prompts_at_and_over_the_limit_are_refused_by_name_and_never_cut(
    tmp_path: Path,
) -> None:
    """The completion is never empty, and no position is beyond the context; Japanese is counted in tokens."""
    model, tokenizer = tiny_llama(context=64), byte_tokenizer()
    config = CorpusConfig(temperatures=(0.0,), max_new_tokens=10)
    for index, unit in enumerate(("a", "日本")):
        base = len(render_chat(tokenizer, Prompt("p", "x", "").messages))
        units, rest = divmod(54 - base, len(unit.encode()))
        fits = Prompt("fits", "x", unit * units + "a" * rest)
        write_corpus(model, tokenizer, [fits], tmp_path / str(index), config)
        (row,) = read_corpus(tmp_path / str(index), complete_only=False)
        assert len(row.prompt_ids) == 54
        assert 1 <= len(row.response_ids) <= 10
        for text in (fits.text + "a", fits.text * 10):
            with pytest.raises(ValueError, match=r"prompt 'over' has .* allows 1 to 54"):
                write_corpus(model, tokenizer, [Prompt("over", "x", text)], tmp_path / "no", config)


@pytest.mark.parametrize(("field", "value"), [("top_p", 0.0), ("top_p", 1.5), ("top_k", -1)])
def test_config_names_the_bad_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        CorpusConfig(**{field: value})
