"""What a draft proposes at every position of a text that the target wrote greedily.

Greedy decoding says the same whatever is drafted, so what is drafted from each position, and how much of
it agrees with the text, tells what every lookahead would have met: see controller/replay.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..spec import (
    CachedModel,
    FixedLookahead,
    GeneratorDraws,
    HeadDrafter,
    ModelDrafter,
    SamplingParams,
    TokenLaw,
    acceptance_prob,
    eos_token_ids,
)
from ..spec.searches import best_tokens
from ..spec.spreading import spread
from .signals import NO_SIGNALS, Signals, signals

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseText:
    """A text of N tokens and what the draft proposes at each of its positions, up to Γ tokens.

    Position t is the state in which t tokens of the text are committed. Looks are Signals.
    """

    id: str
    domain: str
    prompt_length: int
    width: int  # V
    tokens: Ints  # [N]
    gamma_limit: Ints  # [N], most tokens that the loop may draft there
    accepted_length: Ints  # [N], of all that was drafted there
    drafts: Ints  # [N, Γ], -1 where nothing was drafted: beyond gamma_limit
    looks: Array  # [N, Γ, 3], of the draft's raw law before each draw; NaN where none
    acceptance_prob: Array  # [N, Γ], Σ min(p, q) at temperature 1; NaN past the first rejection
    target_looks: Array  # [N, 3], of the target's raw law that gave tokens[t]
    prompt: tuple[int, ...] = ()  # empty where it was not recorded

    @property
    def gamma_max(self) -> int:
        """Γ."""
        return int(self.drafts.shape[1])


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A text, and how the target would have gone on past its end token: a block reaches over it."""

    prompt: list[int]
    tokens: list[int]  # M >= N
    length: int  # N, the tokens of the text itself
    end: int  # most tokens that prompt and text may have
    logits: torch.Tensor  # [M, V], row t gave tokens[t]

    @property
    def sequence(self) -> list[int]:
        return self.prompt + self.tokens

    def limit(self, position: int, context: int) -> int:
        """Return how many tokens a draft of that context may propose at a position."""
        length = len(self.prompt) + position
        return max(0, min(self.end - length - 1, context - length))


@dataclass(slots=True)
class Chain:
    """Tokens drafted one after the other, and the draft's raw logits [V_draft] before each."""

    tokens: list[int]
    logits: list[torch.Tensor]


def read_text(
    target: CachedModel,
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    gamma_max: int,
    max_tokens: int,
    ended: bool,
) -> WrittenText:
    """Return a text with the target's laws, in one forward, and up to `gamma_max` tokens past its end token.

    Args:
        response: what the target wrote, greedily; cut at `max_tokens`.
        ended: whether its last token ended it, so that it could have been longer.

    Raises:
        ValueError: if there is no token, or the target cannot judge so many in one forward.
    """
    ended = ended and len(response) <= max_tokens
    tokens = list(response[:max_tokens])
    if not prompt or not tokens:
        raise ValueError("a text needs a token in its prompt and one in its response")
    end = min(len(prompt) + (max_tokens if ended else len(tokens)), target.context)
    length = min(len(tokens), end - len(prompt))
    room = target.room(0)
    if room is not None and room < end:
        raise ValueError(f"{end} tokens are more than the {room} of one forward of the target")
    target.reset(end)
    rows = [target.advance([*prompt, *tokens[: length - 1]], keep=length)]  # [N, V]
    written = tokens[:length]
    for _ in range(min(gamma_max, end - len(prompt) - length)):
        rows.append(target.advance(written[-1:]))  # [1, V]
        written.append(int(best_tokens(rows[-1])))
    return WrittenText(list(prompt), written, length, end, torch.cat(rows))


def one_by_one(drafter: ModelDrafter, text: WrittenText, gamma_max: int) -> list[Chain]:
    """Return the chain of each position, drafted as the loop drafts; the prefix stays in the cache."""
    policy = _Looks(gamma_max)
    params = SamplingParams(temperature=0.0)
    drafter.reset(text.end)
    if isinstance(drafter, HeadDrafter):
        drafter.begin(len(text.prompt) - 1)  # the target has read the text as well
    chains = []
    for position in range(text.length):
        tokens = text.sequence[: len(text.prompt) + position]
        gamma = min(gamma_max, text.limit(position, drafter.context))
        law = TokenLaw(
            params,
            tokens,
            width=drafter.width,
            eos_token_ids=eos_token_ids(drafter.cached.model),
            device=drafter.cached.device,
        )
        policy.looks = []
        drafted = drafter.propose(tokens, gamma, policy, law, GeneratorDraws(0)).tokens
        chains.append(Chain(drafted, policy.looks))
        drafter.roll_back(len(tokens))
    return chains


class _Looks(FixedLookahead):
    """Keeps the draft's logits."""

    def __init__(self, gamma: int) -> None:
        super().__init__(gamma)
        self.looks: list[torch.Tensor] = []

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        self.looks.append(draft_logits)
        return True


def dense_text(
    name: str,
    domain: str,
    text: WrittenText,
    chains: Sequence[Chain],
    drafter: ModelDrafter,
    gamma: int,
) -> DenseText:
    """Return chains, one for each position, as arrays; Γ = gamma."""
    count = text.length
    drafts = np.full((count, gamma), -1, dtype=np.int64)
    looks = np.full((count, gamma, len(NO_SIGNALS)), np.nan)
    soft = np.full((count, gamma), np.nan)
    accepted = np.zeros(count, dtype=np.int64)
    seen = _Memo(text, drafter)
    for position, chain in enumerate(chains):
        drafts[position, : len(chain.tokens)] = chain.tokens
        on_text = True
        for depth, (token, logits) in enumerate(zip(chain.tokens, chain.logits, strict=True)):
            looks[position, depth] = seen.look(logits)
            if on_text:
                soft[position, depth] = seen.acceptance(position + depth, logits)
                on_text = token == text.tokens[position + depth]
                accepted[position] += on_text
    limits = [text.limit(position, drafter.context) for position in range(count)]
    return DenseText(
        id=name,
        domain=domain,
        prompt_length=len(text.prompt),
        width=drafter.width,
        tokens=np.array(text.tokens[:count], dtype=np.int64),
        gamma_limit=np.array(limits, dtype=np.int64),
        accepted_length=accepted,
        drafts=drafts,
        looks=looks,
        acceptance_prob=soft,
        target_looks=np.array([signals(row) for row in text.logits[:count]]),
        prompt=tuple(text.prompt),
    )


class _Memo:
    """Looks and acceptance of laws, each computed once though chains share them."""

    def __init__(self, text: WrittenText, drafter: ModelDrafter) -> None:
        self._text, self._drafter = text, drafter
        self._looks: dict[int, Signals] = {}
        self._soft: dict[tuple[int, int], float] = {}
        self._kept: list[torch.Tensor] = []  # alive, so that their ids are theirs alone

    def look(self, logits: torch.Tensor) -> Signals:
        """Return the signals of a row [V_draft]."""
        if id(logits) not in self._looks:
            self._kept.append(logits)
            self._looks[id(logits)] = signals(logits)
        return self._looks[id(logits)]

    def acceptance(self, position: int, logits: torch.Tensor) -> float:
        """Return Σ min(p, q) at temperature 1, p the target's law at a position."""
        key = position, id(logits)
        if key not in self._soft:
            drafter = self._drafter
            q = spread(logits[None], drafter.kept, drafter.width).float().softmax(-1)  # [1, V]
            p = self._text.logits[position][None].to(q).softmax(-1)  # [1, V]
            self._soft[key] = float(acceptance_prob(p, q))
        return self._soft[key]
