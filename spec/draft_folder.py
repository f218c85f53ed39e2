"""The draft's checkpoint: a plain transformers folder, `foredraft.json`, and the map of a cut head.

The folder always holds a head over the whole vocabulary, so that any engine loads it. A draft trained
with a cut head also has `draft_vocabulary.safetensors`; our loop cuts the head again when it loads.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .draft_temperature import DraftTemperature

INFO_FILE = "foredraft.json"
VOCABULARY_FILE = "draft_vocabulary.safetensors"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftInfo:
    """What `foredraft.json` says of a draft."""

    target: str  # hub id or folder the draft was distilled from
    target_fingerprint: str
    tokenizer_hash: str
    draft_temperature: float = 1.0  # multiplies the request's temperature when the draft draws
    draft_temperatures: tuple[tuple[float, float], ...] = ()  # (temperature, factor): calibrated
    kept_tokens: int | None = None  # rows of a cut head; None where the head is whole
    exit_layer: int | None = None  # layers before a trained exit of the target; None: a whole model
    heads: str | None = (
        None  # "eagle" or "medusa": heads on the target's states; None: a whole model
    )
    metrics: dict[str, float] = field(default_factory=dict)  # measured, e.g. "eval/T1/alpha_tf"
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        pairs = tuple((float(heat), float(factor)) for heat, factor in self.draft_temperatures)
        object.__setattr__(self, "draft_temperatures", pairs)
        DraftTemperature(pairs, self.draft_temperature)  # raises where they are none

    @property
    def temperature(self) -> DraftTemperature:
        """What the request's temperature is multiplied by, by that temperature."""
        return DraftTemperature(self.draft_temperatures, self.draft_temperature)

    def save(self, folder: str | Path) -> None:
        """Write `foredraft.json`, at once."""
        path = Path(folder) / INFO_FILE
        part = path.with_name(f".{INFO_FILE}")
        part.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(part, path)

    @classmethod
    def load(cls, folder: str | Path) -> DraftInfo | None:
        """Return what the folder says, or None where it is a plain model.

        Raises:
            ValueError: if the file is broken or of another schema.
        """
        path = Path(folder) / INFO_FILE
        if not path.is_file():
            return None
        try:
            content: dict[str, Any] = json.loads(path.read_text())
            if content.get("schema") != SCHEMA:
                raise ValueError(f"schema is {content.get('schema')!r}, expected {SCHEMA}")
            return cls(**content)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a draft description of this version: {error}") from error


def save_kept_tokens(folder: str | Path, kept: torch.Tensor) -> None:
    """Write the map of a cut head.

    Args:
        kept: [V_draft], ascending target token ids; row i of the cut head stands for kept[i].
    """
    save_file({"kept": kept.to(torch.int64).contiguous()}, Path(folder) / VOCABULARY_FILE)


def load_kept_tokens(folder: str | Path, info: DraftInfo) -> torch.Tensor | None:
    """Return the map [V_draft] of a cut head, or None where the head is whole.

    Raises:
        ValueError: if the map is missing or does not fit `foredraft.json`; guessing one would only
            show as a poor acceptance.
    """
    if info.kept_tokens is None:
        return None
    path = Path(folder) / VOCABULARY_FILE
    if not path.is_file():
        raise ValueError(f"{path}: missing, but {INFO_FILE} says kept_tokens = {info.kept_tokens}")
    kept = load_file(path)["kept"]
    fits = kept.ndim == 1 and len(kept) == info.kept_tokens and bool((kept.diff() > 0).all())
    if not fits or (len(kept) and kept[0] < 0):
        raise ValueError(
            f"{path}: expected {info.kept_tokens} ascending token ids, got shape {tuple(kept.shape)}"
        )
    return kept


def cut_head(model: Any, kept: torch.Tensor) -> None:
    """Keep only the head's rows `kept`, in place: logits become [.., V_draft]. The input embedding stays.

    Args:
        model: a causal LM with `get_output_embeddings`; untied by this.
        kept: [V_draft], ascending token ids.

    Raises:
        ValueError: if an id lies outside the head.
    """
    head = model.get_output_embeddings()
    rows = head.weight.shape[0]
    if len(kept) == 0 or int(kept.max()) >= rows or int(kept.min()) < 0:
        raise ValueError(f"kept tokens must lie in [0, {rows}) and not be empty")
    bias = head.bias is not None
    cut = torch.nn.Linear(head.in_features, len(kept), bias=bias).to(head.weight)
    with torch.no_grad():
        cut.weight.copy_(head.weight[kept])
        if bias:
            cut.bias.copy_(head.bias[kept])
    model.set_output_embeddings(cut)
    model.config.tie_word_embeddings = False
