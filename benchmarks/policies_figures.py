"""From decodings to ratios between policies, each with an interval over prompts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from policies_cells import Measured, PromptCells

PLAIN, ADAPTIVE = "plain", "adaptive"
RESAMPLES = 2000
INTERVAL = "95 %, bootstrap over prompts, paired"


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one arm is than another on the same prompts."""

    value: float
    low: float | None  # of the interval; None with one prompt
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f}–{self.high:.3f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """One policy. Seconds are sums over prompts of the median over repeats."""

    name: str
    tokens: int
    seconds: float
    tokens_per_second: float
    block_efficiency: float  # tokens a round
    drafted_per_round: float
    acceptance_rate: float | None  # accepted / drafted
    speedup: Ratio  # over plain decoding
    equal: int | None  # outputs that are plain decoding's, token for token; None where it samples
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All policies on some prompts."""

    prompts: int
    arms: list[ArmFigures]
    best_fixed: str  # in hindsight on these prompts, plain decoding included
    adaptive_over: dict[
        str, Ratio
    ]  # the best fixed γ and every arm that is neither fixed nor plain
    interval: str = INTERVAL


def compared(
    prompts: Sequence[PromptCells], *, greedy: bool
) -> tuple[Comparison, dict[str, Comparison]]:
    """Return the figures of all prompts, and those of each domain."""
    domains: dict[str, list[PromptCells]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    parts = {name: _compared(own, greedy) for name, own in sorted(domains.items())}
    return _compared(prompts, greedy), parts


def _compared(prompts: Sequence[PromptCells], greedy: bool) -> Comparison:
    names = list(prompts[0].arms)
    # Sampled outputs differ in length between arms and repeats, so it is seconds per token that are compared.
    times = {
        name: np.array([_median_time(prompt.arms[name]) for prompt in prompts]) for name in names
    }  # [prompts, 2]: seconds, tokens
    fixed = [name for name in names if name == PLAIN or name.startswith("γ = ")]
    best = min(fixed, key=lambda name: float(_per_token(times[name])))
    others = [name for name in names if name not in fixed and name != ADAPTIVE]
    return Comparison(
        prompts=len(prompts),
        arms=[
            _figures(name, [p.arms[name] for p in prompts], times, greedy=greedy) for name in names
        ],
        best_fixed=best,
        adaptive_over={name: ratio(times[name], times[ADAPTIVE]) for name in (best, *others)},
    )


def _median_time(cells: Sequence[Measured]) -> tuple[float, float]:
    """Return a prompt's seconds and tokens."""
    seconds = statistics.median(cell.seconds for cell in cells)
    return seconds, statistics.median(cell.tokens for cell in cells)


def _figures(
    name: str,
    cells: Sequence[Sequence[Measured]],
    times: dict[str, npt.NDArray[np.float64]],
    *,
    greedy: bool,
) -> ArmFigures:
    flat = [cell for prompt in cells for cell in prompt]
    rounds, drafted = sum(cell.rounds for cell in flat), sum(cell.drafted for cell in flat)
    accepted = sum(cell.accepted for cell in flat)
    seconds, tokens = times[name].sum(0).tolist()
    return ArmFigures(
        name=name,
        tokens=int(tokens),
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        block_efficiency=(accepted + rounds) / rounds,
        drafted_per_round=drafted / rounds,
        acceptance_rate=accepted / drafted if drafted else None,
        speedup=ratio(times[PLAIN], times[name]),
        equal=sum(cell.equal for cell in flat) if greedy else None,
        outputs=len(flat),
    )


def ratio(base: npt.NDArray[np.float64], ours: npt.NDArray[np.float64]) -> Ratio:
    """Return the ratio of seconds per token, base over ours, and its interval by resampling prompts.

    Args:
        base, ours: [prompts, 2], seconds and tokens of the same prompts.
    """
    value = float(_per_token(base) / _per_token(ours))
    if len(base) < 2:
        return Ratio(value, None, None)
    chosen = np.random.default_rng(0).integers(0, len(base), (RESAMPLES, len(base)))
    drawn = _per_token(base[chosen]) / _per_token(ours[chosen])  # [RESAMPLES]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Ratio(value, float(low), float(high))


def _per_token(times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return seconds per token of [.., prompts, 2]."""
    sums: npt.NDArray[np.float64] = times.sum(-2)
    per_token: npt.NDArray[np.float64] = sums[..., 0] / sums[..., 1]
    return per_token


def print_tables(total: Comparison, domains: dict[str, Comparison], console: Console) -> None:
    """Print the policies on all prompts, then what adaptive gains in each domain."""
    table = Table("policy", "tok/s", "speedup", "τ", "drafted", "accepted", "equal", box=None)
    for arm in total.arms:
        rate = "–" if arm.acceptance_rate is None else f"{arm.acceptance_rate:.0%}"
        table.add_row(
            arm.name,
            f"{arm.tokens_per_second:.1f}",
            str(arm.speedup),
            f"{arm.block_efficiency:.2f}",
            f"{arm.drafted_per_round:.2f}",
            rate,
            "–" if arm.equal is None else f"{arm.equal}/{arm.outputs}",
        )
    console.print(table)
    versus = Table("adaptive over", "best fixed", "", box=None)
    for name in list(total.adaptive_over)[1:]:
        versus.add_column(name)
    for title, part in [("all", total), *domains.items()]:
        first, *others = part.adaptive_over.values()
        versus.add_row(title, part.best_fixed, str(first), *map(str, others))
    console.print(versus)
    console.print(f"intervals: {total.interval}")
