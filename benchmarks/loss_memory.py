"""Peak memory and time of a loss, forward and backward: in chunks of tokens against all logits at once.

    OMP_NUM_THREADS=1 python benchmarks/loss_memory.py --loss kl --chunk_tokens 128

Each arm runs in a process of its own; its peak is the largest resident size of that process less the size
when only the inputs were there. All logits at once do not fit for many tokens: `dense_tokens` says how many
do, and times are compared on as many. They are the least of the repeats, of the thread's own processor
time, so that other work does not enter.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
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
    chunk_tokens: int = 128
    """Tokens whose logits exist at the same time in the chunked arms."""
    temperature: float = 1.0
    """Divides the logits of both."""
    repeats: int = 2
    """Of the arms whose times are compared."""
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
    seconds: float  # of a forward and backward, the least of the repeats
    loss: float  # a token


def run(config: LossBenchmark) -> dict[str, Arm]:
    """Measure the arms one after the other; print a line for each, and the ratio of the times."""
    few = config.dense_tokens
    arms = {
        "chunked": _alone(config, config.tokens, 1, dense=False),
        "dense_few": _alone(config, few, config.repeats, dense=True),
        "chunked_few": _alone(config, few, config.repeats, dense=False),
    }
    for name, arm in arms.items():
        print(
            f"{name}: {arm.tokens} tokens, peak {arm.peak_gb:.3f} GB above {arm.inputs_gb:.3f} GB of "
            f"inputs, {arm.seconds:.2f} s, loss {arm.loss:.6f}"
        )
    ratio = arms["chunked_few"].seconds / arms["dense_few"].seconds
    print(f"chunked takes {ratio:.3f} of dense's time on {few} tokens")
    return arms


def _alone(config: LossBenchmark, tokens: int, repeats: int, *, dense: bool) -> Arm:
    # From a server that has imported this file and done nothing: a fork would start at this process's size.
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        return pool.submit(measure, config, tokens, repeats, dense=dense).result()


def measure(config: LossBenchmark, tokens: int, repeats: int, *, dense: bool) -> Arm:
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
    inputs = [draft_hidden.requires_grad_(), weights[0].requires_grad_()]
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
    peak, seconds = 0.0, []
    for _ in range(repeats):
        begun = time.thread_time()
        loss = total() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        seconds.append(time.thread_time() - begun)
        peak = peak or peak_memory_gb(loss.device)  # the first pass's
        for tensor in inputs:
            tensor.grad = None
    size = sum(tensor.nbytes for tensor in (*weights, draft_hidden, target_hidden)) / 1e9
    return Arm(tokens, peak - before, size, min(seconds), loss.item())


def main() -> None:
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    config = jsonargparse.auto_cli(LossBenchmark, as_positional=False)
    arms = run(config)
    if config.out is not None:
        figures = {name: arm._asdict() for name, arm in arms.items()}
        write_json(Path(config.out), {"config": asdict(config), "arms": figures})


if __name__ == "__main__":
    main()
