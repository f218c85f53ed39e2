"""Dense traces on disk: what a draft proposes at every position of greedy texts, a row a position.

Texts are written in parts of a few, each whole or not at all, so that a recording goes on where it was
interrupted. The manifest says what the parts were made with, and is written first and last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..spec import ModelDrafter, SpeculativeDecoder, model_fingerprint
from .config import DenseConfig
from .corpus_folder import CorpusRow
from .dense_positions import DenseText, dense_text, read_text
from .dense_rollouts import draft_chains
from .files import replacing, write_json
from .manifests import MANIFEST_FILE, load_manifest, refuse_other_origin
from .parquet import write_parquet
from .traces import model_drafter

SCHEMA = 2  # 2: the prompt's tokens
READABLE = (1, 2)
LOOKS = ("top1_logprob", "margin", "entropy")  # the fields of Signals
_TARGET_LOOKS = tuple(f"target_{name}" for name in LOOKS)
_INTEGERS = (
    "text",
    "prompt_length",
    "width",
    "position",
    "token",
    "gamma_limit",
    "accepted_length",
)
COLUMNS: dict[str, str] = {
    "id": "string",
    "domain": "string",
    **dict.fromkeys(_INTEGERS, "int64"),
    **dict.fromkeys(_TARGET_LOOKS, "float64"),  # of the target's law that gave `token`
    "drafts": "list<int64>",  # up to gamma_max, fewer where gamma_limit is less
    **dict.fromkeys(LOOKS, "list<float64>"),  # of the draft's law before each draw
    "acceptance_prob": "list<float64>",  # Σ min(p, q) at temperature 1; NaN past the first rejection
    "prompt": "list<int64>",  # at position 0, else empty
}
"""Name of each column of a part -> its kind. The features of a round follow from these: its context is
prompt_length + position tokens, its previous target law that of the row before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseManifest:
    """What dense traces were recorded with and how far they have got."""

    target_fingerprint: str
    draft_fingerprint: str
    texts_hash: str  # of ids and tokens, in order
    config: DenseConfig
    complete: bool = False
    schema: int = SCHEMA

    @classmethod
    def load(cls, folder: str | Path) -> DenseManifest:
        """Return what the folder's manifest says.

        Raises:
            ValueError: if there is none, or it is broken or of another schema.
        """

        def make(content: dict[str, Any]) -> DenseManifest:
            return cls(**(content | {"config": DenseConfig(**content["config"])}))

        return load_manifest(folder, make, schema=READABLE, what="dense traces")


def record_dense_traces(
    decoder: SpeculativeDecoder,
    texts: Sequence[CorpusRow],
    folder: str | Path,
    config: DenseConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> DenseManifest:
    """Write a row for every position of every text; parts that are there already are kept.

    Args:
        decoder: whose target wrote the texts, with a draft model. Its lookahead is not asked.
        texts: answers at temperature 0, such as a corpus or the texts of traces hold.
        progress: told (texts done, texts in all) after each part.

    Raises:
        ValueError: if there is no text or no draft, a text was sampled, or the folder holds traces that
            were made otherwise.
    """
    if not texts:
        raise ValueError("texts must not be empty")
    drafter = model_drafter(decoder)
    for text in texts:
        if text.temperature != 0.0:
            raise ValueError(
                f"texts must be greedy: {text.id} has temperature {text.temperature:g}, not 0"
            )
    folder = Path(folder)
    manifest = DenseManifest(
        target_fingerprint=model_fingerprint(decoder.target.model),
        draft_fingerprint=model_fingerprint(drafter.cached.model),
        texts_hash=_texts_hash(texts),
        config=config,
    )
    if (folder / MANIFEST_FILE).is_file():
        _check_same(folder, DenseManifest.load(folder), manifest)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MANIFEST_FILE, asdict(manifest))
    for first in range(0, len(texts), config.texts_per_part):
        part = texts[first : first + config.texts_per_part]
        path = folder / f"part-{first // config.texts_per_part:05d}.parquet"
        if not path.is_file():
            made = [_record(decoder, drafter, text, config) for text in part]
            with replacing(path) as unfinished:
                _write_part(made, first, unfinished)
        if progress is not None:
            progress(first + len(part), len(texts))
    manifest = replace(manifest, complete=True)
    write_json(folder / MANIFEST_FILE, asdict(manifest))
    return manifest


def read_dense_traces(folder: str | Path) -> list[DenseText]:
    """Return the recorded texts, in order; of an unfinished recording those that are there.

    Raises:
        ValueError: if the folder holds no dense traces, or a part has other columns.
    """
    import pyarrow.parquet  # type: ignore[import-untyped]  # comes with datasets

    gamma_max = DenseManifest.load(folder).config.gamma_max
    texts = []
    for path in sorted(Path(folder).glob("part-*.parquet")):
        table = pyarrow.parquet.read_table(path)
        differing = sorted(set(table.column_names) ^ set(COLUMNS))
        if differing not in ([], ["prompt"]):  # which schema 1 lacks
            raise ValueError(f"{path}: columns differ from those of this version: {differing}")
        columns = {name: table[name].to_pylist() for name in table.column_names}
        begins = [row for row, position in enumerate(columns["position"]) if position == 0]
        for begin, stop in zip(begins, [*begins[1:], table.num_rows], strict=True):
            of_text = {name: column[begin:stop] for name, column in columns.items()}
            texts.append(_text(of_text, gamma_max))
    return texts


def _record(
    decoder: SpeculativeDecoder, drafter: ModelDrafter, row: CorpusRow, config: DenseConfig
) -> DenseText:
    text = read_text(
        decoder.target,
        row.prompt_ids,
        row.response_ids,
        gamma_max=config.gamma_max,
        max_tokens=config.max_tokens,
        ended=row.finish_reason == "stop",
    )
    chains = draft_chains(drafter, text, config.gamma_max)
    return dense_text(row.id, row.domain, text, chains, drafter, config.gamma_max)


def _texts_hash(texts: Sequence[CorpusRow]) -> str:
    content = [[text.id, text.prompt_ids, text.response_ids, text.finish_reason] for text in texts]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _check_same(folder: Path, found: DenseManifest, wanted: DenseManifest) -> None:
    names = ("target_fingerprint", "draft_fingerprint", "texts_hash", "config")
    pairs = [(name, getattr(found, name), getattr(wanted, name)) for name in names]
    refuse_other_origin(folder, pairs, what="dense traces")


def _rows(text: DenseText, index: int) -> list[dict[str, Any]]:
    rows = []
    for position in range(len(text.tokens)):
        drafted = int((text.drafts[position] >= 0).sum())
        looks = text.looks[position, :drafted].T.tolist()  # one list for each signal
        rows.append(
            {
                "id": text.id,
                "domain": text.domain,
                "text": index,
                "prompt_length": text.prompt_length,
                "width": text.width,
                "position": position,
                "token": int(text.tokens[position]),
                "gamma_limit": int(text.gamma_limit[position]),
                "accepted_length": int(text.accepted_length[position]),
                **dict(zip(_TARGET_LOOKS, text.target_looks[position].tolist(), strict=True)),
                "drafts": text.drafts[position, :drafted].tolist(),
                **dict(zip(LOOKS, looks, strict=True)),
                "acceptance_prob": text.acceptance_prob[position, :drafted].tolist(),
                "prompt": [] if position else list(text.prompt),
            }
        )
    return rows


def _text(columns: dict[str, list[Any]], gamma_max: int) -> DenseText:
    def padded(name: str, missing: float) -> np.ndarray[Any, Any]:
        kind = np.int64 if name == "drafts" else np.float64
        whole = np.full((len(columns[name]), gamma_max), missing, dtype=kind)
        for row, values in enumerate(columns[name]):
            whole[row, : len(values)] = values
        return whole

    return DenseText(
        id=columns["id"][0],
        domain=columns["domain"][0],
        prompt_length=columns["prompt_length"][0],
        width=columns["width"][0],
        tokens=np.array(columns["token"], dtype=np.int64),
        gamma_limit=np.array(columns["gamma_limit"], dtype=np.int64),
        accepted_length=np.array(columns["accepted_length"], dtype=np.int64),
        drafts=padded("drafts", -1),
        looks=np.stack([padded(name, np.nan) for name in LOOKS], axis=-1),
        acceptance_prob=padded("acceptance_prob", np.nan),
        target_looks=np.stack([np.array(columns[name]) for name in _TARGET_LOOKS], axis=-1),
        prompt=tuple(columns["prompt"][0]) if "prompt" in columns else (),
    )


def _write_part(texts: Sequence[DenseText], first: int, path: Path) -> None:
    rows = [row for index, text in enumerate(texts) for row in _rows(text, first + index)]
    write_parquet(path, {name: [row[name] for row in rows] for name in COLUMNS}, COLUMNS)
