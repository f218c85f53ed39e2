"""Other people's lookaheads, to be measured against: transformers' schedule and its confidence threshold,
SpecDec++'s threshold on the chance of a rejection, SVIP's bound on entropy.

All but the schedule are of one shape: a token whose look falls short is still drawn and verified, and
nothing is drafted after it. That costs no draft step in vain, and it is what transformers does. What
differs: transformers and SpecDec++ judge the *drawn* token, which is sound as long as it is verified all
the same; ours judge the law it is drawn from, since a policy is never shown a token. Greedy decoding
draws the likeliest token, so there the two are one. Never drop a token after its draw because its own
probability is low: that biases what is said (test_law.py holds two drafters that do).
"""

from __future__ import annotations

import copy
import math

import torch

from ..data import History, signals
from ..data.echoes import LookReader
from ..spec import LookaheadPolicy, RoundOutcome, RoundStart, SamplingParams
from .config import check_integer, check_number
from .features import known_before
from .predictor import AcceptancePredictor
from .recentring import sigmoid

TRANSFORMERS_TOKENS = 20  # its default `num_assistant_tokens`
TRANSFORMERS_CONFIDENCE = 0.4  # its default `assistant_confidence_threshold`
SVIP_BOUND = 0.3  # the paper's choice for all of its models


class HeuristicSchedule:
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two tokens more after a round that was
    accepted in full, one fewer after any other, at least one; kept across requests.

    Source: `AssistedCandidateGenerator.update_candidate_strategy`, transformers 5.24. There the number
    grows without end and what is drafted is cut; here it stays at `gamma_max`. As there, a round in
    which there was no room to draft counts as accepted in full.
    """

    reads_logits = False

    def __init__(self, *, start: int = TRANSFORMERS_TOKENS, gamma_max: int = 32) -> None:
        """Start with `start` tokens.

        Raises:
            ValueError: unless 1 <= start <= gamma_max.
        """
        check_integer("gamma_max", gamma_max, low=1)
        check_integer("start", start, low=1, high=gamma_max)
        self.gamma_max = gamma_max
        self.gamma = start  # of the next round

    def begin_request(self, params: SamplingParams) -> None:
        pass

    def begin_round(self, start: RoundStart) -> int:
        return min(self.gamma, start.gamma_limit)

    def wants_step(self, depth: int) -> bool:
        return True

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        whole = outcome.accepted == outcome.drafted
        self.gamma = min(self.gamma + 2, self.gamma_max) if whole else max(1, self.gamma - 1)

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        return [copy.copy(self) for _ in range(count)]

    def __repr__(self) -> str:
        return f"HeuristicSchedule(gamma={self.gamma}, gamma_max={self.gamma_max})"


class _StopAfter:
    """Drafts until a look falls short; the token of that look is the last. Always drafts one."""

    reads_logits = True

    def __init__(self, gamma_max: int) -> None:
        check_integer("gamma_max", gamma_max, low=1)
        self.gamma_max = gamma_max
        self._stopped = False

    def begin_request(self, params: SamplingParams) -> None:
        pass

    def begin_round(self, start: RoundStart) -> int:
        self._stopped = False
        return min(self.gamma_max, start.gamma_limit)

    def wants_step(self, depth: int) -> bool:
        return not self._stopped

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        self._stopped = self._falls_short(depth, draft_logits)
        return True

    def end_round(self, outcome: RoundOutcome) -> None:
        pass

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        return [copy.deepcopy(self) for _ in range(count)]

    def _falls_short(self, depth: int, draft_logits: torch.Tensor) -> bool:
        raise NotImplementedError


class ConfidenceThreshold(_StopAfter):
    """transformers' `assistant_confidence_threshold`: stop after a token that the draft is unsure of.

    Source: `ConfidenceCriteria`, transformers 5.24, with its defaults. There the drawn token's
    probability is judged, after the temperature; here the likeliest token's at temperature 1, which is
    the same where decoding is greedy. There the threshold is then moved by a ROC curve over all tokens of
    the call; here it stays.
    """

    def __init__(
        self, threshold: float = TRANSFORMERS_CONFIDENCE, *, gamma_max: int = TRANSFORMERS_TOKENS
    ) -> None:
        """Stop after a look whose top probability is below `threshold`, in [0, 1]; 0 never stops."""
        check_number("threshold", threshold, low=0.0, high=1.0)
        super().__init__(gamma_max)
        self._threshold = threshold

    def _falls_short(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return math.exp(signals(draft_logits).top1_logprob) < self._threshold

    def __repr__(self) -> str:
        return f"ConfidenceThreshold({self._threshold}, gamma_max={self.gamma_max})"


class EntropyBound(_StopAfter):
    """SVIP: stop after a look whose entropy H has √H above a bound (arXiv 2411.18462).

    √H stands for a bound on the distance between draft and target; it is no calibrated chance. H is
    that of the raw law, in nats.
    """

    def __init__(self, bound: float = SVIP_BOUND, *, gamma_max: int = TRANSFORMERS_TOKENS) -> None:
        """Stop after a look with √H > `bound`, at least 0."""
        check_number("bound", bound, low=0.0)
        super().__init__(gamma_max)
        self._bound = bound

    def _falls_short(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return math.sqrt(signals(draft_logits).entropy) > self._bound

    def __repr__(self) -> str:
        return f"EntropyBound({self._bound}, gamma_max={self.gamma_max})"


class SurvivalThreshold(LookReader, _StopAfter):
    """SpecDec++: stop once 1 − S_k, the chance that any drafted token is rejected, exceeds a threshold
    (arXiv 2405.19715).

    There a head on the draft's hidden state gives the chances; here our predictor does, as fitted:
    nothing is re-centred, no second is priced.
    """

    def __init__(
        self, predictor: AcceptancePredictor, threshold: float = 0.7, *, gamma_max: int = 20
    ) -> None:
        """Stop once 1 − S_k > `threshold`, in [0, 1]."""
        check_number("threshold", threshold, low=0.0, high=1.0)
        LookReader.__init__(self)
        _StopAfter.__init__(self, gamma_max)
        self._predictor = predictor
        self._threshold = threshold
        self._temperature = 1.0
        self._history = History()
        self._known: tuple[float, ...] = ()
        self._survival = 1.0

    def begin_request(self, params: SamplingParams) -> None:
        self._temperature = params.temperature
        self._history = History()
        self.begin_text()

    def begin_round(self, start: RoundStart) -> int:
        self._survival = 1.0
        self._known = known_before(self._history, start.context_length, self._temperature)
        return super().begin_round(start)

    def end_round(self, outcome: RoundOutcome) -> None:
        self._history.update(outcome)

    def _falls_short(self, depth: int, draft_logits: torch.Tensor) -> bool:
        look, echo = self.see(draft_logits)
        logit = self._predictor.token_logit(look, depth, self._known, echo)
        self._survival *= sigmoid(logit)
        return 1.0 - self._survival > self._threshold

    def __repr__(self) -> str:
        return f"SurvivalThreshold({self._threshold}, gamma_max={self.gamma_max})"
