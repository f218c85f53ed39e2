"""Export: a draft's checkpoint as a plain transformers folder that any engine loads, with a model card.

The head is written whole. Tokens that a cut head does not propose keep the rows the draft started with,
the target's own times the map A of the start (alignment.py): the untrained head's guess of the target's
logits, so they are finite in 16 bits and stand on the scale of their neighbours. Nothing honest keeps
them from being proposed at all: Llama's head has no bias; a row of zeros has logit 0, which beats most
of the others; and no row has a low logit for every state, since where h gives −z, −h gives +z. So another
engine drafts with a somewhat other law than our loop, which cuts the head again by the map that is
exported too. It stays lossless; what α becomes is measured where the target is given.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from ..spec import (
    DraftInfo,
    cut_head,
    load_causal_lm,
    load_kept_tokens,
    load_tokenizer,
    save_kept_tokens,
    target_width,
)
from ..spec.draft_folder import VOCABULARY_FILE
from .card import ALPHA_HERE, ALPHA_WHOLE, model_card
from .checkpoint import PENDING, no_progress_bars
from .evaluation import CACHE_GB, alphas_of
from .held_out import load_held_out, save_held_out
from .own_weights import check_own_weights
from .teacher import Teacher


def export_draft(
    folder: str | Path,
    output: str | Path,
    *,
    dtype: str = "float32",
    held_out: bool = True,
    target: Any = None,
    tokenizer: Any = None,
) -> Path:
    """Write a draft's folder anew, without what training needs, and return where.

    Model, tokenizer, generation config, README.md, and what our loop reads (`foredraft.json`, the map of
    a cut head). It appears whole or not at all, after it was read back and found equal.

    Args:
        folder: a checkpoint of foredraft.train, or any causal LM.
        output: a new folder.
        dtype: of the weights, "float32", "bfloat16" or "float16".
        held_out: also write the held-out rows (text of your corpus), for `foredraft verify`.
        target, tokenizer: where both are given, α is measured on the held-out rows, of the exported
            draft as our loop cuts it and over its whole vocabulary, and goes into `foredraft.json`.

    Raises:
        ValueError: if the draft is no model of its own, `output` is not new, the folder's weights are not
            what loads from it, or the folder has no held-out rows to measure α on.
    """
    check_own_weights(folder)
    folder, output = Path(folder), Path(output)
    if output.exists():
        raise ValueError(f"output must be a new folder, {output} exists")
    info = DraftInfo.load(folder)
    kept = None if info is None else load_kept_tokens(folder, info)
    model = load_causal_lm(str(folder), dtype=dtype)
    _check_loaded(folder, model)
    # transformers unties a head that differs, whatever the config says; other engines obey the config.
    model.config.tie_word_embeddings = _is_tied(model)
    rows = load_held_out(folder)
    metrics = {}
    if target is not None:
        metrics = _measure(target, tokenizer, str(folder), dtype, kept, rows)
    pending = output.with_name(f"{PENDING}{output.name}")
    shutil.rmtree(pending, ignore_errors=True)
    try:
        with no_progress_bars():
            model.save_pretrained(pending)
            _check_written(pending, model)
        load_tokenizer(str(folder)).save_pretrained(pending)
        if info is not None:
            info = replace(info, metrics=info.metrics | metrics)
            info.save(pending)
        if kept is not None:
            save_kept_tokens(pending, kept)
        if held_out:
            save_held_out(pending, rows)
        card = model_card(output.name, info, model, dtype)
        (pending / "README.md").write_text(card, encoding="utf-8")
        os.rename(pending, output)
    finally:
        shutil.rmtree(pending, ignore_errors=True)
    return output


def _check_loaded(folder: Path, model: Any) -> None:
    """Raise where what was loaded is not what the folder holds: a head that is missing is made of noise."""
    state = model.state_dict()
    found = set()
    for name, saved in _saved_weights(folder):
        found.add(name)
        loaded = state.get(name)
        if loaded is not None and not torch.equal(saved.to(loaded.dtype), loaded):
            raise ValueError(f"{folder}: {name} in its files is not the {name} that loads from it")
    shared = {weight.data_ptr() for name, weight in state.items() if name in found}
    missing = [name for name, weight in state.items() if weight.data_ptr() not in shared]
    if found and missing:  # none found: in another format, which loads as it is
        raise ValueError(f"{folder}: its files have no {', '.join(missing)}")


def _check_written(folder: Path, model: Any) -> None:
    """Raise where what was written does not read back equal, as any engine reads it."""
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype)
    before, after = model.state_dict(), again.state_dict()
    wrong = sorted(before.keys() ^ after.keys())
    wrong += [
        name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])
    ]
    if wrong or _is_tied(model) != _is_tied(again):
        raise ValueError(
            f"{folder}: does not read back as it was written: {', '.join(wrong) or 'tying'}"
        )


def _is_tied(model: Any) -> bool:
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    return bool(head.data_ptr() == embedding.data_ptr())


def _saved_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        if path.name == VOCABULARY_FILE:
            continue
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # a handle of its own, not a mapping
                yield name, file.get_tensor(name)


def _measure(
    target: Any, tokenizer: Any, folder: str, dtype: str, kept: torch.Tensor | None, rows: list[Any]
) -> dict[str, float]:
    """Return α of the draft in `dtype`, cut and whole, on the held-out rows."""
    if not rows:
        raise ValueError(f"{folder} has no held-out rows to measure α on; export without a target")
    width = target_width(target, tokenizer)
    teacher = Teacher(target, width=width, cache_gb=CACHE_GB)
    model = load_causal_lm(folder, dtype=dtype, device=str(teacher.device))
    whole = float(torch.cat(alphas_of(teacher, model, None, rows)).mean())
    if kept is None:
        return {ALPHA_HERE: whole}
    cut_head(model, kept)
    cut = float(torch.cat(alphas_of(teacher, model, kept, rows)).mean())
    return {ALPHA_HERE: cut, ALPHA_WHOLE: whole}
