"""A small corpus on disk for tests of the trainer: random text, which a teacher judges as any."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.data import CorpusConfig, CorpusManifest, CorpusRow
from foredraft.data.files import append_group
from foredraft.spec import model_fingerprint, tokenizer_hash
from toys import byte_tokenizer

EOS = 257


def corpus_row(
    name: str, prompt: list[int], response: list[int], *, split: str = "train", reason: str = "stop"
) -> CorpusRow:
    """Return a row with the given tokens."""
    return CorpusRow(
        id=name, prompt_id=name, domain="toy", split=split, prompt_ids=prompt,
        response_ids=response, text="", finish_reason=reason, temperature=1.0,
    )  # fmt: skip


def random_rows(count: int, *, split: str = "train", seed: int = 0) -> list[CorpusRow]:
    """Return rows of unequal lengths over 100 tokens, each ending in EOS."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        prompt = rng.integers(0, 100, size=int(rng.integers(1, 8))).tolist()
        response = [*rng.integers(0, 100, size=int(rng.integers(1, 14))).tolist(), EOS]
        rows.append(corpus_row(f"{split}-{index:04d}", prompt, response, split=split))
    return rows


def write_corpus_folder(folder: Path, target: Any, rows: list[CorpusRow]) -> str:
    """Write rows as a corpus of the target with the byte tokenizer; return the folder's name."""
    folder.mkdir(parents=True)
    append_group(folder / "rows.jsonl", "toy", [asdict(row) for row in rows])
    CorpusManifest(
        target="toy",
        target_fingerprint=model_fingerprint(target),
        tokenizer_hash=tokenizer_hash(byte_tokenizer()),
        config=CorpusConfig(),
        complete=True,
        rows=len(rows),
    ).save(folder)
    return str(folder)
