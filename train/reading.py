"""What a run trains on: a corpus that the target wrote, or conversations that somebody else did."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..data import SPLITS, CorpusManifest, SavedStates
from ..data.chat_turns import TurnRenderer, Turns
from ..data.conversations import Conversation, load_conversations
from ..spec import text_hash
from .batches import Corpus, Example, ExampleSet, read_examples
from .config import DistillConfig


def read_training_data(config: DistillConfig, tokenizer: Any, *, context: int) -> Corpus:
    """Return the examples of `config.corpus`: a corpus folder, or conversations (see `load_conversations`).

    Of many conversations those are rendered that the run can come to see: a fair sample, by a hash of each.

    Args:
        context: tokens that the target can read; longer rows are cut as beyond `max_length`.

    Raises:
        ValueError: if there is nothing to train on, or as `read_examples` and `conversation_examples`.
    """
    if is_corpus(config.corpus):
        return read_examples(config, tokenizer, context=context)
    limit = min(config.max_length, context)
    wanted = {"train": config.steps * config.batch_rows, "dev": config.eval_rows}
    chosen = sample_conversations(load_conversations(config.corpus), wanted)
    found = conversation_examples(tokenizer, chosen, limit)
    train, dev = (_sorted(found[split]) for split in ("train", "dev"))
    dev = ExampleSet(dev.examples[: config.eval_rows], dev.skipped_rows, dev.cut_rows)
    sources: dict[str, Any] = {
        "corpus_rows": text_hash(" ".join(one.row_id for one in [*train.examples, *dev.examples]))
    }
    for split, part in (("train", train), ("dev", dev)):
        if not part.examples:
            raise ValueError(
                f"corpus: max_length = {limit} leaves no supervised token in the conversations of "
                f"{config.corpus} with split = {split!r} ({part.skipped_rows} were too long)"
            )
        sources[f"{split}_rows"] = len(part.examples)
        sources[f"{split}_tokens"] = part.supervised_tokens
        sources[f"{split}_rows_skipped"] = part.skipped_rows
        sources[f"{split}_rows_cut"] = part.cut_rows
    return Corpus(train, dev, text_hash(config.corpus), sources)


def sample_conversations(
    conversations: Iterable[Conversation], wanted: Mapping[str, int]
) -> list[Conversation]:
    """Return so many conversations of each split, those of the lowest hashes, whatever order they come in."""
    by_split: dict[str, dict[str, Conversation]] = {split: {} for split in wanted}
    for one in conversations:
        if one.split in by_split:
            by_split[one.split].setdefault(text_hash(json.dumps(one.messages)), one)
    return [
        found[key] for split, found in by_split.items() for key in sorted(found)[: wanted[split]]
    ]


def is_corpus(source: str) -> bool:
    """Say whether a source is a folder that `write_corpus` made, whole or not."""
    return any((Path(source) / name).is_file() for name in ("manifest.json", "rows.jsonl"))


def saved_states(config: DistillConfig, target_fingerprint: str) -> SavedStates | None:
    """Return the last hidden states beside a corpus that this target wrote, None where there are none."""
    if not is_corpus(config.corpus):
        return None
    by_target = CorpusManifest.load(config.corpus).target_fingerprint == target_fingerprint
    return SavedStates(config.corpus) if by_target else None


def conversation_examples(
    tokenizer: Any, conversations: Iterable[Conversation], max_length: int
) -> dict[str, ExampleSet]:
    """Return examples by split, "train", "dev" and "test", in the order of the conversations.

    What assistants said is supervised, from the first token of each turn to the token that ends it; see
    `TurnRenderer`. Equal examples are one.

    Args:
        max_length: tokens of a conversation; what is beyond is cut from its end, and what has no
            supervised token left is skipped and counted.

    Raises:
        ValueError: if a conversation cannot be rendered, or has nothing to learn from; names the row.
    """
    renderer = TurnRenderer(tokenizer)
    examples: dict[str, dict[str, Example]] = {split: {} for split in SPLITS}
    skipped, cut = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    for conversation in conversations:
        split = conversation.split
        try:
            rendered = renderer.render(conversation.messages)
        except ValueError as error:
            raise ValueError(f"{conversation.where}: {error}") from error
        for turns in rendered:
            cut[split] += len(turns.tokens) > max_length
            example = turns_example(turns, max_length)
            if example is None:
                skipped[split] += 1
            else:
                examples[split].setdefault(example.row_id, example)
    return {
        split: ExampleSet([*examples[split].values()], skipped[split], cut[split])
        for split in SPLITS
    }


def turns_example(turns: Turns, max_length: int) -> Example | None:
    """Return the example of a rendered conversation, None where cutting it leaves no supervised token."""
    # A first token of all has no position to predict it.
    clipped = [(max(first, 1), min(end, max_length)) for first, end in turns.spans]
    spans = tuple((first, end) for first, end in clipped if first < end)
    if not spans:
        return None
    tokens = turns.tokens[: spans[-1][1]]  # what follows the last of them predicts nothing
    row_id = text_hash(f"{tokens} {spans}")
    return Example(torch.tensor(tokens), sum(end - first for first, end in spans), row_id, spans)


def _sorted(part: ExampleSet) -> ExampleSet:
    """Return the examples in the order of their hashes: the first are a fair sample of them."""
    examples = sorted(part.examples, key=lambda example: example.row_id)
    return ExampleSet(examples, part.skipped_rows, part.cut_rows)
