"""Self-speculation: the target's own first layers draft, and what they did is not done again to verify.

Draft steps run the first layers and the head, and write the target's own cache. The verification takes
their states and runs the layers that follow, over all drafted tokens at once; the first layers run
once more only for the token that was drafted last. No second set of weights, no second cache.

Source: LayerSkip, Elhoushi et al. 2024 (arXiv 2404.16710); with a small adapter, Kangaroo, Liu et al.
2024 (arXiv 2404.18911).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .cache import KVCache
from .cached import TOLERANCE, CachedModel
from .chain import ChainDrafter
from .draft_temperature import DraftTemperature
from .drafter import Drafter, ModelDrafter
from .head_drafter import HeadDrafter
from .params import check_integer
from .split import first_part, second_part

SELF = "self:"
"""Begins the name of a drafter of the target's own layers: "self:8" exits after eight."""


class ExitModel(CachedModel):
    """The first layers of a model, in the cache that all its layers share.

    Remembers the states of the tokens that the other layers have not seen yet.
    """

    def __init__(
        self, model: Any, layers: int, *, width: int | None, adapter: nn.Module | None
    ) -> None:
        """See `SplitModel`."""
        first, self._gate = first_part(model, layers, adapter)
        super().__init__(first, width=width)
        self.states: list[torch.Tensor] = []  # of the last covered tokens, [..., n, d] each

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self.states = []

    def advance(self, new: Sequence[int], keep: int = 1) -> torch.Tensor:
        logits = super().advance(new, keep)
        self._remember()
        return logits

    @torch.inference_mode()
    def advance_states(self, new: Sequence[int]) -> None:
        """Feed tokens as `advance` does, without logits."""
        self.model.base_model(
            input_ids=torch.tensor([list(new)], device=self.device),
            use_cache=True,
            **{self._cache_argument: self._cache},
        )
        self._cache.cover += len(new)
        self._remember()

    def roll_back(self, length: int) -> None:
        forgotten = self.cover - length
        super().roll_back(length)
        while forgotten > 0 and self.states:
            last = self.states.pop()
            left = last.shape[-2] - forgotten
            if left > 0:
                self.states.append(last[..., :left, :])
            forgotten = -left

    def _remember(self) -> None:
        assert self._gate.states is not None
        self.states.append(self._gate.states)
        self._gate.states = None


class SplitModel(CachedModel):
    """A target whose first layers may run ahead of the others, with an exit of their own.

    `exit` covers at least what all layers cover. `advance` feeds both what they lack: where nothing was
    drafted, that is one forward of the whole model.
    """

    def __init__(
        self,
        model: Any,
        layers: int,
        *,
        width: int | None = None,
        adapter: nn.Module | None = None,
    ) -> None:
        """Split a model, and try whether its parts say what it says.

        Args:
            model: a causal LM in eval mode.
            layers: how many run before the exit.
            width: see `CachedModel`.
            adapter: maps what the head reads at the exit, [..., d] to [..., d].

        Raises:
            ValueError: if there are not so many layers, or the model cannot be split; names the model.
        """
        super().__init__(model, width=width)
        total = model.config.get_text_config().num_hidden_layers
        check_integer("layers", layers, low=1, high=total - 1)
        self.layers = layers
        self.exit = ExitModel(model, layers, width=width, adapter=adapter)
        self._second, self._gate = second_part(model, layers)
        self._cover = 0
        self._try()

    @property
    def cover(self) -> int:
        return self._cover

    def reset(self, capacity: int) -> None:
        self.exit.reset(capacity)
        self._cache: KVCache = self.exit.cache
        self._cover = 0

    @torch.inference_mode()
    def advance(self, new: Sequence[int], keep: int = 1) -> torch.Tensor:
        exit_, begin = self.exit, self._cover
        if exit_.cover <= begin:
            self._cache.cover = begin
            logits = super().advance(new, keep)
            self._cover = self._cache.cover
            return logits
        end = begin + len(new)
        assert exit_.cover <= end <= self._cache.capacity, "drafted tokens were not all fed"
        if end > exit_.cover:
            exit_.advance_states(new[exit_.cover - begin :])
        states, exit_.states = exit_.states, []
        self._cache.cover = begin  # so that after an error all layers cover the same
        self._gate.states = torch.cat(states, dim=-2)  # [..., Q, d]
        logits = self._second(
            input_ids=torch.tensor([list(new)], device=self.device),
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: self._cache},
        ).logits[0]  # [keep, V]
        self._cover = self._cache.cover = end
        return logits[:, : self.width]  # type: ignore[no-any-return]

    def roll_back(self, length: int) -> None:
        self.exit.roll_back(length)
        self._cover = min(self._cover, length)

    def _try(self) -> None:
        """Compare with the whole model once: a few tokens, some drafted, some rejected."""
        name = type(self.model).__name__
        rows = int(self.model.get_output_embeddings().weight.shape[0])
        tokens = [(7 * position + 3) % rows for position in range(5)]
        whole = CachedModel(self.model, width=self.width)
        whole.reset(len(tokens))
        expected = whole.advance(tokens, keep=3).float()  # [3, V]
        self.reset(len(tokens))
        try:
            self.advance(tokens[:2])
            self.exit.advance(tokens[2:3])
            self.exit.advance(tokens[4:])  # drafted and rejected
            self.roll_back(3)
            self.exit.advance(tokens[3:4])
            found = self.advance(tokens[2:], keep=3).float()  # [3, V]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise ValueError(
                f"{name} cannot be split after its layer {self.layers}: {error}"
            ) from error
        off, spread = float((found - expected).abs().max()), float(expected.std())
        if self._gate.states is not None or not off <= TOLERANCE * spread:
            raise ValueError(
                f"{name} cannot be split after its layer {self.layers}: its parts say something else than "
                f"the whole, logits are {off:.2g} apart where their spread is {spread:.2g}"
            )


class SelfDrafter(ModelDrafter):
    """Drafts with the target's own first layers; the decoder takes `target` for its target.

    In a batch they have a cache of their own and run again in the verification: still no weights but
    the target's.
    """

    def __init__(
        self,
        model: Any,
        layers: int,
        *,
        width: int,
        adapter: nn.Module | None = None,
        temperature: float | DraftTemperature = 1.0,
    ) -> None:
        """Exit a target after some layers.

        Args:
            model: the target.
            layers: how many run before the exit, at least 1 and fewer than the target has.
            width: V, entries of the target's vocabulary.
            adapter: see `SplitModel`.
            temperature: see `ModelDrafter`.

        Raises:
            ValueError: if the target cannot be split there; names it.
        """
        self.target = SplitModel(model, layers, width=width, adapter=adapter)
        super().__init__(self.target.exit.model, width=width, temperature=temperature)
        self.cached = self.target.exit
        self._adapter = adapter

    def reset(self, capacity: int) -> None:
        # The target's own reset is this one's: it has read the prompt since.
        pass

    def roll_back(self, length: int) -> None:
        self.target.roll_back(length)

    def twin(self) -> SelfDrafter:
        return SelfDrafter(
            self.target.model,
            self.target.layers,
            width=self.width,
            adapter=self._adapter,
            temperature=self.temperature,
        )

    def __repr__(self) -> str:
        return f"SelfDrafter(layers={self.target.layers})"


def target_for(model: Any, drafter: Drafter | None, *, width: int | None) -> CachedModel:
    """Return the target as the loop drives it: the one that a drafter shares, or a new one.

    Args:
        width: see `CachedModel`.

    Raises:
        ValueError: if the drafter is of another target.
    """
    if isinstance(drafter, ChainDrafter):
        drafter = drafter.model
    if not isinstance(drafter, SelfDrafter | HeadDrafter):
        return CachedModel(model, width=width)
    if drafter.target.model is not model:
        raise ValueError(f"draft: {drafter!r} was made of another target")
    return drafter.target


def exit_layer(draft: str) -> int | None:
    """Return the K of "self:K", None where a draft is named otherwise.

    Raises:
        ValueError: if K is no number.
    """
    if not draft.startswith(SELF):
        return None
    number = draft.removeprefix(SELF)
    if not number.isdecimal():
        raise ValueError(f'draft: expected "self:K" with K layers before the exit, got {draft!r}')
    return int(number)
