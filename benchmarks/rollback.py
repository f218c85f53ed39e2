"""Rolls back a thousand rounds at a fixed context: memory must stay flat, a round must cost the same.

    python benchmarks/rollback.py --rounds 1000 --context 4096

Each round drafts, verifies and keeps what is accepted; then everything is rolled back to where it began.
Times are of the thread's own processor time, so that other work on the machine does not enter.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft.spec import (
    CachedModel,
    FixedLookahead,
    GeneratorDraws,
    ModelDrafter,
    SamplingParams,
    TokenLaw,
    decode_round,
)

VOCABULARY = 160
WARM_UP = 100  # rounds before anything is measured


@dataclass(frozen=True)
class Flatness:
    """What the rounds did."""

    seconds: list[float]  # of each round
    object_growth: (
        int  # Python objects (tensors, lists, tuples, …) that another 100 rounds left behind
    )
    peak_growth: int  # bytes that the process's peak resident size grew after the warm-up
    buffers_moved: int  # key and value buffers whose address changed
    accepted: int

    @property
    def early(self) -> float:
        """Seconds of a round in the first hundred after the warm-up: the lower quartile."""
        return statistics.quantiles(self.seconds[WARM_UP : 2 * WARM_UP], n=4)[0]

    @property
    def late(self) -> float:
        """Seconds of a round in the last hundred, likewise."""
        return statistics.quantiles(self.seconds[-WARM_UP:], n=4)[0]


def measure(*, rounds: int, context: int, gamma: int) -> Flatness:
    """Run rounds of a tiny random Llama pair at one context length."""
    target = CachedModel(_model(seed=0, layers=2, context=context + gamma + 1), width=VOCABULARY)
    drafter = ModelDrafter(_model(seed=0, layers=1, context=context + gamma + 1), width=VOCABULARY)
    tokens = torch.arange(context).remainder(VOCABULARY - 1).tolist()
    target.start(tokens, context + gamma + 1)
    drafter.reset(context + gamma + 1)
    params = SamplingParams(temperature=1.0, seed=0)
    law = TokenLaw(params, tokens, width=VOCABULARY, eos_token_ids=[], device=target.device)
    draws, policy = GeneratorDraws(0), FixedLookahead(gamma)
    accepted = 0

    def run(count: int) -> list[float]:
        nonlocal accepted
        seconds = []
        for _ in range(count):
            begun = time.thread_time()
            outcome = decode_round(tokens, target, drafter, policy, law, draws, gamma_limit=gamma)[
                1
            ]
            target.roll_back(context - 1)
            drafter.roll_back(context - 1)
            seconds.append(time.thread_time() - begun)
            accepted += outcome.accepted
        return seconds

    seconds = run(WARM_UP)
    addresses, peak = _addresses(target, drafter), _peak_bytes()
    seconds += run(rounds - WARM_UP)
    peak_growth = _peak_bytes() - peak
    gc.collect()
    objects = len(gc.get_objects())
    run(WARM_UP)
    gc.collect()
    object_growth = len(gc.get_objects()) - objects
    moved = sum(a != b for a, b in zip(addresses, _addresses(target, drafter), strict=True))
    return Flatness(seconds, object_growth, peak_growth, moved, accepted)


def _model(*, seed: int, layers: int, context: int) -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def _addresses(target: CachedModel, drafter: ModelDrafter) -> list[int]:
    buffers = [*target.cache.buffers(), *drafter.cached.cache.buffers()]
    return [buffer.data_ptr() for buffer in buffers]


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--gamma", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    flat = measure(rounds=options.rounds, context=options.context, gamma=options.gamma)
    print(f"rounds                {len(flat.seconds)}")
    print(f"tokens rolled back    {len(flat.seconds) * (options.gamma + 1)} by the target")
    print(
        f"round, first hundred  {1000 * flat.early:.2f} ms (lower quartile, after {WARM_UP} to warm up)"
    )
    print(f"round, last hundred   {1000 * flat.late:.2f} ms, {flat.late / flat.early:.3f} of it")
    print(f"peak resident growth  {flat.peak_growth / 2**20:.2f} MiB")
    print(f"objects left behind   {flat.object_growth} by {WARM_UP} rounds more")
    print(f"buffers moved         {flat.buffers_moved}")


if __name__ == "__main__":
    main()
