"""Whether two tokenizers mean the same by a token id, and how many ids there are."""

from __future__ import annotations

from typing import Any


def vocabulary_size(tokenizer: Any) -> int:
    """Return one more than the largest id that the tokenizer knows."""
    return int(max(tokenizer.get_vocab().values())) + 1


def check_same_vocabulary(target_tokenizer: Any, draft_tokenizer: Any) -> None:
    """Raise where a token id would mean something else to the draft than to the target.

    Raises:
        ValueError: naming the first id that differs and both of its pieces.
    """
    target = {token: piece for piece, token in target_tokenizer.get_vocab().items()}
    draft = {token: piece for piece, token in draft_tokenizer.get_vocab().items()}
    for token in sorted(target.keys() | draft.keys()):
        if target.get(token) != draft.get(token):
            raise ValueError(
                "draft: its tokenizer differs from the target's: "
                f"id {token} is {target.get(token)!r} to the target and {draft.get(token)!r} to the "
                "draft. A draft must share the target's tokenizer (train one with foredraft.train); one with "
                'another tokenizer needs a cross-tokenizer drafter: draft="cross:" before its name'
            )


def target_width(target: Any, tokenizer: Any) -> int:
    """Return V: the head's rows, less the padding above the tokenizer's last id."""
    rows = int(target.get_output_embeddings().weight.shape[0])
    return rows if tokenizer is None else min(rows, vocabulary_size(tokenizer))
