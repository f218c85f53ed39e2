"""The plots of a fit's report, one finding each; built inside `drawing_style`."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .fit_figures import DomainFigures, FitFigures, Regret, ShownRound
from .report_plots import legend_above, share_bars, speedup_axis
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
from .report_words import clean


def fit_plots(figures: FitFigures) -> dict[str, str]:
    """Return the plots as SVG elements by name."""
    with drawing_style():
        drawn = {
            "speeds": (speeds(figures), "speed by fixed γ, adaptive and oracle"),
            "reliability": (reliability(figures), "predicted and observed acceptance by depth"),
            "regret": (regret(figures.regret), "time lost to the oracle"),
            "domains": (domains(figures.domains), "speed by domain"),
            "rounds": (rounds(figures.rounds), "γ of each round of a text"),
            "gammas": (gammas(figures.gammas), "tokens drafted in a round"),
        }
        return {
            name: svg_element(figure, name, description)
            for name, (figure, description) in drawn.items()
        }


def speeds(figures: FitFigures) -> Figure:
    """Speed over plain decoding of every fixed γ, with lines for the adaptive lookahead and the oracle."""
    figure = new_figure(280)
    axes = figure.add_subplot()
    axes.plot(range(len(figures.fixed)), figures.fixed, color=NEUTRAL, marker="o", label="fixed γ")
    axes.axhline(figures.adaptive, color=ACCENT, label="adaptive")
    axes.axhline(figures.oracle, color=WARM, linestyle=(0, (4, 3)), label="oracle")
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.yaxis.set_major_formatter("{x:.2f}×")
    axes.set_xlabel("tokens drafted in each round (γ)")
    axes.set_ylabel("speed, plain decoding = 1")
    legend_above(axes)
    return figure


def reliability(figures: FitFigures) -> Figure:
    """Observed against predicted acceptance, a panel for each depth; larger points are more tokens."""
    depths = figures.reliability
    rows = (len(depths) + 1) // 2
    figure = new_figure(40 + 170 * rows)
    panels = list(figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).flat)
    for axes, (depth, bins) in zip(panels, depths.items(), strict=False):
        most = max(item.count for item in bins)
        axes.plot([0, 1], [0, 1], color=MUTED, linestyle=(0, (4, 3)), linewidth=1.2)
        axes.scatter(
            [item.predicted for item in bins],
            [item.observed for item in bins],
            s=[8 + 60 * item.count / most for item in bins],
            color=ACCENT, edgecolor=PAPER, zorder=3,
        )  # fmt: skip
        axes.set_title(f"depth {depth}", color=INK)
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.02, 1.02)
    for axes in panels[len(depths) :]:
        axes.set_visible(False)
    figure.supxlabel("predicted chance of acceptance", color=MUTED, fontsize=12)
    figure.supylabel("share accepted", color=MUTED, fontsize=12)
    return figure


def regret(regret: Regret) -> Figure:
    """Plain steps lost to the oracle as tokens go by."""
    figure = new_figure(230)
    axes = figure.add_subplot()
    tokens = [0, *regret.tokens]
    axes.plot(tokens, [0.0, *regret.best_fixed], color=NEUTRAL, label="best fixed γ")
    axes.plot(tokens, [0.0, *regret.adaptive], color=ACCENT, label="adaptive")
    axes.set_ylim(0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("tokens decoded, text after text")
    axes.set_ylabel("plain steps lost to the oracle")
    legend_above(axes)
    return figure


def domains(found: Sequence[DomainFigures]) -> Figure:
    """Speed by domain: adaptive, the domain's best fixed γ, and the oracle."""
    figure = new_figure(96 + 32 * len(found))
    axes = figure.add_subplot()
    for name, marker, colour, values in (
        ("best fixed γ of the domain", "s", NEUTRAL, [one.best_fixed for one in found]),
        ("adaptive", "o", ACCENT, [one.adaptive for one in found]),
        ("oracle", "D", WARM, [one.oracle for one in found]),
    ):
        places = range(len(found))
        axes.plot(values, places, color=colour, marker=marker, linestyle="none", label=name)
    speedup_axis(axes, [clean(one.name, 14) for one in found])
    legend_above(axes)
    return figure


def rounds(shown: Sequence[ShownRound]) -> Figure:
    """The γ of each round over a text: what was accepted, and what was drafted in vain."""
    figure = new_figure(210)
    axes = figure.add_subplot()
    places = [one.position for one in shown]
    accepted = [one.accepted for one in shown]
    rejected = [one.drafted - one.accepted for one in shown]
    axes.bar(places, accepted, width=0.8, align="edge", color=ACCENT, label="accepted")
    axes.bar(
        places, rejected, width=0.8, align="edge", bottom=accepted, color=WARM, label="rejected"
    )
    axes.grid(visible=False, axis="x")
    axes.set_ylim(0, max(1, *(one.drafted for one in shown)) + 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("token at which the round began")
    axes.set_ylabel("tokens drafted")
    axes.axhline(0, color=GRID)
    legend_above(axes)
    return figure


def gammas(found: dict[int, int]) -> Figure:
    """Share of rounds by tokens drafted."""
    figure = new_figure(210)
    axes = figure.add_subplot()
    share_bars(axes, found, ACCENT)
    axes.set_xlabel("tokens drafted in a round (γ); 0 is a plain step")
    return figure
