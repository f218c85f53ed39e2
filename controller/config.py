"""Settings of the controller, one frozen dataclass per concern. Imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..data.config import check_integer as check_integer  # for all of this package


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveConfig:
    """How `AdaptiveLookahead` trades, probes and guards. The defaults need no tuning.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    half_life_rounds: float = 200.0
    """Rounds after which an observation of the throughput weighs half."""
    slowdown_tolerance: float = 0.0025
    """ε: speculation may take (1 + ε) times what plain decoding would have taken …"""
    slowdown_budget: float = 2.0
    """… and this many plain steps more …"""
    slowdown_credit: float = 2.0
    """… and as many as earlier rounds saved, but no more than this …"""
    slowdown_deviations: float = 2.5
    """… and what bad luck takes, up to this many of its standard deviations."""
    probe_share: float = 0.0075
    """Most of the time that probes may cost while γ = 0 is the best choice."""
    refresh_rounds: int = 256
    """Decode one token plainly after so many rounds without: keeps the plain time fresh."""

    def __post_init__(self) -> None:
        check_number("half_life_rounds", self.half_life_rounds, low=1.0)
        check_number("slowdown_tolerance", self.slowdown_tolerance, low=0.0)
        check_number("slowdown_budget", self.slowdown_budget, low=0.0)
        check_number("slowdown_credit", self.slowdown_credit, low=0.0)
        check_number("slowdown_deviations", self.slowdown_deviations, low=0.0)
        check_number("probe_share", self.probe_share, low=0.0, high=0.5)
        check_integer("refresh_rounds", self.refresh_rounds, low=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyConfig:
    """How the costs of a round are measured.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    context_length: int = 128
    """Tokens in the context while measuring."""
    contexts: tuple[int, ...] = (512, 1024)
    """Longer contexts at which the shortest and the longest round are measured, where both models reach."""
    context_repeats: int = 5
    """Rounds of each at each of them."""
    rows: tuple[int, ...] = ()
    """Batch sizes to measure; others are estimated from the curve of a single row."""
    repeats: int = 7
    """Rounds of each γ in a pass."""
    max_passes: int = 3
    """Passes are repeated up to this often while the machine seems contended."""
    quantile: float = 0.25
    """What is kept of the repeats: a low quantile, since other work only ever adds time."""
    max_spread: float = 1.3
    """Median over 10% quantile above which the machine counts as contended."""

    def __post_init__(self) -> None:
        check_integer("context_length", self.context_length, low=2)
        for context in self.contexts:
            check_integer("contexts", context, low=2)
        for rows in self.rows:
            check_integer("rows", rows, low=2)
        check_integer("context_repeats", self.context_repeats, low=1)
        check_integer("repeats", self.repeats, low=1)
        check_integer("max_passes", self.max_passes, low=1)
        check_number("quantile", self.quantile, low=0.0, high=1.0)
        check_number("max_spread", self.max_spread, low=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitConfig:
    """How the acceptance predictor is fitted.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    folds: int = 5
    """Folds of the out-of-fold estimate; all rows of a prompt lie in one fold."""
    inverse_regularization: float = 1.0
    """scikit-learn's C, on standardised features."""
    forecast_bins: int = 10
    """Bins of the forecast of what the next draft distribution will look like."""
    reliability_bins: int = 10
    """Bins of the reliability table."""
    family: str = "linear"
    """What judges a look: a "linear" logit, boosted "trees" or a small "net"."""

    def __post_init__(self) -> None:
        check_integer("folds", self.folds, low=2)
        check_number("inverse_regularization", self.inverse_regularization, low=1e-9)
        check_integer("forecast_bins", self.forecast_bins, low=1)
        check_integer("reliability_bins", self.reliability_bins, low=2)
        if self.family not in ("linear", "trees", "net"):
            raise ValueError(f"family must be linear, trees or net, got {self.family!r}")


def check_number(name: str, value: float, *, low: float, high: float = math.inf) -> None:
    """Raise ValueError unless `value` is a number in [low, high]."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}], got {value!r}")
