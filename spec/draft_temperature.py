"""What the request's temperature is multiplied by when a draft draws, by the request's temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftTemperature:
    """A factor by temperature, as calibrated; the law a draft draws from is the one that is verified."""

    table: tuple[tuple[float, float], ...] = ()  # (request's temperature, factor), ascending
    otherwise: float = 1.0  # the factor outside the table

    def __post_init__(self) -> None:
        heats = [heat for heat, _ in self.table]
        numbers = [*heats, *(factor for _, factor in self.table), self.otherwise]
        if not all(0 < number < math.inf for number in numbers) or heats != sorted({*heats}):
            raise ValueError(
                "draft temperatures must be pairs (temperature, factor) of positive numbers, "
                f"temperatures ascending, got {self.table!r} and {self.otherwise!r}"
            )

    def factor(self, temperature: float) -> float:
        """Return the factor for a request: linear between two temperatures of the table."""
        for (low, before), (high, after) in zip(self.table, self.table[1:], strict=False):
            if low <= temperature <= high:
                return before + (after - before) * (temperature - low) / (high - low)
        return dict(self.table).get(temperature, self.otherwise)


def as_draft_temperature(value: float | DraftTemperature) -> DraftTemperature:
    """Return a table, or one factor for all temperatures."""
    return value if isinstance(value, DraftTemperature) else DraftTemperature(otherwise=value)
