"""Peak memory and time of a loss, forward and backward: in chunks of tokens against all logits at once.

    OMP_NUM_THREADS=1 python benchmarks/loss_memory.py --loss kl --chunk_tokens 256

Each arm runs in a process of its own; its peak is the largest resident size of that process less the size
when only the inputs were there. All logits at once do not fit for many tokens: `dense_tokens` says how many
do, and times are compared on as many, in turn. They are medians of the repeats, of the thread's own
processor time, so that other work enters little.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import jsonargparse
import psutil
import torch

from foredraft.data.files import write_json
from foredraft.train import DistillConfig
from foredraft.train.divergences import loss_for
from foredraft.train.heads import LogitHead
from foredraft.train.losses import chunked_divergence, dense_divergence
from foredraft.train.tracking import peak_memory_gb


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBenchmark:
    """Measure one loss on random states and heads, in float32 on the CPU."""

    loss: str = "kl"
    """As in training."""
    tokens: int = 4096
    """Supervised tokens of the chunked arm."""
    dense_tokens: int = 512
    """Tokens of the dense arm, and of a second chunked one that its time is compared with."""
    vocabulary: int = 128_256
    """Rows of both heads."""
    hidden: int = 1024
    """Width of both states."""
    chunk_tokens: int = 256
    """Tokens whose logits exist at the same time in the chunked arms."""
    temperature: float = 1.0
    """Divides the logits of both."""
    repeats: int = 3
    """Of the arms whose times are compared, each in a process of its own."""
    threads: int = 1
    """Of torch; the time is that of the first thread alone."""
    out: str | None = None
    """Where the figures go as JSON."""

    def __post_init__(self) -> None:
        for name in (
            "tokens", "dense_tokens", "vocabulary", "hidden", "chunk_tokens", "repeats", "threads",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        self._of_training()

    def _of_training(self) -> DistillConfig:
        """Return the run that would use this loss."""
        return DistillConfig(
            target="none", corpus="none", loss=self.loss, chunk_tokens=self.chunk_tokens,
            temperature=self.temperature,
        )  # fmt: skip


class Arm(NamedTuple):
    """What one process measured."""

    tokens: int
    peak_gb: float  # above the inputs
    inputs_gb: float  # states and heads
    seconds: float  # of processor time, user and system, for a forward and backward
    wall_seconds: float
    loss: float  # a token


def run(config: LossBenchmark) -> dict[str, list[Arm]]:
    """Measure the arms, dense and chunked in turn; print a line for each, and the ratio of their times."""
    arms: dict[str, list[Arm]] = {"chunked": [], "dense_few": [], "chunked_few": []}
    arms["chunked"].append(_alone(config, config.tokens, dense=False))
    for _ in range(config.repeats):
        arms["dense_few"].append(_alone(config, config.dense_tokens, dense=True))
        arms["chunked_few"].append(_alone(config, config.dense_tokens, dense=False))
    for name, found in arms.items():
        print(
            f"{name}: {found[0].tokens} tokens, peak {max(arm.peak_gb for arm in found):.3f} GB above "
            f"{found[0].inputs_gb:.3f} GB of inputs, {median(arm.seconds for arm in found):.2f} s "
            f"({median(arm.wall_seconds for arm in found):.2f} s by the clock), "
            f"loss {found[0].loss:.6f}"
        )
    ratios = [
        few.seconds / dense.seconds
        for few, dense in zip(arms["chunked_few"], arms["dense_few"], strict=True)
    ]
    print(
        f"chunked takes {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of dense's time "
        f"on {config.dense_tokens} tokens"
    )
    return arms


def _alone(config: LossBenchmark, tokens: int, *, dense: bool) -> Arm:
    # From a server that has imported this file and done nothing: a fork would start at this process's size.
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        return pool.submit(measure, config, tokens, dense=dense).result()


def measure(config: LossBenchmark, tokens: int, *, dense: bool) -> Arm:
    """Measure one arm in this process, which must be a fresh one for the peak to be the arm's."""
    torch.set_num_threads(config.threads)
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(config.vocabulary, config.hidden, generator=generator) for _ in range(2)
    ]  # [V, d]
    draft_hidden, target_hidden = (
        torch.randn(tokens, config.hidden, generator=generator).mul_(config.hidden**-0.5)
        for _ in range(2)
    )  # [N, d]
    draft_hidden.requires_grad_()
    weights[0].requires_grad_()
    heads = [LogitHead(weight, None, None) for weight in weights]
    divergence = loss_for(config._of_training()).divergence

    def total() -> torch.Tensor:
        states = (draft_hidden, heads[0], target_hidden, heads[1], divergence)
        if dense:
            return dense_divergence(*states, temperature=config.temperature)
        return chunked_divergence(
            *states, temperature=config.temperature, chunk_tokens=config.chunk_tokens
        )

    before = psutil.Process().memory_info().rss / 1e9
    clock, begun = time.perf_counter(), time.thread_time()
    loss = total() / tokens
    loss.backward()  # type: ignore[no-untyped-call]
    seconds, wall = time.thread_time() - begun, time.perf_counter() - clock
    peak = peak_memory_gb(loss.device)
    size = sum(tensor.nbytes for tensor in (*weights, draft_hidden, target_hidden)) / 1e9
    return Arm(tokens, peak - before, size, seconds, wall, loss.item())


def main() -> None:
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    config = jsonargparse.auto_cli(LossBenchmark, as_positional=False)
    arms = run(config)
    if config.out is not None:
        figures = {name: [arm._asdict() for arm in found] for name, found in arms.items()}
        write_json(Path(config.out), {"config": asdict(config), "arms": figures})


if __name__ == "__main__":
    main()
