"""The controller's seam: how far ahead to draft.

A policy must be *non-anticipating*: whether token k is drafted may depend on everything known before
it is drawn (earlier rounds, the tokens drafted before it, the draft's distribution for it), never on
the token itself. The shape of the protocol holds this: a policy is asked before each draw and has no way
to withdraw a token that was drawn, so it may be shown those drawn before (`ReadsTokens`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .looks import Looking
from .one_hot import Laws
from .params import SamplingParams, check_integer


@dataclass(frozen=True, slots=True)
class RoundStart:
    """What is known before a round."""

    context_length: int  # tokens committed so far, prompt included
    gamma_limit: int  # most tokens that may be drafted: budget and both contexts considered
    look: Looking | None = (
        None  # what a lookup would follow, found when called; None: nothing looks up
    )


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """What a round turned out to be. Times are host seconds, synchronised where the device is not the CPU."""

    drafted: int  # tokens drawn from the draft, all of them verified
    accepted: int  # accepted_length, 0..drafted; tokens after the first rejection were never tested
    draft_seconds: float  # all draft forwards of the round, the policy's own work included
    verify_seconds: float  # the target's forward over drafted + 1 tokens
    round_seconds: float  # the whole round
    draft_steps: (
        int  # draft forwards run: drafted, or one more where the policy stopped after a look
    )
    target_logits: torch.Tensor  # [drafted + 1, V], raw; row k judged drafted token k + 1
    target_probs: Laws  # [drafted + 1, V], p as used; see `dense`
    draft_probs: Laws  # [drafted, V], q as drawn from


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """The tokens that the next drafted token will follow. All are committed or will be verified."""

    committed: Sequence[int]  # prompt included; read only what is new: it grows with the text
    drafted: Sequence[int]  # in this round so far
    kept: torch.Tensor | None = None  # [V_draft], the token of each draft logit; None: the same ids

    def token(self, index: int) -> int:
        """Return the token that a draft logit stands for."""
        return index if self.kept is None else int(self.kept[index])


class ReadsTokens:
    """Base of policies that look at tokens too. One that is not told, by some drafter, does without."""

    def read(self, said: Said) -> None:
        """Take in what the token of the next `wants_token` would follow; called right before it."""
        raise NotImplementedError


class LookaheadPolicy(Protocol):
    """Says how many tokens to draft. One object serves one decoder; it may learn across requests.

    The loop calls, per request `begin_request` once; per round `begin_round` once, then for each
    depth k = 1, 2, … up to the cap `wants_step` and `wants_token`, then `end_round` once.
    """

    gamma_max: int  # never asks for more than this; sizes the buffers
    reads_logits: bool  # decides by draft logits: a drafter that has none is refused

    def begin_request(self, params: SamplingParams) -> None:
        """A new request starts."""

    def begin_round(self, start: RoundStart) -> int:
        """Return the cap for this round: 0 (decode plainly) to `start.gamma_limit`."""

    def wants_step(self, depth: int) -> bool:
        """Run the draft forward that gives the distribution of drafted token `depth` (from 1)?

        Where there is no such forward: draft the token? `wants_token` is not asked then.
        """

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        """Draw drafted token `depth` from the distribution just computed?

        Args:
            draft_logits: [V_draft], raw (before temperature and filters); not to be changed. Also
                called for the first token.
        """

    def end_round(self, outcome: RoundOutcome) -> None:
        """Learn from the round."""

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        """Return `count` policies, one for each row of a batch; they may share what they learn.

        All rows decide before any of them is told how the round ended.
        """


def show_tokens(policy: LookaheadPolicy, said: Said) -> None:
    """Show the tokens to a policy that reads them."""
    if isinstance(policy, ReadsTokens):
        policy.read(said)


def ask_gamma(
    policy: LookaheadPolicy, context_length: int, gamma_limit: int, look: Looking | None = None
) -> int:
    """Begin a round and return how many tokens may be drafted in it; the arguments are `RoundStart`'s.

    Raises:
        ValueError: if the policy answers outside [0, gamma_limit].
    """
    start = RoundStart(context_length=context_length, gamma_limit=gamma_limit, look=look)
    gamma = policy.begin_round(start)
    if not 0 <= gamma <= gamma_limit:
        raise ValueError(
            f"gamma must lie in [0, {gamma_limit}], the policy {policy!r} said {gamma}"
        )
    return gamma


class FixedLookahead:
    """Drafts `gamma` tokens in every round; γ = 0 is plain decoding."""

    reads_logits = False

    def __init__(self, gamma: int) -> None:
        check_integer("gamma", gamma, low=0)
        self.gamma_max = gamma

    def begin_request(self, params: SamplingParams) -> None:
        pass

    def begin_round(self, start: RoundStart) -> int:
        return min(self.gamma_max, start.gamma_limit)

    def wants_step(self, depth: int) -> bool:
        return True

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        pass

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        return [copy.copy(self) for _ in range(count)]

    def __repr__(self) -> str:
        return f"FixedLookahead({self.gamma_max})"
