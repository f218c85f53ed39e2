"""What a round costs and what it is expected to give: closed forms, no torch.

Notation: a_k is the chance that drafted token k is accepted given that those before it were,
S_k = a_1 … a_k, λ the price of a second in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """Seconds of the parts of a round, at one context length.

    Invariant: the verify curve is kept as it was measured. It has steps and need not even be
    monotone, so whoever minimises over it must look at all of it.
    """

    draft_step: float
    verify: tuple[float, ...]  # of 1, 2, …, γ_max + 1 tokens
    plain_overhead: float = 0.0  # the rest of a round without drafting
    round_overhead: float = 0.0  # the rest of a round with drafting

    @property
    def gamma_max(self) -> int:
        return len(self.verify) - 1

    @property
    def plain(self) -> float:
        """t₀: seconds of a plain step."""
        return self.verify[0] + self.plain_overhead

    def seconds(self, gamma: int) -> float:
        """T(γ): seconds of a round that drafts `gamma` tokens."""
        if gamma == 0:
            return self.plain
        return gamma * self.draft_step + self.verify[gamma] + self.round_overhead

    def worst_seconds(self, cap: int) -> float:
        """Return the most that a round of up to `cap` tokens may take.

        It may stop anywhere, after a look or before one, but for lengths from which going on blindly
        is quicker: no policy with a price on time stops there.
        """
        if cap == 0:
            return self.plain
        worst = 0.0
        quickest = math.inf  # way to end the round from the length above
        for gamma in range(cap, -1, -1):
            onward = quickest + self.draft_step
            if self.verify[gamma] <= onward:
                worst = max(worst, min(gamma + 1, cap) * self.draft_step + self.verify[gamma])
            quickest = min(self.verify[gamma], onward)
        return worst + self.round_overhead

    def largest_cap(self, seconds: float, limit: int) -> int:
        """Return the largest cap, 0 to `limit`, whose worst round takes at most `seconds`."""
        cap = limit
        while cap > 0 and self.worst_seconds(cap) > seconds:
            cap -= 1
        return cap


def expected_tokens(hazards: Sequence[float]) -> list[float]:
    """Return E[tokens | γ] = 1 + S_1 + … + S_γ for γ = 0 … len(hazards).

    Args:
        hazards: a_1, a_2, …, each given that the tokens before were accepted. They need not be
            equal, so this is not (1 − α^(γ+1)) / (1 − α), the i.i.d. case of Leviathan et al. 2023.
    """
    survival = accumulate(hazards, mul)
    return list(accumulate(survival, initial=1.0))


def emitted_moments(survivals: Sequence[float]) -> tuple[float, float]:
    """Return mean and variance of the tokens of a round that drafts S_1 ≥ S_2 ≥ …, the last token included.

    The accepted length L has P(L ≥ k) = S_k, so E[L] = Σ S_k and E[L²] = Σ (2k − 1)·S_k.
    """
    mean = sum(survivals)
    square = sum((2 * depth + 1) * survival for depth, survival in enumerate(survivals))
    return 1.0 + mean, max(0.0, square - mean * mean)


def objective(hazards: Sequence[float], costs: RoundCosts, price: float) -> list[float]:
    """Return E[tokens | γ] − λ·T(γ) for γ = 0 … len(hazards).

    With λ the long-run tokens per second, the round that maximises this maximises the long-run rate
    (renewal-reward; Dinkelbach 1967). Maximising E/T of each round alone does not.

    Args:
        price: λ in tokens per second.
    """
    tokens = expected_tokens(hazards)
    return [value - price * costs.seconds(gamma) for gamma, value in enumerate(tokens)]


def best_gamma(hazards: Sequence[float], costs: RoundCosts, price: float) -> int:
    """Return the γ of the largest objective over all of 0 … len(hazards); the least of equals."""
    values = objective(hazards, costs, price)
    return values.index(max(values))


def best_fixed_gamma(hazards: Sequence[float], costs: RoundCosts) -> tuple[int, float]:
    """Return the γ of most tokens per second where every round drafts the same, and that rate."""
    rates = [tokens / costs.seconds(gamma) for gamma, tokens in enumerate(expected_tokens(hazards))]
    rate = max(rates)
    return rates.index(rate), rate
