"""An EAGLE-style head: one decoder layer that goes on from the target's last hidden states.

It reads each token with the state before it and says the state after it; what the target's head makes of
that is the draft's law. A drafted token has no state of the target's before it, so the head's own
takes its place. States count from the prompt's last token on: that is where a corpus keeps them from,
and before it the head reads tokens alone.

Source: EAGLE, Li et al. 2024 (arXiv 2401.15077).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .cached import TOLERANCE, CachedModel
from .packed import unpacked
from .split import layers_path
from .target_states import StatesTarget, head_logits


class EagleHead(nn.Module):
    """The weights: a map into a decoder layer of the target's own kind, the layer, a map out of it."""

    def __init__(self, target: Any) -> None:
        """Make one that reads tokens alone, by the target's first layer, and says what comes of them.

        Args:
            target: a causal LM.

        Raises:
            ValueError: if its embedding is not as wide as its states; names it.
        """
        super().__init__()
        weight = target.get_output_embeddings().weight
        size, embedded = int(weight.shape[1]), target.get_input_embeddings().weight.shape[1]
        if embedded != size:
            raise ValueError(
                f"{type(target).__name__} embeds tokens in {embedded} dimensions, its states have {size}"
            )
        self.fuse = nn.Linear(2 * size, size)
        self.layer = copy.deepcopy(unpacked(target.get_submodule(layers_path(target))[0]))
        self.out = nn.Linear(2 * size, size)
        for linear in (self.fuse, self.out):
            nn.init.eye_(linear.weight)  # of the first half
            nn.init.zeros_(linear.bias)
        self.to(weight.device, weight.dtype)

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder layers."""
        return [self.layer]


def eagle_outputs(
    model: Any, tokens: torch.Tensor, features: torch.Tensor, **attention: Any
) -> torch.Tensor:
    """Return what the map out of the layer reads: the layer's states and the features, [B, Q, 2·d].

    Args:
        model: of `with_heads`.
        tokens: [B, Q].
        features: [B, Q, d], the state before each token; zeros where there is none.
        attention: the cache, and masks and positions where they are not the usual ones, as the
            target's body takes them.
    """
    embedded = model.get_input_embeddings()(tokens)  # [B, Q, d]
    fused = model.heads.fuse(torch.cat([embedded, features], dim=-1))
    hidden = model.base_model(inputs_embeds=fused, use_cache=True, **attention).last_hidden_state
    return torch.cat([hidden, features], dim=-1)


class EagleModel(CachedModel):
    """An EAGLE head with its own cache beside the target whose states it reads.

    What it has read of drafted tokens is taken back when the round ends: it stood on states of its own.
    """

    def __init__(self, model: Any, target: StatesTarget, *, width: int | None) -> None:
        """Hold a head, and try whether it can be fed one token at a time.

        Args:
            model: of `with_heads`, with an EAGLE head.
            target: whose states it reads.
            width: see `CachedModel`.

        Raises:
            ValueError: if the target's kind of layer does not run by itself; names the target.
        """
        super().__init__(model, width=width)
        self._target = target
        self._own = target.states.new_zeros(0, target.states.shape[1])  # [capacity, d]
        self._start = 0  # states of the target count from this position on
        self._length = 0  # tokens that were committed when this round began
        self._try()

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        if len(self._own) < capacity:
            self._own = self._own.new_zeros(capacity, self._own.shape[1])

    def begin(self, start: int) -> None:
        """Begin a sequence: states of the target count from position `start`, that of its last token."""
        self._start = start
        self._length = start + 1

    def begin_round(self, length: int, gamma: int) -> None:
        """Begin a round after `length` committed tokens: the target's states are those of all but the last."""
        self._length = length

    @torch.inference_mode()
    def advance(self, new: Sequence[int], keep: int = 1) -> torch.Tensor:
        begin, end = self.cover, self.cover + len(new)
        assert 1 <= keep <= len(new), f"keep = {keep} of {len(new)} new tokens"
        assert end <= self._cache.capacity, "the sequence outgrew its cache"
        outputs = eagle_outputs(
            self.model,
            torch.tensor([list(new)], device=self.device),
            self._features(begin, end)[None],
            **{self._cache_argument: self._cache},
        )[0]  # [Q, 2·d]
        states = self.model.heads.out(outputs)  # [Q, d]
        self._cache.cover = end
        self._own[begin:end] = states
        return head_logits(self.model, states[-keep:])[:, : self.width]  # [keep, V]

    def roll_back(self, length: int) -> None:
        super().roll_back(min(length, self._length))

    def _features(self, begin: int, end: int) -> torch.Tensor:
        """Return the state before each token of [begin, end): [Q, d]."""
        features = self._own.new_zeros(end - begin, self._own.shape[1])
        known = self._length - 1
        low, high = max(begin - 1, self._start), min(end - 1, known)
        if low < high:
            features[low + 1 - begin : high + 1 - begin] = self._target.states[low:high]
        low = max(begin - 1, known)
        if low < end - 1:
            features[low + 1 - begin :] = self._own[low : end - 1]
        return features

    def _try(self) -> None:
        """Feed a few tokens one by one and as a block: both must say the same."""
        name = type(self.model).__name__
        rows = int(self.model.get_input_embeddings().weight.shape[0])
        tokens = [(7 * position + 3) % rows for position in range(4)]
        try:
            self.reset(4)
            self.begin(4)
            single = torch.cat([self.advance([token]) for token in tokens]).float()  # [4, V]
            self.roll_back(1)
            block = self.advance(tokens[1:], keep=3).float()  # [3, V]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ValueError(
                f"{name} cannot draft by an EAGLE head, a layer of its kind: {error}"
            ) from error
        off, spread = float((block - single[1:]).abs().max()), float(single.std())
        if not off <= TOLERANCE * spread:
            raise ValueError(
                f"{name} cannot draft by an EAGLE head: a layer of its kind says something else in a "
                f"block of tokens, logits are {off:.2g} apart where their spread is {spread:.2g}"
            )
