"""A teacher's law cut to its k likeliest tokens, what is left of it kept as one outcome, and exact bounds.

The rest is never given to the tokens that are known: p is not renormalised. A loss compares coarse laws of
target and draft, over the k tokens and "any other". Merging outcomes can only bring two laws closer, so that
each loss is at most what it would be with the whole law, and equal where k is the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .divergences import Law

NOTHING = -1e9  # a draft's logit of what it cannot say: e to that is 0, and its gradient is no NaN
ROUNDING = 2.0**-11  # of a log-probability in float16, relative
TINY = 2.0**-24  # the same where it is close to 0, absolute


class TopK(NamedTuple):
    """The cut laws of N tokens."""

    tokens: torch.Tensor  # [N, k], by falling probability
    log_probs: torch.Tensor  # [N, k], in float16 or better, of the whole law
    log_sums: torch.Tensor  # [N], log Σ exp of all logits (over the temperature), float32
    log_rest: torch.Tensor  # [N], log of the mass of all other tokens, float32; −inf: there is none

    def part(self, tokens: slice) -> TopK:
        """Return those of some tokens."""
        return TopK(*(tensor[tokens] for tensor in self))


def top_k(logits: torch.Tensor, k: int) -> TopK:
    """Return the laws of logits [N, V], which are over the temperature already, cut to k tokens (V at most).

    Log-probabilities are in float16, 2^−11 of their size off at most; the mass of the rest is exact.
    """
    log_sums = logits.logsumexp(-1)  # [N]
    values, tokens = logits.topk(min(k, logits.shape[-1]), dim=-1)  # [N, k]
    rest = logits.scatter(-1, tokens, -torch.inf).logsumexp(-1) - log_sums
    log_probs = (values - log_sums[:, None]).to(torch.float16)
    return TopK(tokens, log_probs, log_sums.float(), rest.float())


def coarse_laws(
    top: TopK, draft_logits: torch.Tensor, column_of: torch.Tensor, law: Law
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return target and draft as `divergences` takes them, over k tokens and the rest: [n, k + 1] each.

    With a cut head a known token that the draft cannot propose is left out, as anywhere. Whether the rest
    could be proposed is not known: it is taken for what the draft can propose, at most its mass off.

    Args:
        top: of n tokens.
        draft_logits: [n, V_draft], over the temperature.
        column_of: [V], the draft's column of each token, −1 where it has none.
        law: which of the target's laws a loss is given, see `divergences`.
    """
    columns = column_of[top.tokens]  # [n, k]
    known = columns >= 0
    log_probs = top.log_probs.to(draft_logits.dtype)
    target = torch.cat(
        [log_probs.masked_fill(~known, -torch.inf), top.log_rest[:, None].to(log_probs)], -1
    )
    if law == "argmax":
        target[:, 1:] = -torch.inf
    log_q = draft_logits.log_softmax(-1)  # [n, V_draft]
    said = log_q.gather(-1, columns.clamp(min=0)).masked_fill(~known, NOTHING)  # [n, k]
    # A spare column takes what is not known, so that no known one is overwritten.
    spare = torch.where(known, columns, log_q.shape[-1])
    others = torch.cat([log_q, log_q.new_full((len(log_q), 1), NOTHING)], -1)
    rest = others.scatter(-1, spare, NOTHING).logsumexp(-1)  # [n]
    return target, torch.cat([said, rest[:, None]], -1)


def acceptance_bounds(top: TopK, draft_logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest α = Σ min(p, q) that the whole law may give: [N] each.

    A known token adds min(p, q), with p within its rounding. All others together add at least 0, and at most
    the smaller of their mass r under p and Σ min(p_k, q) over them: none is likelier than p_k, the last
    that is known.

    Args:
        top: of N tokens.
        draft_logits: [N, V], over the temperature; of the whole vocabulary.
    """
    log_q = draft_logits.log_softmax(-1)  # [N, V]
    low, high = _probs(top)  # [N, k] each
    q = log_q.gather(-1, top.tokens).exp()  # [N, k]
    tail = log_q.exp().scatter(-1, top.tokens, 0.0)  # [N, V]
    rest = torch.minimum(tail, high[:, -1:]).sum(-1).minimum(top.log_rest.to(q).exp())
    return torch.minimum(low, q).sum(-1), torch.minimum(high, q).sum(-1) + rest


def kl_bounds(top: TopK, draft_logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest KL(p ‖ q), in nats, that the whole law may give: [N] each.

    A known token adds p log(p / q), with p within its rounding. All others, of mass r under p and Q under q,
    add at least r log(r / Q) (the log-sum inequality) and at most r (log p_k − log min q over them): none
    is likelier than p_k, the last that is known.

    Args:
        top: of N tokens.
        draft_logits: [N, V], over the temperature; of the whole vocabulary.
    """
    log_q = draft_logits.log_softmax(-1)  # [N, V]
    low, high = _probs(top)  # [N, k] each
    said = log_q.gather(-1, top.tokens)  # [N, k]
    # p log(p / q) is convex in p with its least value at q / e.
    least = torch.minimum(torch.maximum(said.exp() / torch.e, low), high)
    known = [_term(p, said) for p in (low, high, least)]
    log_rest = top.log_rest.to(said)
    rest = log_rest.exp()  # [N]
    others = log_q.scatter(-1, top.tokens, -torch.inf).logsumexp(-1)
    rarest = log_q.scatter(-1, top.tokens, torch.inf).min(-1).values
    there = rest > 0
    lower = torch.where(there, rest * (log_rest - others), 0.0)
    upper = torch.where(there, rest * (high[:, -1].log() - rarest), 0.0)
    return known[2].sum(-1) + lower, torch.maximum(known[0], known[1]).sum(-1) + upper


def _probs(top: TopK) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a probability may have been before its logarithm was rounded: least and largest, [N, k]."""
    log_probs = top.log_probs.double()
    half = top.log_probs.dtype == torch.float16
    slack = (log_probs.abs() * ROUNDING + TINY) * half
    slack = slack.masked_fill(log_probs.isinf(), 0.0)  # what the target excludes, it excludes
    return (log_probs - slack).exp(), (log_probs + slack).exp().clamp(max=1.0)


def _term(p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    return torch.where(p > 0, p * (p.log() - log_q), 0.0)
