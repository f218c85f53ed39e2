"""Where candidates come from. Every drafter gives tokens and the laws they were really drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .batch_drafter import ModelRowsDrafter, RowsDrafter
from .cached import CachedModel
from .draws import Draws
from .params import SamplingParams
from .policy import LookaheadPolicy
from .sampling import penalize_repetition, token_probs


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Drafted tokens, each with its law."""

    tokens: list[int]
    probs: torch.Tensor  # [γ, V], over the target's vocabulary
    steps: int  # draft forwards run


class Drafter(Protocol):
    """A source of candidates for one sequence at a time."""

    context: int  # positions it can look at; beyond them the loop decodes plainly

    def reset(self, capacity: int) -> None:
        """A new sequence of at most `capacity` tokens starts."""

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        params: SamplingParams,
        draws: Draws,
    ) -> Proposal:
        """Draft up to `gamma` tokens after `tokens`, asking the policy before each."""

    def roll_back(self, length: int) -> None:
        """Forget all from position `length` on: those drafted tokens were not accepted."""

    def for_rows(self, rows: int) -> RowsDrafter:
        """Return a drafter of the same candidates for a batch of so many rows.

        Raises:
            ValueError: if its rows cannot be drafted together.
        """


class ModelDrafter:
    """Drafts with a smaller causal LM, autoregressively."""

    def __init__(
        self,
        model: Any,
        *,
        width: int,
        kept: torch.Tensor | None = None,
        temperature: float = 1.0,
    ) -> None:
        """Wrap a draft model.

        Args:
            width: V, entries of the target's vocabulary.
            kept: [V_draft], the target token each row of a cut head stands for; None: a whole head,
                whose row i is token i.
            temperature: multiplies the request's temperature when the draft draws.
        """
        self.cached = CachedModel(model, width=width if kept is None else None)
        self.context = self.cached.context
        self._width = width
        self.kept = None if kept is None else kept.to(self.cached.device)
        self._temperature = temperature

    def reset(self, capacity: int) -> None:
        # The prompt is fed when the first token is drafted: where nothing is, it costs nothing.
        self.cached.reset(min(capacity, self.context))

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        params: SamplingParams,
        draws: Draws,
    ) -> Proposal:
        drafted: list[int] = []
        laws: list[torch.Tensor] = []
        steps = 0
        while len(drafted) < gamma and policy.wants_step(depth := len(drafted) + 1):
            sequence = [*tokens, *drafted]
            logits = self.cached.advance(sequence)  # [1, V_draft]
            steps += 1
            if not policy.wants_token(depth, logits[0]):
                break
            logits = penalize_repetition(
                self._whole(logits), params.repetition_penalty, sequence, ()
            )
            law = token_probs(logits, params, temperature_factor=self._temperature)  # [1, V]
            drafted.append(draws.token(law[0]))
            laws.append(law)
        probs = torch.cat(laws) if laws else torch.empty(0, self._width)  # [γ, V]
        return Proposal(drafted, probs, steps)

    def roll_back(self, length: int) -> None:
        self.cached.roll_back(length)

    def for_rows(self, rows: int) -> RowsDrafter:
        return ModelRowsDrafter(
            self.cached.model,
            rows=rows,
            width=self._width,
            kept=self.kept,
            temperature=self._temperature,
        )

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        """Spread a row [1, V_draft] over the target's vocabulary [1, V]; what is missing is impossible."""
        if self.kept is None and logits.shape[-1] == self._width:
            return logits
        whole = logits.new_full((1, self._width), -torch.inf)
        if self.kept is None:
            whole[:, : logits.shape[-1]] = logits
        else:
            whole[:, self.kept] = logits
        return whole
