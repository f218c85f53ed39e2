"""Short hashes that bind an artefact to the model and tokenizer it was made with."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch


def text_hash(text: str) -> str:
    """Return 16 hex digits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def tokenizer_hash(tokenizer: Any) -> str:
    """Return a hash of the map from pieces to ids: equal where two tokenizers mean the same by an id."""
    return text_hash(json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=False))


def model_fingerprint(model: torch.nn.Module) -> str:
    """Return a hash of names, shapes and sums of the weights, in float64: changes when training does."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        total = weight.double().sum().item()
        digest.update(f"{name}{tuple(weight.shape)}{total:.6e}".encode())
    return digest.hexdigest()[:16]
