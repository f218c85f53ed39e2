"""The parity gate: a good folder passes every line, and each planted fault fails the line it belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from foredraft.data import Prompt
from foredraft.spec import (
    DraftInfo,
    SamplingParams,
    SpeculativeDecoder,
    cut_head,
    load_drafter,
    load_kept_tokens,
    save_kept_tokens,
    tokenizer_hash,
)
from foredraft.train import Check, DistillConfig, distill, parity, verify_draft
from foredraft.train.batches import Example
from foredraft.train.evaluation import evaluate
from foredraft.train.held_out import FILE, load_held_out, save_held_out
from foredraft.train.packing import collate_for
from foredraft.train.teacher import Teacher
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, noisy_copy, tiny_llama

ALPHA = parity.ALPHA
PROMPTS = [Prompt(f"p{i}", "toy", text) for i, text in enumerate(["one", "two!"])]
KEPT = torch.tensor([*range(0, 200), 257])  # of the cut head; EOS is one of them


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def held_out(target: Any) -> list[Example]:
    """Return answers that the target wrote, as a corpus has them."""
    decoder = SpeculativeDecoder(target, byte_tokenizer())
    params = SamplingParams(temperature=1.0, max_tokens=20, seed=3)
    outputs = decoder.generate([f"held out {i}" for i in range(4)], params)
    return [
        Example(torch.tensor([*out.prompt_token_ids, *out.token_ids]), len(out.token_ids), str(i))
        for i, out in enumerate(outputs)
    ]


def write_folder(
    folder: Path, target: Any, draft: Any, held_out: list[Example], kept: torch.Tensor | None = None
) -> Path:
    """Write a draft as the trainer does, with α measured on the held-out rows."""
    draft.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    alpha = alpha_of(target, AutoModelForCausalLM.from_pretrained(folder), held_out, kept)
    DraftInfo(
        target="toy",
        target_fingerprint="",
        tokenizer_hash=tokenizer_hash(byte_tokenizer()),
        kept_tokens=None if kept is None else len(kept),
        metrics={ALPHA: alpha},
    ).save(folder)
    if kept is not None:
        save_kept_tokens(folder, kept)
    save_held_out(folder, held_out)
    return folder


def alpha_of(target: Any, draft: Any, rows: list[Example], kept: torch.Tensor | None) -> float:
    if kept is not None:
        cut_head(draft, kept)
    columns = torch.arange(260) if kept is None else kept
    metrics = evaluate(
        Teacher(target, width=260), draft, columns, rows,
        collate=collate_for(draft), batch_rows=4, chunk_tokens=64,
    )  # fmt: skip
    return metrics[ALPHA]


def checks_of(target: Any, folder: Path) -> dict[str, Check]:
    checks = verify_draft(target, byte_tokenizer(), folder, PROMPTS, gamma=3, max_tokens=10)
    return {check.name: check for check in checks}


def failed(checks: dict[str, Check]) -> list[str]:
    return [name for name, check in checks.items() if check.passed is False]


@pytest.mark.parametrize("kept", [None, KEPT])
def test_a_good_folder_passes_every_line(
    tmp_path: Path, target: Any, held_out: list[Example], kept: torch.Tensor | None
) -> None:
    draft = noisy_copy(target, scale=0.03)
    checks = checks_of(target, write_folder(tmp_path / "d", target, draft, held_out, kept))
    passing = ["tokenizer", "training", "loop", "acceptance", "transformers"]
    assert [name for name, check in checks.items() if check.passed] == passing
    assert failed(checks) == []
    assert ("other engines" in checks) == (kept is not None)
    assert "|Δ| 0.0000 ≤ 0.0100" in checks["training"].said
    assert "|Δ| 0.0000 ≤" in checks["transformers"].said


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def other_rope_theta(folder: Path) -> None:
    edit_json(folder / "config.json", lambda c: c["rope_parameters"].update(rope_theta=10.0))


def shifted_map(folder: Path) -> None:
    save_kept_tokens(folder, KEPT + 1)


def permuted_map(folder: Path) -> None:
    order = torch.randperm(len(KEPT), generator=torch.Generator().manual_seed(0))
    save_kept_tokens(folder, KEPT[order])


def change_head(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    head = model.get_output_embeddings().weight
    with torch.no_grad():
        head.copy_(change(head))
    model.save_pretrained(folder)


def rolled_head(folder: Path) -> None:
    change_head(folder, lambda head: head.roll(1, dims=0))


def overwritten_head(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    change_head(folder, lambda head: head.std() * torch.randn(head.shape, generator=generator))


def other_tokenizer(folder: Path) -> None:
    def swap(content: dict[str, Any]) -> None:
        pieces = content["model"]["vocab"]
        pieces["a"], pieces["b"] = pieces["b"], pieces["a"]

    edit_json(folder / "tokenizer.json", swap)


def other_hash(folder: Path) -> None:
    edit_json(folder / "foredraft.json", lambda c: c.update(tokenizer_hash="0123456789abcdef"))


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (other_rope_theta, "training"),
        (shifted_map, "training"),
        (permuted_map, "folder"),
        (rolled_head, "training"),
        (overwritten_head, "training"),
        (other_tokenizer, "tokenizer"),
        (other_hash, "tokenizer"),
    ],
)
def test_a_planted_fault_fails_its_line_and_no_other(
    tmp_path: Path,
    target: Any,
    held_out: list[Example],
    fault: Callable[[Path], None],
    line: str,
) -> None:
    draft = noisy_copy(target, scale=0.03)
    folder = write_folder(tmp_path / "d", target, draft, held_out, KEPT)
    fault(folder)
    assert failed(checks_of(target, folder)) == [line]


def copying_model(target: Any) -> Any:
    """Return a model that is all but certain of the token it just read: learnt from labels not shifted."""
    size = target.config.vocab_size
    config = type(target.config)(**target.config.to_dict() | {"hidden_size": size, "head_dim": 8})
    model = type(target)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()
        model.get_input_embeddings().weight.copy_(torch.eye(size))
        model.get_output_embeddings().weight.copy_(4.0 * torch.eye(size))
    return model


def test_labels_off_by_one_are_found(tmp_path: Path, target: Any, held_out: list[Example]) -> None:
    """Trained and measured on labels one place early, a draft looks good: it says what it just read.

    In a folder that is a high α in foredraft.json that nobody can measure again.
    """
    seen = []
    for (
        row
    ) in held_out:  # what the faulty trainer scores: p of the token read, q all but one-hot on it
        with torch.no_grad():
            laws = target(row.tokens[None]).logits[0].softmax(-1)  # [T, V]
        seen.append(laws[:-1].gather(1, row.tokens[1:, None])[-row.supervised :])
    recorded = float(torch.cat(seen).mean())
    folder = write_folder(tmp_path / "d", target, copying_model(target), held_out)
    info = DraftInfo.load(folder)
    assert info is not None
    assert recorded > info.metrics[ALPHA] + 0.2
    replace(info, metrics={ALPHA: recorded}).save(folder)
    assert failed(checks_of(target, folder)) == ["training"]


def test_a_folder_without_held_out_rows_is_checked_on_other_text_more_loosely(
    tmp_path: Path, target: Any, held_out: list[Example]
) -> None:
    folder = write_folder(tmp_path / "d", target, noisy_copy(target, scale=0.03), held_out)
    (folder / FILE).unlink()
    checks = checks_of(target, folder)
    assert failed(checks) == []
    assert "the folder has no held-out rows" in checks["training"].said
    overwritten_head(folder)
    assert failed(checks_of(target, folder)) == ["training"]


def test_a_plain_model_has_no_alpha_from_training(tmp_path: Path, target: Any) -> None:
    folder = tmp_path / "plain"
    noisy_copy(target, scale=0.03).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    checks = checks_of(target, folder)
    assert failed(checks) == []
    assert checks["training"].passed is None


def test_a_loop_that_drafts_with_another_head_is_found(
    tmp_path: Path, target: Any, held_out: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine that overwrites the draft's head after loading (vllm-ascend#11374)."""

    def overwriting(*args: Any, **options: Any) -> Any:
        drafter = load_drafter(*args, **options)
        head = drafter.cached.model.get_output_embeddings().weight
        with torch.no_grad():
            head.copy_(target.get_output_embeddings().weight.roll(1, dims=0))
        return drafter

    monkeypatch.setattr(parity, "load_drafter", overwriting)
    folder = write_folder(tmp_path / "d", target, noisy_copy(target, scale=0.03), held_out)
    assert failed(checks_of(target, folder)) == ["loop"]


def test_a_trained_checkpoint_has_the_rows_its_alpha_was_measured_on(
    tmp_path: Path, target: Any
) -> None:
    rows = [*random_rows(12), *random_rows(4, split="dev", seed=1)]
    config = DistillConfig(
        target="toy", corpus=write_corpus_folder(tmp_path / "corpus", target, rows),
        output=str(tmp_path / "run"), layers=1, head_tokens=120, steps=2, batch_rows=4,
        eval_prompts=0, report_to="none",
    )  # fmt: skip
    folder = distill(config, target=target, tokenizer=byte_tokenizer()).folder
    info = DraftInfo.load(folder)
    assert info is not None
    draft = AutoModelForCausalLM.from_pretrained(folder)
    again = alpha_of(target, draft, load_held_out(folder), load_kept_tokens(folder, info))
    assert again == pytest.approx(info.metrics[ALPHA], abs=1e-5)
