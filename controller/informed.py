"""The informed bound: the most that a policy could have of what the predictor sees, everything else known.

It stops by the same rule as AdaptiveLookahead, but knows beforehand what that has to learn: the seconds, the
price of a second, the law of looks. Fitted on the very texts it is replayed on it is a bound, up to luck:
the distance to the oracle is what the features do not tell, the distance to ours what ours has to learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..data import DenseText, History
from ..data.echoes import LookReader
from ..spec import LookaheadPolicy, RoundOutcome, RoundStart, SamplingParams
from .config import check_integer
from .economics import RoundCosts
from .features import known_before
from .forecast import LookForecast
from .predictor import AcceptancePredictor
from .recentring import sigmoid
from .replay import Replay, replay
from .stopping import StoppingValues

ITERATIONS = 4  # of the price; Dinkelbach's converge faster than linearly
SHIFT_STEP = 0.25  # logits; as in AdaptiveLookahead


class InformedLookahead(LookReader):
    """Maximises E[tokens] − λ·seconds with a λ, seconds and chances that stay as given."""

    reads_logits = True

    def __init__(
        self, predictor: AcceptancePredictor, costs: RoundCosts, price: float, *, gamma_max: int
    ) -> None:
        """Take all as known.

        Args:
            price: λ in tokens per second.
        """
        super().__init__()
        check_integer("gamma_max", gamma_max, low=1, high=costs.gamma_max)
        self.gamma_max = gamma_max
        self._predictor, self._costs, self._price = predictor, costs, price
        self._forecast = LookForecast(predictor.forecast)
        self._solved: dict[tuple[int, int], StoppingValues] = {}
        self._history = History()
        self._temperature = 1.0
        self._known: tuple[float, ...] = ()
        self._survival = 1.0
        self._bin: int | None = None
        self._values: StoppingValues | None = None

    def begin_request(self, params: SamplingParams) -> None:
        self._temperature = params.temperature
        self._history = History()
        self.begin_text()

    def begin_round(self, start: RoundStart) -> int:
        cap = min(self.gamma_max, start.gamma_limit)
        if cap == 0:
            return 0
        self._known = known_before(self._history, start.context_length, self._temperature)
        self._survival, self._bin = 1.0, None
        self._values = self._solve(cap, self._predictor.round_logit(self._known))
        return cap if self._values.start > 0.0 else 0

    def wants_step(self, depth: int) -> bool:
        if self._bin is None or self._values is None:
            return True
        return self._values.wants_step(depth - 1, self._survival, self._bin)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        look, echo = self.see(draft_logits)
        bin_ = self._forecast.bin(self._predictor.look_logit(look, echo))
        survival = self._survival * sigmoid(
            self._predictor.token_logit(look, depth, self._known, echo)
        )
        assert self._values is not None
        if not self._values.wants_token(depth, survival, bin_):
            return False
        self._survival, self._bin = survival, bin_
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        self._history.update(outcome)

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        return [
            InformedLookahead(self._predictor, self._costs, self._price, gamma_max=self.gamma_max)
            for _ in range(count)
        ]

    def _solve(self, cap: int, logit: float) -> StoppingValues:
        shift = round(logit / SHIFT_STEP)
        if (cap, shift) not in self._solved:
            offsets = [self._predictor.depth_logit(depth) for depth in range(1, cap + 1)]
            self._solved[cap, shift] = StoppingValues(
                self._forecast.first(),
                self._forecast.following(),
                self._forecast.acceptance(shift * SHIFT_STEP, offsets),
                self._costs,
                self._price,
                cap,
            )
        return self._solved[cap, shift]


def informed_bound(
    texts: Sequence[DenseText], costs: RoundCosts, predictor: AcceptancePredictor
) -> Replay:
    """Return the replay of the best informed policy: at each of a few prices, each the rate of the one before.

    Args:
        predictor: fitted on these texts for a bound; on others, for what their fit is worth here.

    Raises:
        ValueError: if there is no text.
    """
    if not texts:
        raise ValueError("texts must not be empty")
    gamma_max = min(costs.gamma_max, *(text.gamma_max for text in texts))
    price = 1.0 / costs.plain
    best: Replay | None = None
    for _ in range(ITERATIONS):
        policy = InformedLookahead(predictor, costs, price, gamma_max=gamma_max)
        run = replay(policy, texts, costs)
        if best is None or run.tokens_per_second > best.tokens_per_second:
            best = run
        price = max(run.tokens_per_second, 1.0 / costs.plain)
    assert best is not None
    return best
