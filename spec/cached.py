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
        self._switch = rope_switch(model)
        self._cache_argument = cache_argument(model)
        self._cache = KVCache(0, rows=1, capacity=0)

    @property
    def cover(self) -> int:
        """Tokens of the sequence that need not be fed again."""
        return self._cache.cover

    @property
    def cache(self) -> KVCache:
        """The keys and values, for measuring."""
        return self._cache

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

    def room(self, length: int) -> int | None:
        """Return how many tokens a forward may hold after the first `length`; None: as many as fit.

        Where positions are encoded otherwise in long sequences (`rope_switch`), a block that reached over
        that length would be judged by another law than its first tokens decoded one by one.
        """
        if self._switch is None or length > self._switch:
            return None
        return self._switch - length

    def encode_for(self, length: int) -> None:
        """Forget what was encoded for shorter sequences, before a forward that reaches `length` tokens."""
        if self._switch is not None and self.cover <= self._switch < length:
            self.roll_back(0)


def uncovered(cover: int, tokens: Sequence[int], drafted: Sequence[int]) -> list[int]:
    """Return what follows the first `cover` of `tokens` and `drafted`; the rest is not read."""
    return [*tokens[cover:], *drafted[max(0, cover - len(tokens)) :]]


def cache_argument(model: Any) -> str:
    """Return the keyword under which the model's forward takes a cache: it was renamed in transformers 5.2x."""
    forward = inspect.unwrap(type(model).forward)
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def context_length(model: Any) -> int:
    """Return how many positions the model was built for."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 2**31)


def rope_switch(model: Any) -> int | None:
    """Return the length beyond which a model encodes all positions with other frequencies; None: never.

    That is longrope's (Phi-3, Phi-4 and their kin). Dynamic NTK would change only beyond
    `max_position_embeddings`, where decoding ends.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    by_layer = [part for part in rope.values() if isinstance(part, dict)]  # one a kind of layer
    lengths = [
        int(part["original_max_position_embeddings"])
        for part in (rope, *by_layer)
        if part.get("rope_type") == "longrope"
    ]
    return min(lengths, default=None)


# Layers whose state is keys and values by position, or that have none. Anything else is refused.
LAYERS_BY_POSITION = {"full_attention", "sliding_attention", "chunked_attention"}
LAYERS_WITHOUT_STATE = {"moe", "mlp"}


def refuse_without_rollback(model: Any) -> None:
    """Raise where a rejected token could not be taken back.

    Raises:
        ValueError: naming the model and what stands in the way.
    """
    config = model.config.get_text_config()
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder; expected a decoder-only causal LM")
    kinds = set(getattr(config, "layer_types", None) or ())
    kinds -= LAYERS_BY_POSITION | LAYERS_WITHOUT_STATE
    if kinds or getattr(model, "_is_stateful", False):
        what = ", ".join(sorted(kinds)) or "recurrent state"
        raise ValueError(
            f"{name} has layers ({what}) whose state cannot be rolled back, so a rejected draft token "
            "could not be removed; foredraft takes models with full, sliding or chunked attention only"
        )
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        raise ValueError(f"{name} uses ALiBi, whose bias transformers builds from a padding mask")


TRIAL = (2, 4)  # tokens that are kept, tokens in all
TOLERANCE = 0.25  # of the logits' spread: far above rounding, far below another context's logits


def try_rollback(model: Any) -> None:
    """Decode a few tokens one by one, roll back, and decode them as one block: both must say the same.

    This is what the loop asks of a model, so it also finds what no rule by name knows: a forward that
    keeps no cache, one that is not causal, a state outside the cache.

    Raises:
        ValueError: naming the model, if the two disagree or its forward fails with our cache.
    """
    name = type(model).__name__
    kept, length = TRIAL
    vocabulary = int(model.get_output_embeddings().weight.shape[0])
    tokens = [(7 * position + 3) % vocabulary for position in range(length)]
    other = [(11 * token + 5) % vocabulary for token in tokens]  # what is drafted and rejected
    trial = CachedModel(model)
    trial.reset(length)
    try:
        trial.advance(tokens[:kept])
        single = [trial.advance([token]) for token in tokens[kept:]]
        trial.roll_back(kept)
        trial.advance(other[kept:])
        trial.roll_back(kept)
        block = trial.advance(tokens[kept:], keep=length - kept).float()  # [length - kept, V]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(f"{name} does not decode with foredraft's cache: {error}") from error
    one_by_one = torch.cat(single).float()  # [length - kept, V]
    off, spread = float((block - one_by_one).abs().max()), float(one_by_one.std())
    if not off <= TOLERANCE * spread:  # so that NaN is refused too
        raise ValueError(
            f"{name} says something else after a rollback, or in a block of tokens, than when it is fed "
            f"one token at a time: logits are {off:.2g} apart where their spread is {spread:.2g}"
        )
