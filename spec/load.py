"""Loads models and tokenizers by hub id or folder, with errors that say what is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .cached import refuse_without_rollback, try_rollback

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_causal_lm(name: str, *, device: str = "cpu", dtype: str = "float32") -> Any:
    """Return a causal LM in eval mode that takes no gradients.

    Args:
        name: a hub id or a folder.
        device: "cpu", "cuda", "cuda:1", …
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        ValueError: if there is no such model, it is not a causal LM, or it cannot be rolled back.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    config = _load("model", AutoConfig, name)
    if config.is_encoder_decoder or config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(
            f"{name} is a {config.model_type!r} model, not a causal LM; "
            "expected a decoder-only language model"
        )
    wanted = (config.architectures or [""])[0]
    if wanted and not wanted.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
        raise ValueError(f"{name} is a {wanted}, not a causal LM: it has no language-model head")
    model = _load("model", AutoModelForCausalLM, name, dtype=DTYPES[dtype])
    refuse_without_rollback(model)
    model = model.to(device).eval().requires_grad_(False)
    try_rollback(model)
    return model


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of a hub id or folder.

    Raises:
        ValueError: if there is none.
    """
    return _load("tokenizer", AutoTokenizer, name)


def _load(what: str, auto_class: Any, name: str, **options: Any) -> Any:
    if not name:
        raise ValueError(f"{what} must be a hub id or a folder, got {name!r}")
    looks_like_path = name.startswith((".", "/", "~")) or name.count(os.sep) > 1
    if looks_like_path and not Path(name).expanduser().is_dir():
        raise ValueError(f"{what}: there is no folder {name}")
    try:
        return auto_class.from_pretrained(
            str(Path(name).expanduser()) if looks_like_path else name, **options
        )
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{what} {name!r} could not be loaded: {error}") from error
