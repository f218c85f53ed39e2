"""The losses: how far a draft's law q is from a target's law p, token by token.

A divergence is a function of (target_logits [N, V], draft_logits [N, V]) that gives a loss per token [N].

Both logits are divided by the temperature before; no loss is multiplied by its square afterwards. The
target's logits are log-probabilities, −inf for tokens that it excludes. With a cut head V counts the kept
tokens only, and a loss compares q with one of three laws (`Loss.law`):

- "kept": p renormalised on what the draft can propose: kl, rkl, jsd, skl. Against the whole law, forward KL is
  infinite as soon as the target may say what was cut; reverse KL only changes by a constant. jsd and skl
  follow, so that their limits are kl and rkl.
- "whole": p as it is, its sum being the mass that the draft can propose: tv, nla, and 1 − α in lk. What is
  cut is a rejection like any other, so that α here is the α of the decode loop.
- "argmax": all of p on the target's argmax over its whole vocabulary: ce. A position whose argmax was cut has
  no law left (all −inf) and adds no loss, since nothing the draft does there is accepted when decoding
  greedily; it still counts as a token where a mean is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch

from .config import DistillConfig

Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Law = Literal["kept", "whole", "argmax"]

LOG_FLOOR = -100.0  # nats; what reverse KL takes for the log of a smaller probability, 0 included


class Loss(NamedTuple):
    """A divergence to train with."""

    divergence: Divergence
    law: Law  # which of the target's laws it is given, see above


def loss_for(config: DistillConfig) -> Loss:
    """Return the loss that the config asks for, its parameters bound."""
    losses = {
        "kl": Loss(forward_kl, "kept"),
        "rkl": Loss(reverse_kl, "kept"),
        "jsd": Loss(partial(jensen_shannon, beta=config.jsd_beta), "kept"),
        "skl": Loss(partial(skewed_kl, skew=config.skew), "kept"),
        "tv": Loss(total_variation, "whole"),
        "nla": Loss(negative_log_acceptance, "whole"),
        "lk": Loss(partial(lk_hybrid, eta=config.lk_eta), "whole"),
        "ce": Loss(argmax_cross_entropy, "argmax"),
    }
    return losses[config.loss]


def forward_kl(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return KL(p ‖ q) = Σ_x p(x) · (log p(x) − log q(x)) in nats, p renormalised. [N, V] each to [N].

    Tokens that the target excludes (logit −inf) add nothing, in value and gradient.
    """
    return _kl(target_logits.log_softmax(-1), draft_logits.log_softmax(-1))


def reverse_kl(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return KL(q ‖ p) = Σ_x q(x) · (log q(x) − log p(x)) in nats, p renormalised. [N, V] each to [N].

    log p is taken to be at least −100: a draft that only proposes what the target excludes loses 100 nats,
    not infinitely many. Leaving those tokens out, as is often done, would reward proposing them.
    """
    log_p = target_logits.log_softmax(-1).clamp(min=LOG_FLOOR)
    return _kl(draft_logits.log_softmax(-1), log_p)


def jensen_shannon(
    target_logits: torch.Tensor, draft_logits: torch.Tensor, beta: float
) -> torch.Tensor:
    """Return β · KL(p ‖ m) + (1 − β) · KL(q ‖ m) with m = β · p + (1 − β) · q, p renormalised.

    Source: GKD, arXiv 2306.13649, and its convention: β weighs the *target*. Towards its ends it goes to 0,
    JSD / β → KL(p ‖ q) at β → 0 and JSD / (1 − β) → KL(q ‖ p) at β → 1. *At* 0 and 1 it is those, forward and
    reverse KL, as in TRL: it jumps there, and near the ends β also scales the gradient.

    Args:
        target_logits: [N, V].
        draft_logits: [N, V].
        beta: in [0, 1].
    """
    if beta == 0.0:
        return forward_kl(target_logits, draft_logits)
    if beta == 1.0:
        return reverse_kl(target_logits, draft_logits)
    log_p, log_q = target_logits.log_softmax(-1), draft_logits.log_softmax(-1)
    with torch.no_grad():  # the gradient through m is that of Σ m = 1: none
        log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    return beta * _kl(log_p, log_m) + (1.0 - beta) * _kl(log_q, log_m)


def skewed_kl(target_logits: torch.Tensor, draft_logits: torch.Tensor, skew: float) -> torch.Tensor:
    """Return KL(p ‖ s · p + (1 − s) · q), p renormalised: at most −log s, and KL(p ‖ q) at s → 0.

    Source: DistiLLM, arXiv 2402.03898, whose α is s.

    Args:
        target_logits: [N, V].
        draft_logits: [N, V].
        skew: s, in (0, 1).
    """
    log_p, log_q = target_logits.log_softmax(-1), draft_logits.log_softmax(-1)
    # Where both are −inf, logaddexp has no gradient; p = 0 there, and any q does.
    log_q = log_q.masked_fill(log_p == -torch.inf, 0.0)
    return _kl(log_p, torch.logaddexp(log_p + math.log(skew), log_q + math.log1p(-skew)))


def log_acceptance(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return log α = log Σ_x min(p(x), q(x)), p not renormalised. [N, V] each to [N]."""
    return torch.minimum(target_logits, draft_logits.log_softmax(-1)).logsumexp(-1)


def total_variation(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return 1 − α, the share of drafts that is rejected: TV(p, q) over the whole vocabulary."""
    return 1.0 - log_acceptance(target_logits, draft_logits).exp()


def negative_log_acceptance(
    target_logits: torch.Tensor, draft_logits: torch.Tensor
) -> torch.Tensor:
    """Return −log α. Its gradient does not vanish where nothing is accepted yet."""
    return -log_acceptance(target_logits, draft_logits)


def lk_hybrid(target_logits: torch.Tensor, draft_logits: torch.Tensor, eta: float) -> torch.Tensor:
    """Return λ·KL + (1 − λ)·TV with λ = exp(−η α), a constant for the gradient.

    KL is of p renormalised; α and TV are of p as it is. Source: LK losses, arXiv 2602.23881, where λ is of the
    batch's mean α; here it is of each token's, so that no token's loss depends on how a batch is split.

    Args:
        target_logits: [N, V], p not renormalised.
        draft_logits: [N, V].
        eta: η, at least 0; 0 is KL alone.
    """
    alpha = log_acceptance(target_logits, draft_logits).exp()
    weight = torch.exp(-eta * alpha.detach())
    return weight * forward_kl(target_logits, draft_logits) + (1.0 - weight) * (1.0 - alpha)


def argmax_cross_entropy(target_logits: torch.Tensor, draft_logits: torch.Tensor) -> torch.Tensor:
    """Return −log q(x) in nats of the target's argmax x, the lowest of equal ones. [N, V] each to [N].

    Where all of the target's logits are −inf its argmax is not among these tokens: loss and gradient are 0.
    """
    best, argmax = target_logits.max(-1, keepdim=True)  # [N, 1]
    log_q = draft_logits.log_softmax(-1).gather(-1, argmax)
    return -log_q.masked_fill(best == -torch.inf, 0.0).squeeze(-1)


def _kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Return Σ p · (log p − log q), with nothing from p = 0, in value and gradient. [N, V] each to [N]."""
    ratios = (log_p - log_q).masked_fill_(log_p == -torch.inf, 0.0)  # −inf − −inf is no number
    return (log_p.exp() * ratios).sum(-1)
