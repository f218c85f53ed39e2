"""From corpus rows to padded batches: which tokens are supervised, and which rows a step takes.

Lengths alone say what is padding and what is supervised, never ids: the pad token is often EOS, and
EOS is supervised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..data import CorpusManifest, CorpusRow, read_corpus
from ..spec import text_hash, tokenizer_hash
from .config import DistillConfig


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A row as the models read it. Compared by identity, so that memos may be keyed by it."""

    tokens: torch.Tensor  # [T], prompt and response
    supervised: int  # the last so many tokens are predicted, each from the position before it
    row_id: str = ""  # of the corpus row that it begins like, where there is a prompt

    @property
    def input_ids(self) -> torch.Tensor:
        """What is fed, [T − 1]: the last token predicts nothing."""
        return self.tokens[:-1]


@dataclass(frozen=True, slots=True)
class ExampleSet:
    """Examples of a split, and what became of its rows."""

    examples: list[Example]
    skipped_rows: int  # without a supervised token
    cut_rows: int  # longer than max_length

    @property
    def supervised_tokens(self) -> int:
        """Response tokens that have a loss."""
        return sum(example.supervised for example in self.examples)


def make_examples(rows: Sequence[CorpusRow], max_length: int) -> ExampleSet:
    """Return examples in the rows' order; rows without a supervised token are skipped and counted.

    Position t − 1 predicts token t, so a response is supervised from its first token to its last
    (the end-of-sequence token, where it ended by itself), and nothing of the prompt is.

    Args:
        max_length: tokens of prompt and response; what is beyond is cut from the end.
    """
    examples = []
    cut_rows = 0
    for row in rows:
        tokens = [*row.prompt_ids, *row.response_ids]
        cut_rows += len(tokens) > max_length
        tokens = tokens[:max_length]
        first = max(len(row.prompt_ids), 1)  # a first token of all has no position to predict it
        if len(tokens) > first:
            row_id = row.id if row.prompt_ids else ""  # else its first token is not supervised
            examples.append(Example(torch.tensor(tokens), len(tokens) - first, row_id))
    return ExampleSet(examples, len(rows) - len(examples), cut_rows)


class Corpus(NamedTuple):
    """The rows of a run."""

    train: ExampleSet
    dev: ExampleSet
    manifest_hash: str
    sources: dict[str, Any]  # a hash of the rows, and counts: what a resumed run must find again


def read_examples(config: DistillConfig, tokenizer: Any, *, context: int) -> Corpus:
    """Return the examples that the config asks for, in an order that does not depend on the file's.

    Args:
        context: tokens that the target can read; longer rows are cut as beyond `max_length`.

    Raises:
        ValueError: if the corpus is missing, has another tokenizer, or leaves nothing to train on.
    """
    folder = Path(config.corpus)
    written_for = CorpusManifest.load(folder).tokenizer_hash
    if written_for != tokenizer_hash(tokenizer):
        raise ValueError(
            f"corpus: {folder} was written with another tokenizer (hash {written_for}) than the "
            f"target's ({tokenizer_hash(tokenizer)})"
        )

    rows = {
        "train": read_corpus(folder, split="train", complete_only=config.complete_only),
        "dev": read_corpus(folder, split="dev", complete_only=False),
    }
    for split_rows in rows.values():
        split_rows.sort(key=lambda row: row.id)  # a hash: the first are a fair sample
    rows["dev"] = rows["dev"][: config.eval_rows]
    used = [f"{row.id} {row.split} {row.response_ids}" for row in [*rows["train"], *rows["dev"]]]
    sources: dict[str, Any] = {"corpus_rows": text_hash("\n".join(used))}
    limit = min(config.max_length, context)
    sets = {split: make_examples(split_rows, limit) for split, split_rows in rows.items()}
    for split, part in sets.items():
        if not part.examples:
            raise ValueError(
                f"max_length = {limit} leaves none of the {part.skipped_rows} rows of "
                f"{folder} with split = {split!r} a supervised token"
            )
        sources[f"{split}_rows"] = len(part.examples)
        sources[f"{split}_tokens"] = part.supervised_tokens
        sources[f"{split}_rows_skipped"] = part.skipped_rows
        sources[f"{split}_rows_cut"] = part.cut_rows
    manifest = (folder / "manifest.json").read_text(encoding="utf-8")
    return Corpus(sets["train"], sets["dev"], text_hash(manifest), sources)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Examples side by side, padded on the right."""

    input_ids: torch.Tensor  # [B, T]
    positions: torch.Tensor  # [N], supervised positions of the flattened [B·T], example by example


def collate(examples: Sequence[Example], device: torch.device) -> Batch:
    """Return the batch of at least one example."""
    length = max(len(example.tokens) for example in examples) - 1
    input_ids = torch.zeros(
        len(examples), length, dtype=torch.int64
    )  # any id pads: it is not looked at
    positions = []
    for row, example in enumerate(examples):
        end = len(example.tokens) - 1
        input_ids[row, :end] = example.input_ids
        positions.append(torch.arange(end - example.supervised, end) + row * length)
    return Batch(input_ids.to(device), torch.cat(positions).to(device))


def micro_batches(examples: Sequence[Example], rows: int | None) -> Iterator[list[Example]]:
    """Yield the examples in groups of at most `rows`, of similar lengths to save padding."""
    ordered = sorted(examples, key=lambda example: len(example.tokens))
    size = rows or len(ordered)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def rows_of_step(seed: int, step: int, rows: int, batch_rows: int) -> list[int]:
    """Return which rows step `step` (from 0) takes: a pure function, so resuming cannot change it.

    Steps walk through one permutation of the rows after the other; a batch may end one epoch and
    begin the next.
    """
    places = range(step * batch_rows, (step + 1) * batch_rows)
    return [int(_permutation(seed, place // rows, rows)[place % rows]) for place in places]


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, rows: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(rows)
