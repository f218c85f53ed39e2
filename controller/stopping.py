"""When to stop drafting: the exact value of "draft one more step, look, then decide".

The draft's next distribution says far more about acceptance than anything known before, so the
choice to look has a value of its own. With W_k(S, i) the value from the point where k tokens are
drawn, S the chance that all of them are accepted and i the bin of the last look,

    stop_k     = −λ·v(k+1)
    W_k(S, i)  = max(stop_k, −λ·d + Σ_j P(j | i) · max(stop_k, S·a_j + W_{k+1}(S·a_j, j)))

in tokens, up to the cap. What was spent before (d of the steps already run) is the same on both
sides and drops out. The maximum runs over all depths through the recursion, never "until the first
decline": v has steps.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .economics import RoundCosts

Array = npt.NDArray[np.float64]
GRID = (
    33  # points of the survival S; W is convex in S, so linear interpolation errs upwards, a little
)
_SURVIVAL: Array = np.linspace(0.0, 1.0, GRID) ** 2  # denser near 0, where the kinks are
_MARGIN = 1e-9  # tokens; ties stop


class StoppingValues:
    """The solved recursion for one law of looks, one set of costs and one cap.

    Attributes:
        start: tokens that looking is worth over decoding plainly; below 0 where γ = 0 is best.
    """

    def __init__(
        self,
        first: Array,
        following: Array,
        acceptance: Array,
        costs: RoundCosts,
        price: float,
        cap: int,
    ) -> None:
        """Solve the recursion.

        Args:
            first: [K], law of the first look's bin.
            following: [K, K], row i is the law of a look's bin after bin i.
            acceptance: [cap, K], chance of acceptance at depth k + 1 in bin j.
            price: λ in tokens per second.
            cap: most tokens to draft, 1 to costs.gamma_max.
        """
        step = price * costs.draft_step
        stop = [-price * seconds for seconds in costs.verify[: cap + 1]]
        values = np.empty((cap + 1, GRID, len(first)))  # W_k at the survivals of the grid
        values[cap] = stop[cap]
        for drawn in range(cap - 1, 0, -1):
            drawing = _draw_values(values[drawn + 1], acceptance[drawn], _SURVIVAL)  # [GRID, K]
            looking = np.maximum(drawing, stop[drawn]) @ following.T - step
            values[drawn] = np.maximum(looking, stop[drawn])
        drawing = _draw_values(values[1], acceptance[0], np.ones(1))[0]  # [K]
        look = float(np.maximum(drawing, stop[0]) @ first) - step
        plainly = -price * (costs.plain - costs.round_overhead)
        self.start = look - plainly
        self._values, self._stop = values, stop

    def wants_step(self, drawn: int, survival: float, bin_: int) -> bool:
        """Is another look worth its step after `drawn` >= 1 tokens, the last of them from `bin_`?"""
        return self._continue(drawn, survival, bin_) > self._stop[drawn] + _MARGIN

    def wants_token(self, depth: int, survival: float, bin_: int) -> bool:
        """Is token `depth` worth drawing now that its look is known?

        Args:
            survival: S_depth, the chance that it and all before it are accepted.
            bin_: the bin of its look.
        """
        draw = survival + self._continue(depth, survival, bin_)
        return draw > self._stop[depth - 1] + _MARGIN

    def _continue(self, drawn: int, survival: float, bin_: int) -> float:
        """W_drawn by linear interpolation in S."""
        at = min(int(math.sqrt(survival) * (GRID - 1)), GRID - 2)
        low, high = _SURVIVAL.item(at), _SURVIVAL.item(at + 1)
        weight = (survival - low) / (high - low)
        below: float = self._values.item(drawn, at, bin_)
        above: float = self._values.item(drawn, at + 1, bin_)
        return (1.0 - weight) * below + weight * above


def _draw_values(values: Array, acceptance: Array, survival: Array) -> Array:
    """Return S·a_j + W(S·a_j, j), [len(survival), K].

    Args:
        values: [GRID, K], W after the draw.
        acceptance: [K].
    """
    after = survival[:, None] * acceptance  # [len(survival), K]
    at = np.minimum((np.sqrt(after) * (GRID - 1)).astype(np.intp), GRID - 2)
    low, high = _SURVIVAL[at], _SURVIVAL[at + 1]
    weight = (after - low) / (high - low)
    bins = np.arange(len(acceptance))
    drawn: Array = after + (1.0 - weight) * values[at, bins] + weight * values[at + 1, bins]
    return drawn
