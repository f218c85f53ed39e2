"""Decodes a block of prompts in every arm, in a new order each time, and returns what came of each."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from ..spec import RequestOutput, SamplingParams, first_difference
from ..spec.load_parts import draft_model
from ..spec.self_draft import SelfDrafter
from .bench_arms import BenchArm
from .bench_data import PLAIN, Sample, Setting
from .bench_law import token_ranks
from .bench_memory import cache_bytes, peak_bytes, reset_peak
from .bench_plan import Block

WARM_UP_TOKENS = 6


def warm_up(arms: Sequence[BenchArm], prompts: Sequence[list[int]]) -> None:
    """Let every arm decode a few tokens: kernels are chosen and buffers allocated before a clock runs."""
    for arm in arms:
        arm.decode(prompts, SamplingParams(temperature=0.0, max_tokens=WARM_UP_TOKENS))


def measure_block(
    arms: Sequence[BenchArm], block: Block, prompts: Sequence[list[int]], seed: int
) -> list[Sample]:
    """Return one sample an arm, in the arms' order.

    Args:
        arms: the first is plain decoding.
        prompts: tokens of the block's prompts, decoded at once.
        seed: of the order and of sampled outputs, which have the same seeds in all arms.
    """
    name = f"{seed}/{block}"
    own = random.Random(name)
    params = SamplingParams(
        temperature=block.temperature, max_tokens=block.max_tokens, seed=own.randrange(2**31)
    )
    outputs: dict[int, list[RequestOutput]] = {}
    seconds: dict[int, float] = {}
    peaks: dict[int, int] = {}
    for place in own.sample(range(len(arms)), len(arms)):
        arm = arms[place]
        reset_peak(arm.decoder.target.device)
        arm.log.begin()
        outputs[place] = arm.decode(prompts, params)
        seconds[place] = time.perf_counter() - arm.log.begun
        peaks[place] = peak_bytes(arm.decoder.target.device)
    return [
        _sample(arm, block, params, outputs[i], outputs[0], seconds[i], peaks[i], name)
        for i, arm in enumerate(arms)
    ]


def _sample(
    arm: BenchArm,
    block: Block,
    params: SamplingParams,
    outputs: Sequence[RequestOutput],
    plain: Sequence[RequestOutput],
    seconds: float,
    peak: int,
    name: str,
) -> Sample:
    target = arm.decoder.target
    equal = ties = None
    ranks: list[float] = []
    if params.greedy:
        equal = sum(a.token_ids == b.token_ids for a, b in zip(outputs, plain, strict=True))
        ties = 0 if arm.policy == PLAIN else _ties(target.model, outputs, plain)
    else:
        for row, output in enumerate(outputs):
            ranks += token_ranks(
                target.model,
                target.width,
                params,
                output.prompt_token_ids,
                output.token_ids,
                f"{name}/{arm.drafter}/{arm.policy}/{row}",
            )
    longest = max(len(output.prompt_token_ids) for output in outputs) + params.max_tokens
    shared = isinstance(arm.decoder.drafter, SelfDrafter) and block.rows == 1
    draft = None if shared else draft_model(arm.decoder.drafter)  # whose cache is its own
    return Sample(
        setting=Setting(
            condition=block.condition,
            drafter=arm.drafter,
            policy=arm.policy,
            domain=block.domain,
            prompt_tokens=block.prompt_tokens,
            max_tokens=block.max_tokens,
            rows=block.rows,
            temperature=block.temperature,
        ),
        index=block.index,
        repeat=block.repeat,
        prompt_lengths=[len(output.prompt_token_ids) for output in outputs],
        output_lengths=[len(output.token_ids) for output in outputs],
        seconds=seconds,
        decode_seconds=seconds - sum(output.stats.prefill_seconds for output in outputs),
        rounds=arm.log.rounds,
        equal=equal,
        ties=ties,
        ranks=ranks,
        cache_bytes=sum(
            cache_bytes(model, longest, block.rows)
            for model in (target.model, draft)
            if model is not None
        ),
        peak_bytes=peak,
    )


def _ties(model: Any, ours: Sequence[RequestOutput], plain: Sequence[RequestOutput]) -> int:
    """Return how many outputs differ from plain decoding's only where two logits are nearly equal."""
    found = [
        first_difference(model, a.prompt_token_ids, a.token_ids, b.token_ids)
        for a, b in zip(ours, plain, strict=True)
        if a.token_ids != b.token_ids
    ]
    return sum(difference is not None and difference.tie for difference in found)
