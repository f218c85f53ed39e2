"""Arms on the same prompts in one run, interleaved token by token: the only way a speedup is ever claimed.

A machine that others use is 20 % slower for some seconds and then is not. Arms that decode an answer each, one
after the other, differ by as much; arms that take turns after every few tokens meet the same machine.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..data import Prompt
from ..spec import (
    DecodeStats,
    FixedLookahead,
    LookaheadPolicy,
    RequestOutput,
    SamplingParams,
    SpeculativeDecoder,
    TextStream,
    render_chat,
)
from .report_data import Arm, Comparison, DomainSpeed

PLAIN = "plain"
RESAMPLES = 2000
INTERVAL = "95 %, bootstrap over prompts, paired with plain decoding"
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class _Sample:
    """One prompt in one arm."""

    domain: str
    seconds: float  # of decoding, median over the repeats; the target's prefill is not in it
    output: RequestOutput


@dataclass(slots=True)
class _Arm:
    name: str
    gamma: int | str
    decoder: SpeculativeDecoder
    samples: list[_Sample] = field(default_factory=list)


def compare(
    decoder: SpeculativeDecoder,
    lookaheads: Mapping[str, tuple[int | str, LookaheadPolicy]],
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    dtype: str,
    repeats: int = 1,
    max_seconds: float | None = None,
    reference: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Decode every prompt in every arm, the arms taking turns, and return the figures.

    Args:
        lookaheads: name -> (γ for the table, policy); must have "plain".
        max_seconds: start no further prompt after this time, once there are two.
        reference: also decode greedily with transformers' `generate` and count equal outputs.
    """
    arms = [_Arm(name, g, decoder.twin(p)) for name, (g, p) in lookaheads.items()]
    plain_arm = next(arm for arm in arms if arm.name == PLAIN)
    begun = time.perf_counter()
    order = random.Random(0)
    equal_to_generate = 0
    _warm_up(arms, prompts[0])
    done = 0
    for prompt in prompts:
        _decode(arms, prompt, params, repeats, order)
        if reference and params.greedy:
            plain = plain_arm.samples[-1].output
            equal_to_generate += _generated(decoder, plain, params) == plain.token_ids
        done += 1
        if progress is not None:
            progress(done, len(prompts))
        if max_seconds is not None and done > 1 and time.perf_counter() - begun > max_seconds:
            break
    return Comparison(
        prompts=done,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        dtype=dtype,
        repeats=repeats,
        arms=[_figures(arm, plain_arm, params) for arm in arms],
        interval=INTERVAL,
        reference_equal=equal_to_generate if reference and params.greedy else None,
    )


def make_arms(
    gammas: tuple[int, ...], adaptive: LookaheadPolicy | None
) -> dict[str, tuple[int | str, LookaheadPolicy]]:
    """Return the arms of a comparison: plain, each fixed γ, and the adaptive one if there is one."""
    arms: dict[str, tuple[int | str, LookaheadPolicy]] = {PLAIN: (0, FixedLookahead(0))}
    arms |= {f"γ = {gamma}": (gamma, FixedLookahead(gamma)) for gamma in gammas}
    if adaptive is not None:
        arms["adaptive"] = ("adaptive", adaptive)
    return arms


def interleave_domains(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Order prompts so that every prefix has the domains in about equal parts."""
    seen: dict[str, int] = {}
    ranks = []
    for prompt in prompts:
        ranks.append(seen.setdefault(prompt.domain, 0))
        seen[prompt.domain] += 1
    return [prompt for _, prompt in sorted(zip(ranks, prompts, strict=True), key=lambda x: x[0])]


def _warm_up(arms: Sequence[_Arm], prompt: Prompt) -> None:
    for arm in arms:
        arm.decoder.chat([prompt.messages], SamplingParams(temperature=0.0, max_tokens=6))


def _decode(
    arms: Sequence[_Arm], prompt: Prompt, params: SamplingParams, repeats: int, order: random.Random
) -> None:
    """Decode a prompt in every arm, `repeats` times, and add a sample to each."""
    text = render_chat(arms[0].decoder.tokenizer, prompt.messages)
    runs = []  # [repeats][arms]
    for _ in range(repeats):
        streams = [arm.decoder.stream(text, params) for arm in arms]
        read_by_turns(streams, order)
        runs.append([stream.output for stream in streams])
    for arm, outputs in zip(arms, zip(*runs, strict=True), strict=True):
        seconds = statistics.median(output.stats.round_seconds for output in outputs)
        arm.samples.append(_Sample(prompt.domain, seconds, outputs[0]))


def read_by_turns(streams: Sequence[TextStream], order: random.Random) -> None:
    """Read streams to their ends, each time a piece of the shortest output; which of equals, chance says."""
    unread = list(streams)
    while unread:
        least = min(len(stream.output.token_ids) for stream in unread)
        stream = order.choice([each for each in unread if len(each.output.token_ids) == least])
        if next(stream, None) is None:
            unread.remove(stream)


def _generated(
    decoder: SpeculativeDecoder, plain: RequestOutput, params: SamplingParams
) -> list[int]:
    model = decoder.target.model
    ids = torch.tensor([plain.prompt_token_ids], device=decoder.target.device)
    with torch.inference_mode():
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=params.max_tokens,
            pad_token_id=0,
        )
    tokens: list[int] = whole[0, ids.shape[1] :].tolist()
    return tokens


def _figures(arm: _Arm, plain: _Arm, params: SamplingParams) -> Arm:
    stats = sum((sample.output.stats for sample in arm.samples), DecodeStats())
    tokens = sum(len(sample.output.token_ids) for sample in arm.samples)
    seconds = sum(sample.seconds for sample in arm.samples)
    speedup, low, high = _speedup(plain.samples, arm.samples)
    same = [
        ours.output.token_ids == theirs.output.token_ids
        for ours, theirs in zip(arm.samples, plain.samples, strict=True)
    ]
    domains = {}
    for domain in sorted({sample.domain for sample in arm.samples}):
        chosen = [i for i, sample in enumerate(arm.samples) if sample.domain == domain]
        mine, base = ([a.samples[i] for i in chosen] for a in (arm, plain))
        ratio, least, most = _speedup(base, mine)
        rate = sum(len(s.output.token_ids) for s in mine) / sum(s.seconds for s in mine)
        domains[domain] = DomainSpeed(
            tokens_per_second=rate,
            speedup=ratio,
            speedup_low=least if len(chosen) > 1 else None,
            speedup_high=most if len(chosen) > 1 else None,
        )
    return Arm(
        name=arm.name,
        gamma="adaptive" if arm.gamma == "adaptive" else int(arm.gamma),
        tokens=tokens,
        seconds=seconds,
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        tested=stats.tested,
        acceptance_prob=stats.acceptance_prob,
        acceptance_rate=stats.acceptance_rate,
        block_efficiency=stats.block_efficiency or 1.0,
        draft_ms=1e3 * stats.draft_seconds / stats.draft_steps if stats.draft_steps else None,
        verify_ms=1e3 * stats.verify_seconds / stats.rounds,
        tokens_per_second=tokens / seconds,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        equal_outputs=sum(same) if params.greedy else 0,
        outputs=len(same) if params.greedy else 0,
        accepted_lengths=dict(sorted(stats.accepted_lengths.items())),
        gammas=dict(sorted(stats.gammas.items())),
        domains=domains,
    )


def _speedup(plain: Sequence[_Sample], ours: Sequence[_Sample]) -> tuple[float, float, float]:
    """Return the ratio of seconds per token, and its interval by resampling prompts."""
    # Sampled outputs differ in length between the arms, so it is seconds per token that are compared.
    table = np.array(
        [
            (a.seconds, len(a.output.token_ids), b.seconds, len(b.output.token_ids))
            for a, b in zip(plain, ours, strict=True)
        ]
    )  # [prompts, 4]
    chosen = np.random.default_rng(0).integers(0, len(table), (RESAMPLES, len(table)))

    def ratio(sums: Any) -> Any:  # [..., 4] to [...]
        return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])

    low, high = np.quantile(ratio(table[chosen].sum(1)), [0.025, 0.975])
    return float(ratio(table.sum(0))), float(low), float(high)
