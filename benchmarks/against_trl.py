"""Our trainer against TRL's: supervised tokens a second, peak memory, and the loss at every step.

    OMP_NUM_THREADS=1 python benchmarks/against_trl.py

A random Llama and its first layers, the same rows, order, optimizer, rate and forward KL at temperature 1 for
all: our loop, TRL's GKDTrainer (all logits at once) and its DistillationTrainer (logits in chunks, computed
again in the backward; given the answers that it would generate). Everything is trained, embeddings and whole
head too, as TRL does. Arms run in turn, each in a process of its own. Needs TRL, which foredraft does not
depend on: `pip install trl==1.13.0`.
"""

from __future__ import annotations

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import jsonargparse
import torch

from against_trl_arms import ARMS, Job, Measured, Sizes
from foredraft.cli.machine import provenance
from foredraft.data.files import write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlBenchmark:
    """Train one draft with each trainer, in float32 on the CPU."""

    vocabulary: int = 32_768
    """V, of both models."""
    hidden: int = 256
    """Width of both."""
    layers: int = 8
    """Of the target."""
    draft_layers: int = 2
    """Of the draft: the target's first."""
    rows: int = 24
    """Rows of an epoch."""
    epochs: int = 2
    """Times that each row is visited; from the second on, our trainer remembers the target's states."""
    batch_rows: int = 8
    """Rows of a step."""
    prompt_tokens: int = 48
    """Of a row on average, without a loss."""
    answer_tokens: int = 96
    """Of a row on average, supervised."""
    chunk_tokens: int = 256
    """Of our loss; TRL's own is 256."""
    learning_rate: float = 1e-3
    """Peak of the rate, the same at every step for all."""
    repeats: int = 2
    """Processes of each arm, in turn."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Which to run: "foredraft", "gkd", "distillation"."""
    threads: int = 1
    """Of torch."""
    out: str | None = None
    """Where the figures go as JSON."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arms", tuple(self.arms))
        for name in (
            "hidden", "layers", "draft_layers", "rows", "epochs", "batch_rows", "prompt_tokens",
            "answer_tokens", "repeats", "threads",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if self.rows % self.batch_rows:
            raise ValueError(
                f"rows must be a multiple of batch_rows = {self.batch_rows}, got {self.rows}"
            )
        unknown = [arm for arm in self.arms if arm not in ARMS]
        if unknown or not self.arms:
            raise ValueError(f"arms must be some of {', '.join(ARMS)}, got {self.arms!r}")


def job_of(config: TrlBenchmark) -> Job:
    """Return what every arm is given."""
    sizes = Sizes(
        config.vocabulary, config.hidden, config.layers, config.draft_layers, config.rows,
        config.prompt_tokens, config.answer_tokens,
    )  # fmt: skip
    distil = {
        "steps": config.epochs * config.rows // config.batch_rows,
        "batch_rows": config.batch_rows,
        "chunk_tokens": config.chunk_tokens,
        "learning_rate": config.learning_rate,
    }
    return Job(sizes, distil)


@dataclass(frozen=True, slots=True)
class Arm:
    """What an arm took: medians over its processes of one epoch's tokens over its seconds."""

    name: str
    tokens_per_second: list[float]  # of each epoch, by processor time
    wall_tokens_per_second: list[float]  # of each epoch, by the clock
    peak_gb: float  # above target and rows, the most of its processes
    losses: list[float]


def run(config: TrlBenchmark) -> list[Arm]:
    """Run all arms; print a line for each, and how ours compares with the others."""
    if config.arms != ("foredraft",) and importlib.util.find_spec("trl") is None:
        raise ModuleNotFoundError("TRL is not installed; try `pip install trl==1.13.0`")
    found: dict[str, list[Measured]] = {name: [] for name in config.arms}
    for _ in range(config.repeats):
        for name in config.arms:
            found[name].append(_alone(name, config))
    arms = [_summary(name, some, config.epochs) for name, some in found.items()]
    for arm in arms:
        rates = ", ".join(f"{rate:.0f}" for rate in arm.tokens_per_second)
        walls = ", ".join(f"{rate:.0f}" for rate in arm.wall_tokens_per_second)
        print(
            f"{arm.name}: {rates} supervised tokens/s in each epoch ({walls} by the clock), "
            f"peak {arm.peak_gb:.3f} GB, loss {arm.losses[0]:.5f} to {arm.losses[-1]:.5f}"
        )
    for other in (arm for arm in arms[1:] if arms[0].name == "foredraft"):
        print(compare(arms[0], other))
    return arms


def compare(ours: Arm, other: Arm) -> str:
    """Return in words how much quicker and smaller ours is, and how far apart the losses are."""
    times = [
        mine / theirs
        for mine, theirs in zip(ours.tokens_per_second, other.tokens_per_second, strict=True)
    ]
    off = [abs(a - b) / abs(b) for a, b in zip(ours.losses, other.losses, strict=True)]
    return (
        f"against {other.name}: {', '.join(f'{ratio:.2f}×' for ratio in times)} its tokens/s in each "
        f"epoch, {ours.peak_gb / other.peak_gb:.2f} of its peak, losses at most {max(off):.1e} apart"
    )


def _alone(name: str, config: TrlBenchmark) -> Measured:
    # From a server that has imported this file and done nothing: a fork would start at this process's size.
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        return pool.submit(measure, name, config).result()


def measure(name: str, config: TrlBenchmark) -> Measured:
    """Run one arm in this process, which must be a fresh one for the peak to be the arm's."""
    torch.set_num_threads(config.threads)
    return ARMS[name](job_of(config))


def _summary(name: str, found: list[Measured], epochs: int) -> Arm:
    def rates(seconds: list[list[float]]) -> list[float]:
        """Return the median rate of each epoch."""
        steps = len(found[0].tokens) // epochs
        parts = [slice(epoch * steps, (epoch + 1) * steps) for epoch in range(epochs)]
        return [
            sum(found[0].tokens[part]) / median(sum(some[part]) for some in seconds)
            for part in parts
        ]

    return Arm(
        name,
        rates([one.seconds for one in found]),
        rates([one.wall_seconds for one in found]),
        max(one.peak_gb for one in found),
        found[0].losses,
    )


def main() -> None:
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    config = jsonargparse.auto_cli(TrlBenchmark, as_positional=False)
    arms = run(config)
    if config.out is not None:
        figures: dict[str, Any] = {
            "config": asdict(config),
            **provenance("cpu"),
            "arms": [asdict(arm) for arm in arms],
        }
        write_json(Path(config.out), figures)


if __name__ == "__main__":
    main()
