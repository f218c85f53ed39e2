"""What comes of a prompt: tokens, text, why it ended, log-probabilities, statistics."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from .policy import RoundOutcome
from .stats import DecodeStats
from .stopping import StopRule


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of an emitted token under the target's raw logits, over V entries."""

    token_id: int
    logprob: float
    rank: int  # 1 is the likeliest
    top: dict[int, float]  # the k likeliest tokens with their log-probabilities, likeliest first


@dataclass(slots=True)
class RequestOutput:
    """What came of one prompt.

    With `n = 1` these fields are all there is. With more, they are those of the first output, and
    `outputs` lists all n, each with its own tokens and statistics.
    """

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)  # the end token included, nothing after it
    text: str = ""  # without the end token and the stop string, unless they were asked for
    finish_reason: str | None = None
    """"stop" (an end token or a stop string), "length", "abort" (closed by its reader) or "error"."""
    stats: DecodeStats = field(default_factory=DecodeStats)
    logprobs: list[TokenLogprob] | None = (
        None  # one per token of token_ids, where they were asked for
    )
    error: Exception | None = None  # what went wrong, where finish_reason is "error"
    others: list[RequestOutput] = field(default_factory=list, repr=False)  # the second to the n-th

    @property
    def outputs(self) -> list[RequestOutput]:
        """All n outputs of the prompt; the first is this object."""
        return [self, *self.others]


def take_round(
    output: RequestOutput,
    rule: StopRule,
    tokens: list[int],
    emitted: list[int],
    outcome: RoundOutcome,
    logprobs: int | None,
) -> Iterator[str]:
    """Append a round's tokens to an output and its sequence, up to where it ends; yield the pieces of text.

    Args:
        tokens: the sequence, prompt included.
        logprobs: how many of each token were asked for.
    """
    output.stats.add_round(outcome)
    found = [] if logprobs is None else token_logprobs(outcome.target_logits, emitted, logprobs)
    for place, token in enumerate(emitted):
        tokens.append(token)
        piece = rule.push(token)
        if output.logprobs is not None:
            output.logprobs.append(found[place])
        if rule.finish_reason is not None:
            output.stats.discarded += len(emitted) - place - 1
        yield piece
        if rule.finish_reason is not None:
            return


def raise_or_warn(results: Sequence[RequestOutput]) -> None:
    """Warn of each prompt that failed; where nothing succeeded, raise the first error."""
    errors = [(i, each.error) for i, result in enumerate(results) for each in result.outputs]
    failed = [(index, error) for index, error in errors if error is not None]
    if failed and len(failed) == len(errors):
        raise failed[0][1]
    for index, error in failed:
        warnings.warn(f"prompts[{index}] failed: {error!r}", RuntimeWarning, stacklevel=3)


@torch.inference_mode()
def token_logprobs(logits: torch.Tensor, tokens: list[int], count: int) -> list[TokenLogprob]:
    """Return the log-probabilities of emitted tokens and of the `count` likeliest.

    Args:
        logits: [at least N, V], raw; row i is the law of token i.
        tokens: N token ids.
    """
    logits = logits[: len(tokens)].to(torch.promote_types(logits.dtype, torch.float32))
    rows = logits.log_softmax(-1)  # [N, V]
    emitted = rows.gather(-1, torch.tensor(tokens, device=rows.device)[:, None])  # [N, 1]
    ranks = (rows > emitted).sum(-1) + 1  # [N]
    top = rows.topk(count, -1)  # [N, k] each
    return [
        TokenLogprob(token, value, rank, dict(zip(ids, values, strict=True)))
        for token, value, rank, ids, values in zip(
            tokens,
            emitted[:, 0].tolist(),
            ranks.tolist(),
            top.indices.tolist(),
            top.values.tolist(),
            strict=True,
        )
    ]
