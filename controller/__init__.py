"""Lookahead: an acceptance predictor, a latency model, and the policy that sets γ by them.

What needs torch is imported on first use, so that a command can read its settings quickly. Only
fitting needs scikit-learn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .config import AdaptiveConfig, FitConfig, LatencyConfig
from .economics import RoundCosts, best_fixed_gamma, best_gamma, expected_tokens, objective

if TYPE_CHECKING:
    from .adaptive import AdaptiveLookahead
    from .bandit import GammaBandit
    from .calibration import ReliabilityBin, SurvivalRow
    from .chain_lookahead import ChainLookahead
    from .choosing import Choice, choose_predictor
    from .dense_rows import fit_predictor_from_dense
    from .fallback import load_or_bandit
    from .fitting import FitReport, fit_predictor
    from .latency import LatencyTable, MachineFingerprint
    from .lookup_lookahead import LookupLookahead
    from .measuring import measure_latency
    from .peers import ConfidenceThreshold, EntropyBound, HeuristicSchedule, SurvivalThreshold
    from .predictor import AcceptancePredictor

__all__ = [
    "AcceptancePredictor",
    "AdaptiveConfig",
    "AdaptiveLookahead",
    "ChainLookahead",
    "Choice",
    "ConfidenceThreshold",
    "EntropyBound",
    "FitConfig",
    "FitReport",
    "GammaBandit",
    "HeuristicSchedule",
    "LatencyConfig",
    "LatencyTable",
    "LookupLookahead",
    "MachineFingerprint",
    "ReliabilityBin",
    "RoundCosts",
    "SurvivalRow",
    "SurvivalThreshold",
    "best_fixed_gamma",
    "best_gamma",
    "choose_predictor",
    "expected_tokens",
    "fit_predictor",
    "fit_predictor_from_dense",
    "load_or_bandit",
    "measure_latency",
    "objective",
]

_HOMES = {
    "adaptive": ("AdaptiveLookahead",),
    "bandit": ("GammaBandit",),
    "calibration": ("ReliabilityBin", "SurvivalRow"),
    "chain_lookahead": ("ChainLookahead",),
    "choosing": ("Choice", "choose_predictor"),
    "dense_rows": ("fit_predictor_from_dense",),
    "fallback": ("load_or_bandit",),
    "fitting": ("FitReport", "fit_predictor"),
    "latency": ("LatencyTable", "MachineFingerprint"),
    "lookup_lookahead": ("LookupLookahead",),
    "measuring": ("measure_latency",),
    "peers": ("ConfidenceThreshold", "EntropyBound", "HeuristicSchedule", "SurvivalThreshold"),
    "predictor": ("AcceptancePredictor",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
