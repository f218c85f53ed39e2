"""A draft with another tokenizer, drafting only what both vocabularies have: exact sampling across them.

Source: token-level intersection (TLI), Timor et al. 2025, arXiv 2502.05202, algorithm 4.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from .batch_drafter import RowsDrafter
from .cached import CachedModel
from .codec import Codec
from .drafter import ModelDrafter
from .lookup import NO_LIMIT
from .translated import TranslatedModel
from .translation import Translation

SHARED = "shared:"
"""Before the hub id or folder of a draft that is given by name: this drafter is meant."""


class SharedTokensDrafter(ModelDrafter):
    """Drafts with a causal LM of another tokenizer, from the tokens that both vocabularies have.

    Its law is the draft's over the shared tokens, normalised anew after the request's filters: that is what
    tokens are drawn from and what the verifier is told, so any request is exact. A draft step gives one of
    the target's tokens, with logits for policies. What the target says with tokens that are not shared is
    never drafted; the draft reads it all the same.
    """

    def __init__(self, model: Any, tokenizer: Any, target_tokenizer: Any, *, width: int) -> None:
        """Wrap a draft model.

        Args:
            model: a causal LM in eval mode.
            tokenizer: the draft's, a fast one.
            target_tokenizer: the target's, a fast one.
            width: V, entries of the target's vocabulary.

        Raises:
            ValueError: if a tokenizer is not one of the `tokenizers` library, no token is shared, or the
                model's state cannot be rolled back.
        """
        target, own = Codec(target_tokenizer, "target"), Codec(tokenizer, "draft")
        rows = int(model.get_output_embeddings().weight.shape[0])
        shared = {
            token: theirs
            for theirs, token in shared_tokens(target, own).items()
            if token < rows and theirs < width
        }
        if not shared:
            raise ValueError(
                "draft: its vocabulary shares no token with the target's; "
                'draft="cross:" before its name drafts without'
            )
        super().__init__(model, width=width, kept=torch.tensor(list(shared.values())))
        self.context = NO_LIMIT
        self.shared = len(shared)
        """How many tokens can be drafted."""
        self._codecs, self._shared = (target, own), shared
        self.cached = _TargetTokens(model, target, own, shared)
        self._name = type(model).__name__

    def twin(self) -> SharedTokensDrafter:
        other = copy.copy(self)
        other.cached = _TargetTokens(self.cached.model, *self._codecs, self._shared)
        return other

    def for_rows(self, rows: int) -> RowsDrafter:
        raise ValueError(f"{self!r} drafts one sequence at a time: rows cannot be drafted together")

    def __repr__(self) -> str:
        return f"SharedTokensDrafter({self._name}, shared={self.shared})"


def shared_tokens(target: Codec, draft: Codec) -> dict[int, int]:
    """Return the draft's token for each of the target's that stands for the same bytes, or ends a text too."""
    own = _by_piece(draft)
    shared = {token: own[piece] for piece, token in _by_piece(target).items() if piece in own}
    names = {name: token for token, name in draft.special.items()}
    shared |= {token: names[name] for token, name in target.special.items() if name in names}
    if target.eos is not None and draft.eos is not None:
        shared = {token: theirs for token, theirs in shared.items() if theirs != draft.eos}
        shared[target.eos] = draft.eos
    return shared


def _by_piece(codec: Codec) -> dict[bytes, int]:
    """Return the token of each piece; one that stands for a byte only where there is no other."""
    tokens: dict[bytes, int] = {}
    fallback = set(codec.fallback_tokens())
    for token, piece in codec.pieces().items():
        if piece and (piece not in tokens or tokens[piece] in fallback):
            tokens[piece] = token
    return tokens


class _TargetTokens(CachedModel):
    """The draft as a model of the target's tokens; it gives logits over the shared ones."""

    def __init__(self, model: Any, target: Codec, own: Codec, shared: dict[int, int]) -> None:
        """Wrap a draft model.

        Args:
            shared: the target's token for each of the draft's that both have.
        """
        super().__init__(model)
        self.context = NO_LIMIT
        self._translation = Translation(target, own)
        self._translated = TranslatedModel(model, own, self._translation)
        self._shown = torch.tensor(list(shared), device=self.device)  # [V_shared]
        self._own = {theirs: token for token, theirs in shared.items()}

    @property
    def cover(self) -> int:
        return len(self._translation.tokens)

    def reset(self, capacity: int) -> None:
        self._translated.reset(capacity)

    @torch.inference_mode()
    def advance(self, new: Sequence[int], keep: int = 1) -> torch.Tensor:
        """Return the logits [1, V_shared] after the last of the new tokens."""
        assert keep == 1, f"keep = {keep}: only the last token's logits are there"
        self._translation.extend(new)
        bytes_of_one = self._translation.pending
        whole = all(token in self._own for token in bytes_of_one)
        drawn = [self._own[token] for token in bytes_of_one] if whole else []
        return self._translated.logits(drawn)[:, self._shown]

    def roll_back(self, length: int) -> None:
        self._translation.roll_back(length)

    def room(self, length: int) -> int | None:
        return None

    def encode_for(self, length: int) -> None:
        pass
