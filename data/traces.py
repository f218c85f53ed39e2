"""Decode traces on disk: what an acceptance predictor is fitted on.

The manifest is written last and knows the hash of the Parquet file beside it, so that no recording
passes under the description of another.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..spec import (
    FixedLookahead,
    ModelDrafter,
    RequestOutput,
    SamplingParams,
    SpeculativeDecoder,
    model_fingerprint,
    text_hash,
    tokenizer_hash,
)
from .config import TraceConfig
from .corpus_folder import CorpusRow
from .files import replacing, write_json, write_lines
from .manifests import MANIFEST_FILE, load_manifest
from .parquet import write_parquet
from .prompts import Prompt
from .trace_recorder import TraceRecorder, TraceRow

TRACES_FILE = "traces.parquet"
TEXTS_FILE = "texts.jsonl"
SCHEMA = 2  # 2: echoes

COLUMNS: dict[str, str] = {column.name: str(column.type) for column in fields(TraceRow)}
"""Name of each column -> "int", "float", "bool" or "str"."""
_DATASETS_TYPES = {"int": "int64", "float": "float64", "bool": "bool", "str": "string"}
_PARQUET_TYPES = {"int": "int64", "float": "double", "bool": "bool", "str": "string"}
_NUMPY_TYPES = {"int": np.int64, "float": np.float64, "bool": np.bool_, "str": np.str_}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceManifest:
    """What traces were recorded with and what is in them."""

    target: str
    target_fingerprint: str
    draft: str
    draft_fingerprint: str
    tokenizer_hash: str
    config: TraceConfig
    sha256: str  # of the Parquet file
    requests: int
    rows: int
    tested: int
    accepted: int
    domains: dict[str, int] = field(default_factory=dict)  # -> rows
    schema: int = SCHEMA

    @property
    def acceptance_prob(self) -> float | None:
        """The share of tested tokens that were accepted; None where none was tested."""
        return self.accepted / self.tested if self.tested else None

    def save(self, folder: str | Path) -> None:
        """Write `manifest.json`."""
        write_json(Path(folder) / MANIFEST_FILE, asdict(self))

    @classmethod
    def load(cls, folder: str | Path) -> TraceManifest:
        """Return what the folder's manifest says.

        Raises:
            ValueError: if there is none, or it is broken or of another schema.
        """

        def make(content: dict[str, Any]) -> TraceManifest:
            return cls(**(content | {"config": TraceConfig(**content["config"])}))

        return load_manifest(folder, make, schema=SCHEMA, what="traces")


def model_drafter(decoder: SpeculativeDecoder) -> ModelDrafter:
    """Return what a decoder drafts with.

    Raises:
        ValueError: if that is no model.
    """
    if not isinstance(decoder.drafter, ModelDrafter):
        raise ValueError(f"decoder must draft with a model, its drafter is {decoder.drafter!r}")
    return decoder.drafter


def record_traces(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    folder: str | Path,
    config: TraceConfig,
    *,
    progress: Callable[[int, int, int], None] | None = None,
) -> TraceManifest:
    """Decode the prompts with a fixed γ, write a row per drafted token and return the manifest.

    Whatever lookahead the decoder has is put aside: traces of one that stops by itself would show
    only the tokens it believed in. What the folder held before is replaced at the end, all at once.

    Args:
        decoder: with a draft model.
        progress: told (requests done, requests in all, rows so far) after each request.

    Raises:
        ValueError: if there is no prompt or no draft, or nothing was drafted.
    """
    if not prompts:
        raise ValueError("prompts must not be empty")
    drafter = model_drafter(decoder)
    recorder = TraceRecorder(FixedLookahead(config.gamma))
    tracing = decoder.with_lookahead(recorder)
    requests = [(prompt, temperature) for temperature in config.temperatures for prompt in prompts]
    texts = []
    for done, (prompt, temperature) in enumerate(requests, start=1):
        recorder.label(prompt.id, prompt.domain)
        name = text_hash(json.dumps([config.seed, prompt.text, temperature]))
        params = SamplingParams(
            temperature=temperature, max_tokens=config.max_tokens, seed=int(name, 16) // 2
        )
        output = tracing.chat([prompt.messages], params)[0]
        texts.append(_text_row(name, prompt, temperature, output))
        if progress is not None:
            progress(done, len(requests), len(recorder.rows))
    if not recorder.rows:
        raise ValueError(
            f"{len(requests)} requests with max_tokens = {config.max_tokens} drafted nothing"
        )
    target, draft = decoder.target.model, drafter.cached.model
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / TRACES_FILE) as part:
        columns = {name: [getattr(row, name) for row in recorder.rows] for name in COLUMNS}
        write_parquet(
            part, columns, {name: _DATASETS_TYPES[kind] for name, kind in COLUMNS.items()}
        )
        manifest = TraceManifest(
            target=target.name_or_path,
            target_fingerprint=model_fingerprint(target),
            draft=draft.name_or_path,
            draft_fingerprint=model_fingerprint(draft),
            tokenizer_hash=tokenizer_hash(decoder.tokenizer),
            config=config,
            sha256=_sha256(part),
            requests=len(requests),
            rows=len(recorder.rows),
            tested=sum(row.tested for row in recorder.rows),
            accepted=sum(row.accepted for row in recorder.rows),
            domains=dict(sorted(Counter(row.domain for row in recorder.rows).items())),
        )
        write_lines(folder / TEXTS_FILE, [asdict(text) for text in texts])
    manifest.save(folder)
    return manifest


def read_trace_texts(folder: str | Path) -> list[CorpusRow]:
    """Return what was decoded while the traces were recorded, a row per request.

    Raises:
        ValueError: if the folder holds no texts.
    """
    path = Path(folder) / TEXTS_FILE
    if not path.is_file():
        raise ValueError(f"folder: {folder} holds no texts: it has no {TEXTS_FILE}")
    lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would cut at U+2028
    return [CorpusRow(**json.loads(line)) for line in lines if line]


def _text_row(name: str, prompt: Prompt, temperature: float, output: RequestOutput) -> CorpusRow:
    return CorpusRow(
        id=name,
        prompt_id=prompt.id,
        domain=prompt.domain,
        split=prompt.split,
        prompt_ids=output.prompt_token_ids,
        response_ids=output.token_ids,
        text=output.text,
        finish_reason=output.finish_reason or "length",
        temperature=temperature,
    )


def read_traces(folder: str | Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of TraceRow, each an array [rows]: int64, float64, bool or str.

    Raises:
        ValueError: naming what differs, if the folder holds no traces, they are of another schema
            version, the columns are not those of TraceRow, or the file is not the manifest's.
    """
    import pyarrow.parquet  # type: ignore[import-untyped]  # comes with datasets

    manifest = TraceManifest.load(folder)
    path = Path(folder) / TRACES_FILE
    if not path.is_file():
        raise ValueError(f"folder: {folder} has a {MANIFEST_FILE} but no {TRACES_FILE}")
    if _sha256(path) != manifest.sha256:
        raise ValueError(f"{path}: not the file that {MANIFEST_FILE} describes; record anew")
    table = pyarrow.parquet.read_table(path)
    found = {column.name: str(column.type) for column in table.schema}
    expected = {name: _PARQUET_TYPES[kind] for name, kind in COLUMNS.items()}
    differing = sorted(name for name, _ in found.items() ^ expected.items())
    if differing:
        said = {name: f"{found.get(name)} for {expected.get(name)}" for name in differing}
        raise ValueError(f"{path}: columns differ (found for expected): {said}")
    return {
        name: np.array(table[name].to_pylist(), dtype=_NUMPY_TYPES[kind])
        for name, kind in COLUMNS.items()
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
