"""From corpus rows to examples: which tokens are supervised, and which rows a step takes.

Lengths alone say what is padding and what is supervised, never ids: the pad token is often EOS, and
EOS is supervised.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    supervised: int  # so many tokens are predicted, each from the position before it
    row_id: str = ""  # of the corpus row that it begins like, where there is a prompt
    spans: tuple[
        tuple[int, int], ...
    ] = ()  # [first, end) of what is predicted; (): the last tokens
    domain: str = ""  # what figures are told apart by; "": not known

    def __post_init__(self) -> None:
        if not 0 < self.supervised < len(self.tokens):
            raise ValueError(
                f"supervised must be in [1, {len(self.tokens) - 1}] for {len(self.tokens)} tokens, "
                f"got {self.supervised}"
            )

    @property
    def input_ids(self) -> torch.Tensor:
        """What is fed, [T − 1]: the last token predicts nothing."""
        return self.tokens[:-1]

    @property
    def first(self) -> int:
        """Where the first predicted token stands: before it is the prompt."""
        return self.spans[0][0] if self.spans else len(self.tokens) - self.supervised

    @property
    def positions(self) -> torch.Tensor:
        """Where in `input_ids` the predicted tokens are predicted from, ascending: [supervised]."""
        spans = self.spans or ((self.first, len(self.tokens)),)
        return torch.cat([torch.arange(first - 1, end - 1) for first, end in spans])

    @property
    def predicted(self) -> torch.Tensor:
        """The predicted tokens: [supervised]."""
        return self.tokens[self.positions + 1]


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
            examples.append(
                Example(torch.tensor(tokens), len(tokens) - first, row_id, domain=row.domain)
            )
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


def prompt_groups(examples: Sequence[Example]) -> tuple[tuple[int, ...], ...]:
    """Return which examples (their indices, ascending) begin with the same prompt.

    A prompt of one token groups nothing: it is often the same for all, and sharing it saves nothing.
    """
    groups: dict[tuple[int, ...] | int, list[int]] = {}
    for index, example in enumerate(examples):
        prompt = tuple(example.tokens[: example.first].tolist())
        groups.setdefault(prompt if len(prompt) > 1 else index, []).append(index)
    return tuple(map(tuple, groups.values()))


def micro_batches(examples: Sequence[Example], rows: int | None) -> list[list[Example]]:
    """Return the examples in parts of at most `rows`, None for all at once.

    Those of a prompt are in one part, where they are not more than that; parts are of similar
    lengths, to save padding.
    """
    size = rows or len(examples)
    pieces = [
        [examples[index] for index in group[start : start + size]]
        for group in prompt_groups(examples)
        for start in range(0, len(group), size)
    ]
    pieces.sort(key=lambda piece: max(len(example.tokens) for example in piece))
    parts: list[list[Example]] = []
    for piece in pieces:
        part = next((part for part in parts if len(part) + len(piece) <= size), None)
        if part is None:
            parts.append(piece)
        else:
            part.extend(piece)
    return parts


def share(examples: Sequence[Example], index: int, count: int) -> list[Example]:
    """Return part `index` of `count` that are as large as each other, prompts kept together."""
    ordered = [examples[row] for group in prompt_groups(examples) for row in group]
    return ordered[len(ordered) * index // count : len(ordered) * (index + 1) // count]


def even_parts(
    examples: Sequence[Example], index: int, count: int, rows: int | None
) -> list[tuple[list[Example], float]]:
    """Return the micro-batches of process `index` of `count`, at most `rows` in each, and what each counts.

    All processes make as many forwards, as FSDP2 needs: each one waits for the others' weights.
    What is added for that counts 0.
    """
    shares = [micro_batches(share(examples, one, count), rows) for one in range(count)]
    mine = shares[index]
    more = max(map(len, shares)) - len(mine)
    return [(part, 1.0) for part in mine] + [(mine[-1], 0.0)] * more


def rows_of_step(
    seed: int, step: int, groups: tuple[tuple[int, ...], ...], batch_rows: int
) -> list[int]:
    """Return which rows step `step` (from 0) takes: a pure function, so resuming cannot change it.

    Steps walk through one permutation of the groups after the other, and through each group in an
    order of that epoch; a batch may cut a group, and may end one epoch and begin the next.

    Args:
        groups: the rows of each prompt, all together each row once.
    """
    rows = sum(map(len, groups))
    places = range(step * batch_rows, (step + 1) * batch_rows)
    epochs = range(places[0] // rows, places[-1] // rows + 1)
    order = np.concatenate([_epoch_order(seed, epoch, groups) for epoch in epochs])
    return [int(order[place - epochs[0] * rows]) for place in places]


@lru_cache(maxsize=2)
def _epoch_order(seed: int, epoch: int, groups: tuple[tuple[int, ...], ...]) -> np.ndarray:
    rng = np.random.default_rng([seed, epoch])
    return np.concatenate(
        [rng.permutation(groups[group]) for group in rng.permutation(len(groups))]
    )
