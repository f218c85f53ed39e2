"""What a lookahead is judged by: plain decoding, the best fixed γ, and the best γ at every position.

The oracle knows the future: no policy can reach it. It says how much there is to be had at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..data import DenseText
from .economics import RoundCosts
from .replay import Replay, replay_fixed, replay_gammas


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardsticks:
    """Replays of the same texts at the same costs."""

    plain: Replay
    best_fixed: Replay
    best_fixed_gamma: int  # chosen in hindsight: generous to it
    oracle: Replay

    @property
    def headroom(self) -> float:
        """Tokens per second of the oracle over those of the best fixed γ, less 1."""
        return self.oracle.tokens_per_second / self.best_fixed.tokens_per_second - 1.0

    def share_of_gain(self, run: Replay) -> float | None:
        """Return how much of the oracle's gain over the best fixed γ a replay has; see `share_of_gain`."""
        return share_of_gain(run, base=self.best_fixed, oracle=self.oracle)


def yardsticks(texts: Sequence[DenseText], costs: RoundCosts) -> Yardsticks:
    """Replay plain decoding, each fixed γ that was recorded and priced, and the oracle.

    Raises:
        ValueError: if there is no text.
    """
    gamma, best = best_fixed(texts, costs)
    return Yardsticks(
        plain=replay_fixed(texts, costs, 0),
        best_fixed=best,
        best_fixed_gamma=gamma,
        oracle=replay_oracle(texts, costs),
    )


def best_fixed(texts: Sequence[DenseText], costs: RoundCosts) -> tuple[int, Replay]:
    """Return the γ of most tokens per second where every round drafts the same, 0 included, and its replay.

    Raises:
        ValueError: if there is no text.
    """
    most = _most(texts, costs)
    runs = [replay_fixed(texts, costs, gamma) for gamma in range(most + 1)]
    gamma = max(range(most + 1), key=lambda each: runs[each].tokens_per_second)
    return gamma, runs[gamma]


def replay_oracle(texts: Sequence[DenseText], costs: RoundCosts) -> Replay:
    """Return the decoding of most tokens per second: no sequence of γ has more.

    However a text is decoded, its tokens are the same, so most tokens per second is least time, text by
    text: V(t) = min_γ T(γ) + V(t + min(L_t, γ) + 1). (Dinkelbach's iteration on tokens − λ·seconds would
    solve this same program once and stop: the tokens are a constant in it, whatever λ is.)

    Raises:
        ValueError: if there is no text.
    """
    most = _most(texts, costs)
    run = Replay()
    for text in texts:
        replay_gammas(text, costs, oracle_gammas(text, costs, most), run)
    return run


def oracle_gammas(text: DenseText, costs: RoundCosts, gamma_max: int) -> list[int]:
    """Return the best γ at each position of a text, [N]; the least of equals."""
    count = len(text.tokens)
    prices = [costs.seconds(gamma) for gamma in range(gamma_max + 1)]
    limits, lengths = text.gamma_limit.tolist(), text.accepted_length.tolist()
    left = [0.0] * (count + 1)  # V: seconds from a position to the end
    best = [0] * count
    for position in range(count - 1, -1, -1):
        length = lengths[position]
        left[position] = float("inf")
        for gamma in range(min(gamma_max, limits[position]) + 1):
            seconds = prices[gamma] + left[min(count, position + min(length, gamma) + 1)]
            if seconds < left[position]:
                left[position], best[position] = seconds, gamma
    return best


def share_of_gain(run: Replay, *, base: Replay, oracle: Replay) -> float | None:
    """Return (rate − base) / (oracle − base) in tokens per second; None where there is nothing to gain.

    1 is the oracle, 0 no better than the base; below 0 it is worse.

    Args:
        base: the best fixed γ, or plain decoding.
    """
    gain = oracle.tokens_per_second - base.tokens_per_second
    if gain <= 1e-12 * base.tokens_per_second:
        return None
    return (run.tokens_per_second - base.tokens_per_second) / gain


def _most(texts: Sequence[DenseText], costs: RoundCosts) -> int:
    if not texts:
        raise ValueError("texts must not be empty")
    return min(costs.gamma_max, *(text.gamma_max for text in texts))
