"""A bandit over γ: no features, no costs known beforehand, only the tokens per second of each γ.

It can find the best fixed γ and follow it when it moves; better than that it cannot be. Upper confidence
bounds with forgetting: discounted UCB (Garivier & Moulines 2011, arXiv 0805.3415); over draft lengths as in
BanditSpec (arXiv 2505.15141).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch

from ..spec import LookaheadPolicy, RoundOutcome, RoundStart, SamplingParams
from .config import check_integer, check_number


class GammaBandit:
    """Chooses, before each round, the γ with the highest bound on its tokens per second.

    A γ's rate is the ratio of its forgotten sums of tokens and of seconds: the mean of the rounds' own
    ratios would be another number. Its bound is rate + exploration · best rate · √(ln N / n), n and N the
    forgotten rounds of the γ and of all. Rounds that say nothing of a γ are left out: those cut by the
    request's end, and a request's first that drafts, in which the draft reads the prompt.
    """

    reads_logits = False

    def __init__(
        self,
        gammas: Sequence[int] = (0, 1, 2, 3, 4, 6, 8),
        *,
        exploration: float = 0.3,
        half_life_rounds: float = 200.0,
    ) -> None:
        """Start with nothing known; each γ is tried once, in order.

        Args:
            gammas: distinct, at least two; 0 is plain decoding.
            exploration: how far a bound lies above its rate, in best rates, where n = ln N.
            half_life_rounds: rounds after which one weighs half.

        Raises:
            ValueError: naming the field, the value and what is allowed.
        """
        for gamma in gammas:
            check_integer("gammas", gamma, low=0)
        if len(gammas) < 2 or len(set(gammas)) < len(gammas):
            raise ValueError(f"gammas must be distinct, at least two, got {gammas!r}")
        check_number("exploration", exploration, low=0.0)
        check_number("half_life_rounds", half_life_rounds, low=1.0)
        self.gammas = tuple(gammas)
        self.gamma_max = max(gammas)
        self._exploration = exploration
        self._forgetting = 0.5 ** (1.0 / half_life_rounds)
        self._rounds = [0.0] * len(gammas)
        self._tokens = [0.0] * len(gammas)
        self._seconds = [0.0] * len(gammas)
        self._arm = 0  # of the round in progress
        self._cut = False
        self._prompt_unread = True

    def begin_request(self, params: SamplingParams) -> None:
        self._prompt_unread = True

    def begin_round(self, start: RoundStart) -> int:
        self._arm = self._choose()
        gamma = self.gammas[self._arm]
        self._cut = gamma > start.gamma_limit
        return min(gamma, start.gamma_limit)

    def wants_step(self, depth: int) -> bool:
        return True

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        reads_prompt = self._prompt_unread and outcome.draft_steps > 0
        self._prompt_unread = self._prompt_unread and not reads_prompt
        if self._cut or reads_prompt:
            return
        for sums in (self._rounds, self._tokens, self._seconds):
            for arm in range(len(sums)):
                sums[arm] *= self._forgetting
        self._rounds[self._arm] += 1.0
        self._tokens[self._arm] += outcome.accepted + 1
        self._seconds[self._arm] += outcome.round_seconds

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        """Return bandits that learn apart, each from what this one knows: a batch has other costs."""
        return [copy.deepcopy(self) for _ in range(count)]

    def rates(self) -> dict[int, float]:
        """Return tokens per second by γ, of those that were tried."""
        sums = zip(self.gammas, self._tokens, self._seconds, strict=True)
        return {gamma: tokens / seconds for gamma, tokens, seconds in sums if seconds > 0.0}

    def _choose(self) -> int:
        rates = self.rates()
        for arm, gamma in enumerate(self.gammas):
            if gamma not in rates:
                return arm
        scale = self._exploration * max(rates.values())
        log_rounds = math.log(max(sum(self._rounds), 1.0))
        bounds = [
            rates[gamma] + scale * math.sqrt(log_rounds / rounds)
            for gamma, rounds in zip(self.gammas, self._rounds, strict=True)
        ]
        return bounds.index(max(bounds))

    def __repr__(self) -> str:
        return f"GammaBandit({list(self.gammas)})"
