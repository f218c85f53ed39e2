"""One round of speculative decoding: draft, verify, keep, roll back. Plain decoding is γ = 0 of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from .cached import CachedModel, uncovered
from .chain import looking
from .drafter import Drafter, Proposal
from .draws import Draws
from .law import TokenLaw
from .one_hot import OneHot
from .policy import LookaheadPolicy, RoundOutcome, ask_gamma
from .verify import verify


@torch.inference_mode()
def decode_round(
    tokens: Sequence[int],
    target: CachedModel,
    drafter: Drafter | None,
    policy: LookaheadPolicy,
    law: TokenLaw,
    draws: Draws,
    *,
    gamma_limit: int,
) -> tuple[list[int], RoundOutcome]:
    """Return the tokens that follow `tokens`, between 1 and γ + 1 of them, and how the round went.

    Args:
        tokens: the sequence so far; all but its last token are in the target's cache. What is
            covered is not read, so a round costs the same at every length.
        law: of the request, with `tokens` committed; the tokens returned are committed to it.
        gamma_limit: most tokens that may be drafted.
    """
    begun = time.perf_counter()
    gamma = ask_gamma(policy, len(tokens), gamma_limit, looking(drafter, tokens))
    if drafter is None or gamma == 0:
        proposal = Proposal([], OneHot([], target.width or 0), steps=0)
    else:
        proposal = drafter.propose(tokens, gamma, policy, law, draws)
    drafted = time.perf_counter()

    target.encode_for(len(tokens) + len(proposal.tokens))
    new = uncovered(target.cover, tokens, proposal.tokens)
    logits = target.advance(new, keep=len(proposal.tokens) + 1)  # [γ+1, V]
    verified = time.perf_counter()
    target_probs = law.laws(logits, proposal.tokens)  # [γ+1, V]
    accepted, last = verify(target_probs, proposal.probs, proposal.tokens, draws)

    emitted = [*proposal.tokens[:accepted], last]
    law.commit(emitted)
    length = len(tokens) + accepted  # the last token is pending: the next round feeds it
    target.roll_back(length)
    if drafter is not None:
        drafter.roll_back(length)
    outcome = RoundOutcome(
        drafted=len(proposal.tokens),
        accepted=accepted,
        draft_steps=proposal.steps,
        draft_seconds=drafted - begun,
        verify_seconds=verified - drafted,
        round_seconds=time.perf_counter() - begun,
        target_logits=logits,
        target_probs=target_probs,
        draft_probs=proposal.probs,
    )
    policy.end_round(outcome)
    return emitted, outcome


def most_to_draft(target: CachedModel, drafter: Drafter | None, length: int, end: int) -> int:
    """Return how many tokens may be drafted after `length`: the bonus fits below `end`, all of them in what
    the target can judge at once, and the draft below its context."""
    if drafter is None:
        return 0
    room = target.room(length)
    limit = min(end - length - 1, drafter.context - length)
    return max(0, limit if room is None else min(limit, room))
