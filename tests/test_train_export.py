"""Export: a plain folder that reads back equal, head and tying as they were, and a card of its figures."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from foredraft.spec import DraftInfo, load_drafter, save_kept_tokens, tokenizer_hash
from foredraft.train.batches import make_examples
from foredraft.train.card import ALPHA_HERE, ALPHA_WHOLE
from foredraft.train.export import export_draft
from foredraft.train.held_out import FILE, save_held_out
from toy_corpus import random_rows
from toys import byte_tokenizer, noisy_copy, tiny_llama

KEPT = torch.tensor([*range(0, 200), 257])


def write_draft(folder: Path, draft: Any, *, kept: torch.Tensor | None = KEPT) -> Path:
    draft.generation_config = GenerationConfig(
        eos_token_id=[257, 256], temperature=0.6, do_sample=True
    )
    draft.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    DraftInfo(
        target="owner/target",
        target_fingerprint="",
        tokenizer_hash=tokenizer_hash(byte_tokenizer()),
        kept_tokens=None if kept is None else len(kept),
        metrics={"eval/T1/alpha_tf": 0.8125, "eval/T1/coverage": 0.96},
    ).save(folder)
    if kept is not None:
        save_kept_tokens(folder, kept)
    save_held_out(folder, make_examples(random_rows(4), 100).examples)
    (folder / "trainer_state").mkdir()
    return folder


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_exported_folder_is_plain_and_equal(tmp_path: Path, tied: bool, dtype: str) -> None:
    draft = tiny_llama(tie_word_embeddings=tied)
    source = write_draft(tmp_path / "a", draft)
    folder = export_draft(source, tmp_path / "b", dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(folder)  # in the dtype that config.json says
    assert str(model.dtype) == f"torch.{dtype}"
    for name, weight in draft.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.to(model.dtype)), name
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert (head is embedding) == tied == model.config.tie_word_embeddings
    assert head.shape[0] == 260
    assert head.isfinite().all()
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == byte_tokenizer().get_vocab()
    assert model.generation_config.eos_token_id == [257, 256]
    assert not (folder / "trainer_state").exists()
    assert not list(tmp_path.glob(".*"))
    drafter = load_drafter(str(folder), byte_tokenizer(), width=260)
    assert drafter.kept is not None
    assert torch.equal(drafter.kept, KEPT)


def test_a_head_of_its_own_is_never_called_tied(tmp_path: Path) -> None:
    """transformers notices that it differs; an engine that obeys the config would drop it."""
    draft = tiny_llama()
    source = write_draft(tmp_path / "a", draft)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    folder = export_draft(source, tmp_path / "b")
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    head = AutoModelForCausalLM.from_pretrained(folder).get_output_embeddings().weight
    assert torch.equal(head, draft.get_output_embeddings().weight)


def test_a_head_that_is_missing_is_not_made_up(tmp_path: Path) -> None:
    """A tied model whose config says untied: loading draws a head at random."""
    source = write_draft(tmp_path / "a", tiny_llama(tie_word_embeddings=True))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(ValueError, match=r"its files have no lm_head\.weight"):
        export_draft(source, tmp_path / "b")
    assert not list(tmp_path.glob("*b*"))


def test_the_card_has_the_figures_of_foredraft_json_and_no_others(tmp_path: Path) -> None:
    folder = export_draft(write_draft(tmp_path / "a", tiny_llama()), tmp_path / "b")
    card = (folder / "README.md").read_text()
    assert "| `eval/T1/alpha_tf` | 0.8125 |" in card
    assert card.count("| `") == 2
    assert "were not measured again" in card
    assert "base_model: owner/target" in card
    assert '--speculative-config \'{"model": "b", "num_speculative_tokens": 4' in card
    assert "--speculative-algorithm STANDALONE" in card
    assert "trained on 201" in card.replace("\n", " ")


def test_the_lines_for_other_engines_are_what_a_shell_and_they_would_read(tmp_path: Path) -> None:
    """Without a hole left to fill in: names, numbers that agree, and JSON that is JSON."""
    folder = export_draft(write_draft(tmp_path / "a", tiny_llama()), tmp_path / "b")
    blocks = (folder / "README.md").read_text().split("```sh\n")[1:]
    vllm, sglang = (shlex.split(block.split("```")[0].replace("\\\n", " ")) for block in blocks)
    assert vllm[:4] == ["vllm", "serve", "owner/target", "--speculative-config"]
    assert json.loads(vllm[4]) == {
        "model": "b",
        "num_speculative_tokens": 4,
        "method": "draft_model",
    }
    options = dict(zip(sglang[3::2], sglang[4::2], strict=True))
    assert options["--model-path"] == "owner/target"
    assert options["--speculative-draft-model-path"] == "b"
    assert options["--speculative-algorithm"] == "STANDALONE"
    steps, drafted = (options[f"--speculative-num-{n}"] for n in ("steps", "draft-tokens"))
    assert int(drafted) == int(steps) + 1  # with one token a step, the last verified one added


def test_the_python_of_the_card_is_python(tmp_path: Path) -> None:
    folder = export_draft(write_draft(tmp_path / "a", tiny_llama()), tmp_path / "b")
    parts = (folder / "README.md").read_text().split("```python\n")[1:]
    assert len(parts) == 2
    for part in parts:
        compile(part.split("```")[0], "card", "exec")


def test_alpha_of_the_exported_draft_is_measured_cut_and_whole(tmp_path: Path) -> None:
    """Tokens out of the cut head's reach take mass from those in it, and are believed themselves."""
    target = tiny_llama()
    source = write_draft(tmp_path / "a", noisy_copy(target, scale=0.03))
    folder = export_draft(source, tmp_path / "b", target=target, tokenizer=byte_tokenizer())
    info = DraftInfo.load(folder)
    assert info is not None
    cut, whole = info.metrics[ALPHA_HERE], info.metrics[ALPHA_WHOLE]
    # Here the missing rows are nearly the target's own: the whole head is the better one.
    assert 0.3 < cut < whole - 0.02
    card = (folder / "README.md").read_text()
    assert f"| `{ALPHA_WHOLE}` | {whole:.4g} |" in card
    assert "were not measured again" not in card


def test_held_out_rows_stay_behind_on_request_and_old_folders_are_not_overwritten(
    tmp_path: Path,
) -> None:
    source = write_draft(tmp_path / "a", tiny_llama())
    private = export_draft(source, tmp_path / "b", held_out=False)
    assert not (private / FILE).exists()
    assert (export_draft(source, tmp_path / "c") / FILE).exists()
    with pytest.raises(ValueError, match="output must be a new folder"):
        export_draft(source, tmp_path / "b")
    with pytest.raises(ValueError, match="no held-out rows"):
        export_draft(private, tmp_path / "d", target=tiny_llama(), tokenizer=byte_tokenizer())
