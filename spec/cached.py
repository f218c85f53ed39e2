"""A causal LM that remembers: feed it what its cache does not cover, take a rollback for free."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from .cache import KVCache


class CachedModel:
    """One sequence decoded by one model.

    Between calls the first `cover` tokens of the sequence are in the cache. `advance` feeds the rest;
    `roll_back` forgets a tail. There is no third operation, so there are no special cases: whether the
    last round was accepted in full, in part or not at all only changes how much is left to feed.
    """

    def __init__(self, model: Any, *, width: int | None = None) -> None:
        """Wrap a model.

        Args:
            model: a causal LM in eval mode.
            width: logits are cut to this many entries (padding of the vocabulary); None keeps all.

        Raises:
            ValueError: if the model's state cannot be rolled back; names the model.
        """
        refuse_without_rollback(model)
        self.model = model
        self.width = width
        self.context: int = context_length(model)
        self._cache_argument = cache_argument(model)
        self._cache = KVCache(0, rows=1, capacity=0)

    @property
    def cover(self) -> int:
        """Tokens of the sequence that need not be fed again."""
        return self._cache.cover

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    def reset(self, capacity: int) -> None:
        """Start a new sequence of at most `capacity` tokens; buffers that are large enough are kept."""
        if capacity > self._cache.capacity:
            layers = self.model.config.get_text_config().num_hidden_layers
            self._cache = KVCache(layers, rows=1, capacity=capacity)
        self._cache.cover = 0

    def start(self, tokens: Sequence[int], capacity: int) -> None:
        """Start a new sequence and cover all its tokens but the last, which the first round feeds."""
        self.reset(capacity)
        if len(tokens) > 1:
            self.advance(tokens[:-1])

    @torch.inference_mode()
    def advance(self, new: Sequence[int], keep: int = 1) -> torch.Tensor:
        """Feed the tokens that follow the covered ones; return the logits after each of the last `keep`.

        Args:
            new: the sequence from position `cover` on.
            keep: at most the number of new tokens.

        Returns:
            [keep, V], raw.
        """
        assert 1 <= keep <= len(new), f"keep = {keep} of {len(new)} new tokens"
        end = self.cover + len(new)
        assert end <= self._cache.capacity, "the sequence outgrew its cache"
        logits = self.model(
            input_ids=torch.tensor([list(new)], device=self.device),
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: self._cache},
        ).logits[0]  # [keep, V]
        self._cache.cover = end
        return logits[:, : self.width]  # type: ignore[no-any-return]

    def roll_back(self, length: int) -> None:
        """Forget all tokens from position `length` on: a change of length, nothing else."""
        self._cache.cover = min(self._cache.cover, length)


def cache_argument(model: Any) -> str:
    """Return the keyword under which the model's forward takes a cache: it was renamed in transformers 5.2x."""
    forward = inspect.unwrap(type(model).forward)
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def context_length(model: Any) -> int:
    """Return how many positions the model was built for."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 2**31)


ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


def refuse_without_rollback(model: Any) -> None:
    """Raise where a rejected token could not be taken back.

    Raises:
        ValueError: naming the model and what stands in the way.
    """
    config = model.config.get_text_config()
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder; expected a decoder-only causal LM")
    kinds = set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYERS
    if kinds or getattr(model, "_is_stateful", False):
        what = ", ".join(sorted(kinds)) or "recurrent state"
        raise ValueError(
            f"{name} has layers ({what}) whose state cannot be rolled back, so a rejected draft token "
            "could not be removed; foredraft takes models with full, sliding or chunked attention only"
        )
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        raise ValueError(f"{name} uses ALiBi, whose bias transformers builds from a padding mask")
