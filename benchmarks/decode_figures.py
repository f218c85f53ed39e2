"""Figures of the decode benchmark: ratios of one run with their spread, and the tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One prompt decoded once by one arm."""

    tokens: list[int]  # all that were generated
    rounds: int
    first_tokens: int  # of the first round
    first_seconds: float  # from the call to the end of the first round: the prompt is read in it
    seconds: float  # of the whole call

    @property
    def decode_tokens(self) -> int:
        """Tokens after the first round."""
        return max(0, len(self.tokens) - self.first_tokens)

    @property
    def decode_seconds(self) -> float:
        """Seconds after the first round: no prompt is read in them, in any arm."""
        return self.seconds - self.first_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Tokens per second against another arm's of the same run, paired within each repeat."""

    over: str
    ratio: float  # median over the repeats
    worst: float  # of the repeats
    best: float
    low: float  # 95 %, bootstrap over prompts, paired; each prompt's median time
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """What there is to say of an arm."""

    name: str
    about: str
    target_layers: dict[str, int] | None = None  # linear layers on each kernel, see layer_kernels
    draft_layers: dict[str, int] | None = None  # None: no draft runs
    tokens_per_second: float | None  # after the first round; each prompt's median time
    call_tokens_per_second: float  # of whole calls, the prompt's reading included
    first_round_ms: float  # median over prompts
    tokens: int
    rounds: int
    block_efficiency: float  # tokens a target forward
    equal_outputs: int | None  # prompts whose tokens are generate's in every repeat; greedy only
    outputs: int
    ratios: list[Ratio]  # none where greedy outputs differ
    outside_share: float | None = None  # of a round, in neither forward
    draft_share: float | None = None
    target_share: float | None = None
    host_reads_per_round: float | None = None
    peak_bytes: int | None = None  # weights in use and all that lived besides
    bound_bytes: int | None = None  # those weights and a full cache for each model


def arm_figures(
    name: str,
    about: str,
    runs: Sequence[Sequence[Run]],
    reference: Sequence[Sequence[Run]] | None,
) -> ArmFigures:
    """Return an arm's own figures.

    Args:
        runs: of each prompt, of each repeat.
        reference: the runs of transformers' `generate`; None: outputs are not to be compared.
    """
    first = [repeats[0] for repeats in runs]
    seconds, decoded = _median(_table(runs)).sum(0)
    rounds = sum(run.rounds for run in first)
    equal = None
    if reference is not None:
        equal = sum(
            all(run.tokens == theirs[0].tokens for run in mine)
            for mine, theirs in zip(runs, reference, strict=True)
        )
    whole = [statistics.median(run.seconds for run in repeats) for repeats in runs]
    tokens = sum(len(run.tokens) for run in first)
    firsts = [statistics.median(run.first_seconds for run in repeats) for repeats in runs]
    return ArmFigures(
        name=name,
        about=about,
        tokens_per_second=float(decoded / seconds) if decoded else None,
        call_tokens_per_second=tokens / sum(whole),
        first_round_ms=1e3 * statistics.median(firsts),
        tokens=tokens,
        rounds=rounds,
        block_efficiency=tokens / rounds,
        equal_outputs=equal,
        outputs=len(runs),
        ratios=[],
    )


def ratio_of(
    over: str, base: Sequence[Sequence[Run]], ours: Sequence[Sequence[Run]]
) -> Ratio | None:
    """Return how many times the base's tokens a second `ours` gives; None where none were timed.

    Prompts are paired and weigh as much as their time; seconds per token are compared, as sampled
    outputs differ in length.
    """
    a, b = _table(base), _table(ours)  # [prompts, repeats, 2]
    if not a[..., 1].sum() or not b[..., 1].sum():
        return None
    each = _rate(b.sum(0)) / _rate(a.sum(0))  # [repeats]
    medians = np.concatenate([_median(a), _median(b)], axis=-1)  # [prompts, 4]
    chosen = np.random.default_rng(0).integers(0, len(a), (RESAMPLES, len(a)))
    sums = medians[chosen].sum(1)  # [resamples, 4]
    usable = (sums[:, 1] > 0) & (sums[:, 3] > 0)
    low, high = np.quantile(_rate(sums[usable][:, 2:]) / _rate(sums[usable][:, :2]), [0.025, 0.975])
    return Ratio(
        over=over,
        ratio=float(np.median(each)),
        worst=float(each.min()),
        best=float(each.max()),
        low=float(low),
        high=float(high),
    )


def _table(runs: Sequence[Sequence[Run]]) -> np.ndarray:
    """Return [prompts, repeats, 2]: seconds and tokens after the first round."""
    return np.array(
        [[(run.decode_seconds, run.decode_tokens) for run in repeats] for repeats in runs]
    )


def _median(table: np.ndarray) -> np.ndarray:
    """Return [prompts, 2]: the median time of a prompt, and its tokens."""
    return np.stack([np.median(table[..., 0], axis=1), table[..., 1].mean(1)], axis=-1)


def _rate(sums: np.ndarray) -> np.ndarray:
    """Return tokens a second of [.., (seconds, tokens)]."""
    rate: np.ndarray = sums[..., 1] / sums[..., 0]
    return rate


def print_table(arms: Sequence[ArmFigures], console: Console) -> None:
    """Print the arms, a line each, their ratios, and what the columns mean."""
    _print_arms(arms, console)
    _print_ratios(arms, console)
    for arm in arms:
        console.print(Text(f"{arm.name}: {arm.about}; {_kernels(arm)}", style="dim"))


def _print_arms(arms: Sequence[ArmFigures], console: Console) -> None:
    titles = (
        "tokens/s", "τ", "outside\nforwards", "reads /\nround", "first\nround ms", "memory /\nbound",
        "equal",
    )  # fmt: skip
    table = _table_of("arm", "layers", numbers=titles)
    for arm in arms:
        table.add_row(arm.name, _layers(arm), *_cells(arm))
    console.print(table)
    for line in (
        "layers: linear layers of target + draft; plain: as transformers loads them, packed: as ours does.",
        "tokens/s: after the first round, so that no prompt is read in it. τ: tokens a target forward.",
        "outside forwards: share of a round's time that is in neither model. memory / bound: the weights",
        "in use and all tensors that lived, over those weights and a full cache for each model; packed",
        "copies of weights are in neither. equal: prompts with the tokens of generate in every repeat.",
    ):
        console.print(Text(line, style="dim"))


def _print_ratios(arms: Sequence[ArmFigures], console: Console) -> None:
    layers = {arm.name: _layers(arm) for arm in arms}
    titles = ("ratio", "worst–best\nof repeats", "95 %\nover prompts")
    table = _table_of("tokens/s of", "layers", "over those of", "layers", numbers=titles)
    for arm in arms:
        for ratio in arm.ratios:
            table.add_row(
                arm.name, layers[arm.name], ratio.over, layers[ratio.over],
                f"{ratio.ratio:.2f}", f"{ratio.worst:.2f}–{ratio.best:.2f}",
                f"{ratio.low:.2f}–{ratio.high:.2f}",
            )  # fmt: skip
    console.print(table)
    for line in (
        "ratio: median of the repeats, each paired within itself; 95 %: bootstrap over prompts, paired.",
        "Over plain layers: what a user of transformers gains. Over packed ones: what the loop alone gains.",
    ):
        console.print(Text(line, style="dim"))


def _table_of(*texts: str, numbers: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in texts:
        table.add_column(title, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right")
    return table


def _layers(arm: ArmFigures) -> str:
    """Return "plain" or "packed" for the target, and for the draft where one runs."""
    models = [kernels for kernels in (arm.target_layers, arm.draft_layers) if kernels is not None]
    return " + ".join("plain" if kernels.keys() <= {"plain"} else "packed" for kernels in models)


def _kernels(arm: ArmFigures) -> str:
    """Return which kernels the linear layers of each model run on, in words."""
    models = (("target", arm.target_layers), ("draft", arm.draft_layers))
    return "; ".join(
        f"{name}'s linear layers: "
        + ", ".join(f"{count} {kernel}" for kernel, count in kernels.items())
        for name, kernels in models
        if kernels is not None
    )


def _cells(arm: ArmFigures) -> list[str]:
    return [
        _number(arm.tokens_per_second, "{:.1f}"),
        f"{arm.block_efficiency:.2f}",
        _number(arm.outside_share, "{:.1%}"),
        _number(arm.host_reads_per_round, "{:.1f}"),
        f"{arm.first_round_ms:.0f}",
        "–" if not arm.bound_bytes else f"{(arm.peak_bytes or 0) / arm.bound_bytes:.2f}",
        "–" if arm.equal_outputs is None else f"{arm.equal_outputs}/{arm.outputs}",
    ]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
