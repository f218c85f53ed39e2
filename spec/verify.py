"""The verifier: keep the longest acceptable prefix of a draft and draw the token after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .draws import Draws, drawn
from .one_hot import Laws, OneHot, dense_row


def verify(
    target_probs: Laws, draft_probs: Laws, drafted: Sequence[int], draws: Draws
) -> tuple[int, int]:
    """Accept a prefix of the drafted tokens and draw the token that follows it.

    The emitted tokens follow the target's law exactly, whatever the draft is: token x is kept with
    probability min(1, p(x) / q(x)); at the first rejection the correction is drawn from what the draft
    proposes too rarely, max(p − q, 0); after γ acceptances the bonus is drawn from p.

    Args:
        target_probs: [γ+1, V], row i given the context and the first i drafted tokens.
        draft_probs: [γ, V], the laws that the drafted tokens were really drawn from.
        drafted: γ token ids.
        draws: source of all randomness.

    Returns:
        The accepted length, 0 to γ, and the token after it.

    Raises:
        ValueError: if the shapes do not fit each other.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1.
    """
    gamma = len(drafted)
    if target_probs.shape[0] != gamma + 1 or draft_probs.shape[0] != gamma:
        raise ValueError(
            f"{gamma} drafted tokens need {gamma + 1} target rows and {gamma} draft rows, "
            f"got {tuple(target_probs.shape)} and {tuple(draft_probs.shape)}"
        )
    for position, token in enumerate(drafted):
        p, q = float(target_probs[position, token]), float(draft_probs[position, token])
        assert q > 0.0, f"token {token} was drafted with probability 0"
        if not draws.accepts(p / q):
            return position, _last_token(target_probs, draft_probs, position, draws)
    return gamma, _last_token(target_probs, draft_probs, gamma, draws)


def _last_token(target_probs: Laws, draft_probs: Laws, accepted: int, draws: Draws) -> int:
    """Draw the token after the accepted ones: from the residual, or from p where all were accepted."""
    if isinstance(target_probs, OneHot) or accepted == draft_probs.shape[0]:
        return drawn(target_probs, accepted, draws)  # what is left of a one-hot law is the law
    law = target_probs[accepted]  # [V]
    return draws.token(residual(law, dense_row(draft_probs, accepted, like=law)))


def residual(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Return max(p − q, 0), normalised: the law of the correction. [V] each.

    Where nothing is left (p = q up to rounding) it is p.
    """
    rest = (target_probs - draft_probs).clamp(min=0.0)
    mass = rest.sum()
    return rest / mass if mass > 0.0 else target_probs


def acceptance_prob(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Return α = Σ_x min(p(x), q(x)) = 1 − TV(p, q). [..., V] each to [...]."""
    return torch.minimum(target_probs, draft_probs).sum(-1)
