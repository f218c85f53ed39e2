"""A draft with another tokenizer: its words are proposed in the target's tokens.

What the draft model says is a text. It is encoded as the target would go on, and the target judges that.

Source: universal assisted decoding (huggingface.co/blog/universal_assisted_generation); Timor et al. 2025,
string-level verification by re-encoding (arXiv 2502.05202).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .batch_drafter import RowsDrafter
from .codec import Codec
from .drafter import Proposal
from .draws import Draws
from .law import TokenLaw
from .lookup import NO_LIMIT
from .one_hot import OneHot
from .policy import LookaheadPolicy
from .translated import TranslatedModel
from .translation import BROKEN, Translation

CROSS = "cross:"
"""Before the hub id or folder of a draft that is given by name: this drafter is meant."""
STEPS_A_TOKEN = 4  # most draft steps for each of the target's tokens that may be drafted


class CrossTokenizerDrafter:
    """Drafts a text with a causal LM of any tokenizer, and encodes it as the target's next tokens.

    Its laws are one-hot, for greedy and for sampling requests, as in prompt lookup: a proposal x is kept
    with the probability p(x), and the correction is the target's law without x, which together is p
    whatever x is and however it was chosen. So the draft model decodes greedily: its likeliest text is kept
    most often. Sampling requests are better served by `SharedTokensDrafter`, which keeps Σ min(p, q).

    A round costs a draft step for each of the *draft's* tokens, 4 at most for each of the target's that
    are asked for, and a look at the text each time, whatever the length of the sequence. The policy is
    asked before each of those steps, about the target's token that is next: several times about one that
    takes several. A text that cannot be the target's next one, or whose tokens do not spell it, ends
    the draft.
    """

    gives_logits = False  # a look is at one of the draft's tokens, a policy decides on the target's
    context = NO_LIMIT

    def __init__(self, model: Any, tokenizer: Any, target_tokenizer: Any) -> None:
        """Wrap a draft model.

        Args:
            model: a causal LM in eval mode.
            tokenizer: the draft's, a fast one.
            target_tokenizer: the target's, a fast one.

        Raises:
            ValueError: if a tokenizer is not one of the `tokenizers` library, or the model's state cannot
                be rolled back.
        """
        self._target, self._own = Codec(target_tokenizer, "target"), Codec(tokenizer, "draft")
        self._name = type(model).__name__
        self._begin(model)

    def _begin(self, model: Any) -> None:
        self._translation = Translation(self._target, self._own)
        self._draft = TranslatedModel(model, self._own, self._translation)

    def reset(self, capacity: int) -> None:
        self._draft.reset(capacity)

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        law: TokenLaw,
        draws: Draws,
    ) -> Proposal:
        self._translation.extend(tokens[len(self._translation.tokens) :])
        drawn: list[int] = []
        spelling = _Spelling([], whole=not self._translation.pending, over=False)
        steps, most = 0, min(STEPS_A_TOKEN * gamma, self._draft.most_drawn)
        while (
            len(spelling.tokens) < gamma
            and steps < most
            and policy.wants_step(len(spelling.tokens) + 1)
        ):
            token = int(self._draft.logits(drawn)[0].argmax())
            steps += 1
            if token in self._own.special:
                if token == self._own.eos and self._target.eos is not None and spelling.whole:
                    spelling.tokens.append(self._target.eos)
                break
            drawn.append(token)
            longer = self._spell(drawn)
            if longer.tokens or not longer.over:
                spelling = longer
            if longer.over:
                break
        drafted = list(
            itertools.takewhile(lambda token: token < law.width, spelling.tokens[:gamma])
        )
        return Proposal(drafted, OneHot(drafted, law.width), steps)

    def roll_back(self, length: int) -> None:
        self._translation.roll_back(
            length
        )  # only committed tokens are read: a round takes none back

    def twin(self) -> CrossTokenizerDrafter:
        other = copy.copy(self)
        other._begin(self._draft.cached.model)
        return other

    def for_rows(self, rows: int) -> RowsDrafter:
        raise ValueError(f"{self!r} drafts one sequence at a time: rows cannot be drafted together")

    def __repr__(self) -> str:
        return f"CrossTokenizerDrafter({self._name})"

    def _spell(self, drawn: list[int]) -> _Spelling:
        """Return the target's tokens for the text of the draft's."""
        nothing = _Spelling([], whole=False, over=True)
        text = self._own.after(self._translation.draft_end(), drawn)
        if text is None:
            return nothing
        whole = BROKEN not in text
        text = text.split(BROKEN)[0]
        known = self._translation.uncovered  # the target has said it, the draft has to say it again
        if not text.startswith(known):
            return _Spelling([], whole=False, over=not known.startswith(text))
        text = text[len(known) :]
        said, pending = self._translation.target_end(), self._translation.pending
        before = self._target.decode(said)
        new = self._target.after_boundary(before, text)
        count = self._spelled(said, new, before + text)
        size = min(len(pending), count)
        if new[:size] != pending[:size]:
            return nothing
        short = count < len(new)
        return _Spelling(new[len(pending) : count], whole=whole and not short, over=short)

    def _spelled(self, said: list[int], new: list[int], text: str) -> int:
        """Return how many of the new tokens, after those said, make the text as far as they go."""
        if self._target.decode([*said, *new]) == text:
            return len(new)
        counts = range(len(new) - 1, 0, -1)
        return next(
            (n for n in counts if text.startswith(self._target.decode([*said, *new[:n]]))), 0
        )


@dataclass(frozen=True, slots=True)
class _Spelling:
    """A text in the target's tokens."""

    tokens: list[int]
    whole: bool  # they make all of it
    over: bool  # no more of it could be spelled
