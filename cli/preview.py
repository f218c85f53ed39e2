"""`foredraft preview`: what a draft would be trained on, token by token, before anything is trained."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from ..data import CorpusManifest, read_corpus
from ..data.conversations import load_conversations
from ..spec import load_tokenizer, tokenizer_hash
from ..train.batches import Example, ExampleSet, make_examples
from ..train.reading import conversation_examples, is_corpus
from .config import PreviewCommand
from .packaged import resolve_target

CONTEXT, SUPERVISED = "dim", "green"
SPECIAL = " reverse"  # added to either


def run_preview(config: PreviewCommand) -> None:
    """`foredraft preview`"""
    tokenizer = load_tokenizer(resolve_target(config.target))
    preview(config, tokenizer, Console())


def preview(config: PreviewCommand, tokenizer: Any, console: Console) -> None:
    """Print the counts of each split and the first examples of the training split, in colours."""
    sets = _read(config, tokenizer)
    for split, part in sets.items():
        console.print(Text(f"{split}: {describe_set(part)}"))
    for example in sets["train"].examples[: config.rows]:
        console.rule(f"{example.supervised} of {len(example.tokens)} tokens supervised")
        console.print(coloured(example, tokenizer), soft_wrap=True)
    console.rule()
    legend = Text("green: supervised", style=SUPERVISED)
    legend.append("  dim: context, no loss", style=f"not {SUPERVISED} {CONTEXT}")
    console.print(legend.append("  reverse: special tokens", style=SPECIAL.strip()))


def describe_set(part: ExampleSet) -> str:
    """Return how much of a split is supervised and what became of the rest."""
    tokens = sum(len(example.tokens) for example in part.examples)
    share = 100 * part.supervised_tokens / max(tokens, 1)
    return (
        f"{len(part.examples)} examples, {part.supervised_tokens} of {tokens} tokens supervised "
        f"({share:.0f} %), {part.cut_rows} cut at max_length, "
        f"{part.skipped_rows} dropped without a supervised token"
    )


def coloured(example: Example, tokenizer: Any) -> Text:
    """Return the text of an example, supervised tokens in colour, special ones as they are written.

    Runs of tokens are decoded together: the bytes of a character may be several tokens.
    """
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    supervised = set((example.positions + 1).tolist())
    tokens = example.tokens.tolist()
    text = Text()
    kinds = [(at in supervised, token in special) for at, token in enumerate(tokens)]
    at = 0
    for (learned, is_special), run in groupby(kinds):
        size = len(list(run))
        piece = tokenizer.decode(tokens[at : at + size], clean_up_tokenization_spaces=False)
        style = (SUPERVISED if learned else CONTEXT) + (SPECIAL if is_special else "")
        text.append(piece, style=style)
        at += size
    return text


def _read(config: PreviewCommand, tokenizer: Any) -> dict[str, ExampleSet]:
    if not is_corpus(config.data):
        conversations = load_conversations(config.data)
        sets = conversation_examples(tokenizer, conversations, config.max_length)
        return {split: sets[split] for split in ("train", "dev")}
    if CorpusManifest.load(config.data).tokenizer_hash != tokenizer_hash(tokenizer):
        raise ValueError(f"target: {config.data} was written with another tokenizer")
    return {
        split: make_examples(
            read_corpus(config.data, split=split, complete_only=split == "train"), config.max_length
        )
        for split in ("train", "dev")
    }
