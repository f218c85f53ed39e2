"""The plots of the report, one finding each; built inside `drawing_style`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .report_data import Arm, Comparison, Latency, Predictor, Report, Training
from .report_svg import (
    ACCENT,
    GRID,
    INK,
    MUTED,
    NEUTRAL,
    PAPER,
    WARM,
    drawing_style,
    new_figure,
    svg_element,
)
from .report_words import clean, domains_of, drafting_arms, share

# Shape -> the size at which all look equally large.
_MARKERS = {"o": 8.5, "s": 8, "D": 7.5, "^": 10, "v": 10, "P": 9, "X": 9}


def plot_elements(report: Report) -> dict[str, str]:
    """Return the plots that the report has the figures for, as SVG elements by name."""
    drawn: dict[str, tuple[Figure, str]] = {}
    with drawing_style():
        if report.training is not None and _alpha_points(report.training):
            drawn["acceptance"] = acceptance(report.training), "α over training"
        if report.training is not None and _has_divergence(report.training):
            drawn["divergence"] = divergence(report.training), "loss over training"
        if report.latency is not None and report.latency.verify_ms:
            drawn["latency"] = latency(report.latency), "latency by tokens verified"
        if report.predictor is not None and report.predictor.reliability:
            drawn["reliability"] = reliability(report.predictor), "predicted and observed"
        if report.comparison is not None:
            drawn |= _comparison_figures(report.comparison)
        return {
            name: svg_element(figure, name, description)
            for name, (figure, description) in drawn.items()
        }


def _comparison_figures(comparison: Comparison) -> dict[str, tuple[Figure, str]]:
    found: dict[str, tuple[Figure, str]] = {}
    arms = drafting_arms(comparison)
    if arms:
        found["speedups"] = speedups(arms), "speedup of every arm"
    if arms and domains_of(comparison):
        found["domains"] = domain_speedups(arms, domains_of(comparison)), "speedup by domain"
    if with_lengths := [arm for arm in arms if arm.accepted_lengths]:
        found["lengths"] = accepted_lengths(with_lengths), "accepted lengths of every arm"
    if adaptive := [arm for arm in arms if arm.gamma == "adaptive" and arm.gammas]:
        found["gammas"] = chosen_gammas(adaptive), "tokens drafted in a round"
    return found


def _alpha_points(training: Training) -> list[tuple[int, float]]:
    return [(point.step, point.alpha) for point in training.curve if point.alpha is not None]


def _has_divergence(training: Training) -> bool:
    return any(point.loss is not None or point.kl is not None for point in training.curve)


def acceptance(training: Training) -> Figure:
    """α over the steps, with the value before training and, if known, the one in the loop."""
    figure = new_figure(270)
    axes = figure.add_subplot()
    steps, alphas = zip(*_alpha_points(training), strict=True)
    axes.plot(steps, alphas, color=ACCENT, marker="o", markersize=4.5, zorder=3, label="α")
    top1 = [(point.step, point.top1) for point in training.curve if point.top1 is not None]
    if top1:
        axes.plot(*zip(*top1, strict=True), color=NEUTRAL, linewidth=1.4, label="same top token")
    before = training.before.alpha
    axes.axhline(before, color=WARM, linestyle=(0, (4, 3)), linewidth=1.4)
    loop = training.alpha_loop
    if loop is not None:
        best = max(_alpha_points(training), key=lambda point: point[1])[0]
        errors = [[max(loop.alpha - loop.low, 0)], [max(loop.high - loop.alpha, 0)]]
        axes.errorbar(
            [best], [loop.alpha], yerr=errors, color=INK, marker="D", markersize=5,
            linestyle="none", capsize=4, linewidth=1.4, label="α in the decode loop", zorder=5,
        )  # fmt: skip
    axes.set_ylim(0, min(1.0, 1.15 * max([*alphas, before, *(value for _, value in top1)])))
    axes.annotate(
        f"before training {share(before)}", (1, before), xytext=(0, 4), ha="right", color=WARM,
        xycoords=axes.get_yaxis_transform(), textcoords="offset points",
    )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("optimizer step")
    legend_above(axes)
    return figure


def divergence(training: Training) -> Figure:
    """The loss in training and KL on held-out text over the steps."""
    figure = new_figure(170)
    axes = figure.add_subplot()
    losses = [(point.step, point.loss) for point in training.curve if point.loss is not None]
    held_out = [(point.step, point.kl) for point in training.curve if point.kl is not None]
    if losses:
        axes.plot(*zip(*losses, strict=True), color=NEUTRAL, linewidth=1.4, label="training loss")
    if held_out:
        steps, values = zip(*held_out, strict=True)
        axes.plot(steps, values, color=ACCENT, marker="o", markersize=4.5, label="KL, held out")
    axes.set_ylim(0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("nats")
    legend_above(axes)
    return figure


def latency(latency: Latency) -> Figure:
    """Milliseconds of a verify forward by its tokens, of a whole round, and of a draft step."""
    figure = new_figure(320)
    axes = figure.add_subplot()
    verify = latency.verify_ms
    tokens = range(1, len(verify) + 1)
    rounds = [
        (n - 1) * latency.draft_step_ms + ms + latency.overhead_ms
        for n, ms in zip(tokens, verify, strict=True)
    ]
    axes.plot(tokens, rounds, color=NEUTRAL, linewidth=1.4, label="whole round")
    axes.plot(tokens, verify, color=ACCENT, marker="o", markersize=5, label="verify forward")
    axes.axhline(latency.draft_step_ms, color=WARM, linewidth=1.6, label="one draft step")
    axes.set_ylim(0, 1.08 * max(rounds))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.set_xlabel("tokens in the target's forward (γ + 1)")
    axes.set_ylabel("ms")
    legend_above(axes)
    return figure


def reliability(predictor: Predictor) -> Figure:
    """Observed against predicted acceptance, over the number of tokens behind each point."""
    figure = new_figure(330)
    axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    bins = sorted(predictor.reliability, key=lambda item: item.predicted)
    predicted = [item.predicted for item in bins]
    axes.plot([0, 1], [0, 1], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.text(0.03, 0.97, "above the diagonal:\nbetter than predicted", color=MUTED, va="top")
    axes.plot(predicted, [item.observed for item in bins], color=ACCENT, marker="o")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share accepted")
    counts.bar(predicted, [item.count for item in bins], width=_bar_width(predicted), color=NEUTRAL)
    counts.set_ylabel("tokens")
    counts.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    counts.yaxis.set_major_formatter("{x:,.0f}")
    counts.set_xlim(0, 1)
    counts.set_xlabel("predicted chance of acceptance")
    return figure


def _bar_width(centres: Sequence[float]) -> float:
    gaps = [right - left for left, right in pairwise(centres) if right > left]
    return 0.8 * min([0.06, *gaps])


def speedups(arms: Sequence[Arm]) -> Figure:
    """Speedup over plain decoding of every arm, with its interval."""
    figure = new_figure(64 + 44 * len(arms))
    axes = figure.add_subplot()
    for place, arm in enumerate(arms):
        _interval(axes, place, arm, arm.speedup, arm.speedup_low, arm.speedup_high, "o")
        axes.annotate(
            f"{arm.speedup:.2f}×", (arm.speedup, place), xytext=(0, 8), textcoords="offset points",
            ha="center", color=INK, fontweight="bold" if arm.gamma == "adaptive" else "normal",
        )  # fmt: skip
    speedup_axis(axes, [_name(arm.name) for arm in arms])
    return figure


def domain_speedups(arms: Sequence[Arm], domains: Sequence[str]) -> Figure:
    """Speedup of every arm on every domain; arms differ in marker, adaptive ones in colour."""
    spread = 0.62
    figure = new_figure(96 + len(domains) * (10 + 7 * len(arms)))
    axes = figure.add_subplot()
    for order, arm in enumerate(arms):
        offset = spread * ((order + 0.5) / len(arms) - 0.5)
        marker = list(_MARKERS)[order % len(_MARKERS)]
        for place, domain in enumerate(domains):
            if domain in arm.domains:
                one = arm.domains[domain]
                low = one.speedup if one.speedup_low is None else one.speedup_low
                high = one.speedup if one.speedup_high is None else one.speedup_high
                _interval(axes, place + offset, arm, one.speedup, low, high, marker)
        axes.plot(
            [], [], color=_colour(arm), marker=marker, linestyle="none", label=_name(arm.name)
        )
    for edge in range(1, len(domains)):
        axes.axhline(edge - 0.5, color=GRID, linewidth=0.8)
    speedup_axis(axes, [_name(domain) for domain in domains])
    legend_above(axes)
    return figure


def _interval(
    axes: Any, place: float, arm: Arm, value: float, low: float, high: float, marker: str
) -> None:
    axes.plot([low, high], [place, place], color=_colour(arm), linewidth=2.4, alpha=0.5)
    axes.plot(
        value, place, color=_colour(arm), marker=marker, markersize=_MARKERS[marker],
        markeredgecolor=PAPER, markeredgewidth=1, zorder=3,
    )  # fmt: skip


def speedup_axis(axes: Any, names: Sequence[str]) -> None:
    axes.axvline(1, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.1)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:.2f}×")
    axes.set_xlabel("speed, plain decoding = 1")


def _colour(arm: Arm) -> str:
    return ACCENT if arm.gamma == "adaptive" else NEUTRAL


def accepted_lengths(arms: Sequence[Arm]) -> Figure:
    """Share of rounds by how many drafted tokens were accepted, one panel an arm, one scale."""
    rows = (len(arms) + 1) // 2
    figure = new_figure(56 + 140 * rows)
    panels = list(figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).flat)
    longest = max(length for arm in arms for length in arm.accepted_lengths)
    for axes, arm in zip(panels, arms, strict=False):
        share_bars(axes, arm.accepted_lengths, _colour(arm))
        axes.set_title(_name(arm.name), color=INK)
        axes.set_xlim(-0.6, longest + 0.6)
    for axes in panels[len(arms) :]:
        axes.set_visible(False)
    figure.supxlabel("drafted tokens accepted in a round", color=MUTED, fontsize=12)
    return figure


def chosen_gammas(arms: Sequence[Arm]) -> Figure:
    """Share of rounds by how many tokens an adaptive arm drafted."""
    figure = new_figure(40 + 200 * len(arms))
    for axes, arm in zip(figure.subplots(len(arms), 1, squeeze=False).flat, arms, strict=True):
        share_bars(axes, arm.gammas, ACCENT)
        if len(arms) > 1:
            axes.set_title(_name(arm.name), color=INK)
        axes.set_xlabel("tokens drafted in a round (γ); 0 is a plain step")
    return figure


def share_bars(axes: Any, rounds: dict[int, int], colour: str) -> None:
    total = sum(rounds.values()) or 1
    lengths = sorted(rounds)
    shares = [rounds[length] / total for length in lengths]
    bars = axes.bar(lengths, shares, width=0.72, color=colour)
    labels = [f"{100 * value:.0f}" if value >= 0.01 else "<1" for value in shares]
    axes.bar_label(bars, labels, padding=2, color=INK, fontsize=11)
    axes.margins(y=0.16)
    axes.grid(visible=False, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _name(name: str) -> str:
    return clean(name, 14)  # a longer one would leave no room for the plot


def legend_above(axes: Any) -> None:
    labels = axes.get_legend_handles_labels()[1]
    widths = [4 + len(label) for label in labels]  # in characters; a row has room for 54
    in_a_row = len(widths) if sum(widths) <= 54 else max(1, 44 // max(widths))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, ncols=in_a_row,
        handlelength=1.4, columnspacing=1.3, handletextpad=0.5,
    )  # fmt: skip
