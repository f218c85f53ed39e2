"""Where candidates come from. Every drafter gives tokens and the laws they were really drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .batch_drafter import ModelRowsDrafter, RowsDrafter
from .cached import CachedModel, uncovered
from .draft_temperature import DraftTemperature, as_draft_temperature
from .draws import Draws, drawn
from .law import TokenLaw
from .ngrams import Match
from .one_hot import Laws, OneHot
from .policy import LookaheadPolicy, Said, show_tokens
from .spreading import spread


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """Drafted tokens, each with its law."""

    tokens: list[int]
    probs: Laws  # [γ, V], over the target's vocabulary
    steps: int  # draft forwards run
    match: Match | None = None  # what a lookup followed


class Drafter(Protocol):
    """A source of candidates for one sequence at a time."""

    context: int  # positions it can look at; beyond them the loop decodes plainly
    gives_logits: bool  # the policy is shown logits before each draw

    def reset(self, capacity: int) -> None:
        """A new sequence of at most `capacity` tokens starts."""

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        law: TokenLaw,
        draws: Draws,
    ) -> Proposal:
        """Draft up to `gamma` tokens after `tokens`, asking the policy before each; fewer or none will do.

        Args:
            tokens: the sequence so far. Read only what is new: a round must not cost more when it is long.
            law: the request's, with `tokens` committed; a draft that obeys it is believed more often.
        """

    def roll_back(self, length: int) -> None:
        """Forget all from position `length` on: those drafted tokens were not accepted."""

    def twin(self) -> Drafter:
        """Return a drafter of the same candidates, over the same models, for another sequence."""

    def for_rows(self, rows: int) -> RowsDrafter:
        """Return a drafter of the same candidates for a batch of so many rows.

        Raises:
            ValueError: if its rows cannot be drafted together.
        """


def check_lookahead(lookahead: LookaheadPolicy, drafter: Drafter | None) -> None:
    """Raise where a policy would decide by what its drafter does not show.

    Raises:
        ValueError: naming both.
    """
    if drafter is not None and lookahead.reads_logits and not drafter.gives_logits:
        raise ValueError(
            f"lookahead: {lookahead!r} decides by a draft model's logits, and {drafter!r} has none; "
            "expected a fixed γ, or a policy that does without"
        )


class ModelDrafter:
    """Drafts with a smaller causal LM, autoregressively."""

    gives_logits = True

    def __init__(
        self,
        model: Any,
        *,
        width: int,
        kept: torch.Tensor | None = None,
        temperature: float | DraftTemperature = 1.0,
    ) -> None:
        """Wrap a draft model.

        Args:
            width: V, entries of the target's vocabulary.
            kept: [V_draft], the target token each row of a cut head stands for; None: a whole head,
                whose row i is token i.
            temperature: multiplies the request's temperature when the draft draws; may depend on it.
        """
        self.cached = CachedModel(model, width=width if kept is None else None)
        self.context = self.cached.context
        self.width = width
        self.kept = None if kept is None else kept.to(self.cached.device)
        self.temperature = as_draft_temperature(temperature)

    def reset(self, capacity: int) -> None:
        # The prompt is fed when the first token is drafted: where nothing is, it costs nothing.
        self.cached.reset(min(capacity, self.context))

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        law: TokenLaw,
        draws: Draws,
    ) -> Proposal:
        drafted: list[int] = []
        rows: list[Laws] = []
        steps = 0
        factor = self.temperature.factor(law.params.temperature)
        by_id = law.knows_ids(first=0)  # else a cut vocabulary is drawn from as it is
        while len(drafted) < gamma and policy.wants_step(depth := len(drafted) + 1):
            self.cached.encode_for(len(tokens) + len(drafted))
            new = uncovered(self.cached.cover, tokens, drafted)
            logits = self.cached.advance(new)  # [1, V_draft]
            steps += 1
            show_tokens(policy, Said(tokens, drafted, self.kept))
            if not policy.wants_token(depth, logits[0]):
                break
            row = law.laws(
                spread(logits, self.kept, self.width) if by_id else logits,
                drafted,
                first=len(drafted),
                temperature_factor=factor,
            )  # [1, V], or [1, V_draft]
            index = drawn(row, 0, draws)
            drafted.append(index if by_id or self.kept is None else int(self.kept[index]))
            rows.append(row)
        probs = [row for row in rows if isinstance(row, torch.Tensor)]
        if not probs:  # one-hot laws, or nothing was drafted
            return Proposal(drafted, OneHot(drafted, self.width), steps)
        laws = torch.cat(probs)  # [γ, V] or [γ, V_draft]
        if not by_id:
            laws = spread(laws, self.kept, self.width, missing=0.0)
        return Proposal(drafted, laws, steps)

    def roll_back(self, length: int) -> None:
        self.cached.roll_back(length)

    def twin(self) -> ModelDrafter:
        return ModelDrafter(
            self.cached.model, width=self.width, kept=self.kept, temperature=self.temperature
        )

    def for_rows(self, rows: int) -> RowsDrafter:
        return ModelRowsDrafter(
            self.cached.model,
            rows=rows,
            width=self.width,
            kept=self.kept,
            temperature=self.temperature,
        )
