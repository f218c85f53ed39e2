"""The chance that a drafted token will be accepted, from what is known before it is drawn.

Fitted by `fitting.py`; evaluated here with plain arithmetic. The file is JSON: schema, names,
numbers, fingerprints, and golden inputs with their outputs, so that a file that would predict
something else is refused instead of used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data import Signals
from ..data.echoes import NO_ECHO, Echo
from .curved import CurvedLogit
from .features import (
    DEPTH,
    DEPTH_BUCKETS,
    FEATURES,
    LOOK,
    ROUND,
    depth_bucket,
    look_features,
)
from .forecast import ForecastPrior
from .linear import LinearLogit

Array = npt.NDArray[np.float64]
SCHEMA = 2  # 2: echoes
GOLDEN_TOLERANCE = 1e-6
_GOLDEN_STEPS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePredictor:
    """A calibrated logit, and what its traces said of looks and hazards.

    The linear one is `round_logit` (once a round, intercept included) + `depth_logit` + `look_logit`;
    being a sum it also tells what later looks will be worth. Where there is a curved one, that judges
    the look at hand: `token_logit`.
    """

    linear: LinearLogit
    forecast: ForecastPrior
    hazards: tuple[float, ...]  # mean acceptance by depth in the traces, from depth 1
    curved: CurvedLogit | None = None
    target: str = ""  # model fingerprints; empty where not known
    draft: str = ""
    training: dict[str, Any] = field(default_factory=dict)  # rows, AUC, log-loss, ECE, …
    _look: tuple[tuple[float, ...], ...] = field(init=False, repr=False, compare=False)
    _depth: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _round: tuple[tuple[float, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.hazards or not all(0.0 <= hazard <= 1.0 for hazard in self.hazards):
            raise ValueError(
                f"hazards must be numbers in [0, 1], at least one, got {self.hazards!r}"
            )
        object.__setattr__(self, "_look", self._compile(LOOK))
        object.__setattr__(self, "_round", self._compile(ROUND))
        only_depth = np.full((DEPTH_BUCKETS, len(FEATURES)), np.nan)
        only_depth[:, DEPTH] = np.eye(DEPTH_BUCKETS)
        object.__setattr__(self, "_depth", tuple(self.linear.terms(only_depth).sum(1).tolist()))

    def look_logit(self, look: Signals, echo: Echo = NO_ECHO) -> float:
        """Return the part of the logit that the draft's distribution gives. Two microseconds."""
        total = 0.0
        values = look_features(look, echo)
        for (slope, mean, low, high), value in zip(self._look, values, strict=True):
            if value == value:  # else not known, which counts as the mean
                total += slope * ((low if value < low else min(value, high)) - mean)
        return total

    def depth_logit(self, depth: int) -> float:
        """Return the part that the depth gives, from 1."""
        return self._depth[depth_bucket(depth)]

    def round_logit(self, values: Sequence[float]) -> float:
        """Return the part known when a round starts, the intercept included.

        Args:
            values: what `round_features` returns; NaN where not known.
        """
        total = self.linear.intercept
        for (slope, mean, low, high), value in zip(self._round, values, strict=True):
            if not math.isnan(value):
                total += slope * (max(low, min(value, high)) - mean)
        return total

    def token_logit(
        self, look: Signals, depth: int, known: Sequence[float], echo: Echo = NO_ECHO
    ) -> float:
        """Return the logit of a token whose look is known. Up to tens of microseconds.

        Args:
            known: what `round_features` returns; NaN where not known.
        """
        if self.curved is None:
            return self.round_logit(known) + self.look_logit(look, echo) + self.depth_logit(depth)
        depths = [0.0] * DEPTH_BUCKETS
        depths[depth_bucket(depth)] = 1.0
        return self.curved.logit((*look_features(look, echo), *depths, *known))

    def predict(self, features: Array) -> Array:
        """Return chances of acceptance, [N, len(FEATURES)] to [N]."""
        model = self.linear if self.curved is None else self.curved
        chances: Array = 1.0 / (1.0 + np.exp(-model.logits(features)))
        return chances

    def hazards_to(self, depth: int) -> list[float]:
        """Return hazards of depths 1 … `depth`, the last known one repeated."""
        known = list(self.hazards[:depth])
        return known + [known[-1]] * (depth - len(known))

    def save(self, path: str | Path) -> None:
        """Write the predictor as JSON."""
        content = {
            "schema": SCHEMA,
            "features": FEATURES,
            "linear": asdict(self.linear),
            "forecast": asdict(self.forecast),
            "hazards": self.hazards,
            "curved": None if self.curved is None else self.curved.to_dict(),
            "target": self.target,
            "draft": self.draft,
            "training": self.training,
            "golden": self._golden(),
        }
        Path(path).write_text(json.dumps(_without_nan(content), indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(
        cls, path: str | Path, *, target: str | None = None, draft: str | None = None
    ) -> AcceptancePredictor:
        """Read a predictor.

        Args:
            target, draft: fingerprints of the models it is to be used with; None: not checked.

        Raises:
            ValueError: if the file is missing, broken, of another schema, made for other models, or
                does not predict what it predicted when it was saved.
        """
        try:
            return cls._from_content(json.loads(Path(path).read_text()), target, draft)
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}: not a usable acceptance predictor: {reason}") from error

    @classmethod
    def _from_content(
        cls, content: Any, target: str | None, draft: str | None
    ) -> AcceptancePredictor:
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            schema = content.get("schema") if isinstance(content, dict) else None
            raise ValueError(f"schema is {schema!r}, expected {SCHEMA}")
        if tuple(content["features"]) != FEATURES:
            raise ValueError(f"features are {content['features']}, expected {list(FEATURES)}")
        for name, wanted in (("target", target), ("draft", draft)):
            if wanted is not None and content[name] != wanted:
                raise ValueError(
                    f"{name} is {content[name]!r}, but the {name} in use is {wanted!r}"
                )
        predictor = cls(
            linear=LinearLogit(**_tuples(content["linear"])),
            forecast=ForecastPrior(**_tuples(content["forecast"])),
            hazards=tuple(content["hazards"]),
            curved=_curved(content.get("curved")),  # files from before there were any lack it
            target=content["target"],
            draft=content["draft"],
            training=content["training"],
        )
        predictor._check_golden(content["golden"])
        return predictor

    def _compile(self, group: slice) -> tuple[tuple[float, ...], ...]:
        """Return (slope, mean, low, high) of each feature of a group."""
        linear = self.linear
        return tuple(
            (coefficient / scale, mean, low, high)
            for coefficient, scale, mean, low, high in zip(
                linear.coefficients[group],
                linear.scale[group],
                linear.mean[group],
                linear.low[group],
                linear.high[group],
                strict=True,
            )
        )

    def _golden(self) -> list[dict[str, Any]]:
        """Return inputs around the mean, one with everything unknown, and what they give."""
        mean, scale = np.array(self.linear.mean), np.array(self.linear.scale)
        signs = np.where(np.arange(len(FEATURES)) % 2, 1.0, -1.0)
        rows = np.array([mean + step * signs * scale for step in _GOLDEN_STEPS])
        outputs = self.predict(rows).tolist()
        return [
            {"features": row, "output": output}
            for row, output in zip(rows.tolist(), outputs, strict=True)
        ]

    def _check_golden(self, golden: list[dict[str, Any]]) -> None:
        if not golden:
            raise ValueError("golden must not be empty")
        rows = np.array([row["features"] for row in golden], dtype=np.float64)  # null becomes NaN
        worst = float(np.abs(self.predict(rows) - [row["output"] for row in golden]).max())
        if not worst <= GOLDEN_TOLERANCE:
            raise ValueError(f"golden outputs are off by {worst:.3g}: the numbers were changed")


def _curved(content: dict[str, Any] | None) -> CurvedLogit | None:
    return None if content is None else CurvedLogit.from_dict(content)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Turn JSON's lists back into tuples, two levels deep."""

    def convert(value: Any) -> Any:
        return tuple(map(convert, value)) if isinstance(value, list) else value

    return {name: convert(value) for name, value in fields.items()}


def _without_nan(value: Any) -> Any:
    """Write NaN as null, which JSON has."""
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
