"""What decoding cost and gave. Counts are stored, rates are properties."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .policy import RoundOutcome


@dataclass(slots=True)
class DecodeStats:
    """Counts over the rounds of one or more requests, before tokens past a stop are cut.

    Rates are None where their denominator is 0: "nothing drafted" is not an acceptance of 0.
    """

    rounds: int = 0  # target forwards after the prefill
    draft_steps: int = 0  # draft forwards after the prefill
    drafted: int = 0  # drafted tokens; tokens after a rejection are drafted, never tested
    accepted: int = 0
    tested: int = 0  # accepted + rejections
    looked_up: int = 0  # rounds whose tokens no draft forward gave: a lookup did
    looked_up_accepted: int = 0  # accepted tokens of those
    discarded: int = (
        0  # emitted by an output's last round past its end, and cut: emitted − returned
    )
    gammas: Counter[int] = field(default_factory=Counter)  # tokens drafted in a round -> rounds
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # -> rounds, γ > 0 only
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    round_seconds: float = 0.0

    def add_round(self, outcome: RoundOutcome) -> None:
        """Count one round."""
        self.rounds += 1
        self.draft_steps += outcome.draft_steps
        self.drafted += outcome.drafted
        self.accepted += outcome.accepted
        self.tested += min(outcome.accepted + 1, outcome.drafted)
        if outcome.drafted and not outcome.draft_steps:
            self.looked_up += 1
            self.looked_up_accepted += outcome.accepted
        self.gammas[outcome.drafted] += 1
        if outcome.drafted:
            self.accepted_lengths[outcome.accepted] += 1
        self.draft_seconds += outcome.draft_seconds
        self.verify_seconds += outcome.verify_seconds
        self.round_seconds += outcome.round_seconds

    def __add__(self, other: DecodeStats) -> DecodeStats:
        """The two together, as if decoded one after the other."""
        total = DecodeStats()
        for part in (self, other):
            for name in self.__slots__:
                value = getattr(part, name)
                if isinstance(value, Counter):
                    getattr(total, name).update(value)
                else:
                    setattr(total, name, getattr(total, name) + value)
        return total

    @property
    def emitted(self) -> int:
        """Tokens emitted by rounds: the accepted ones and one more a round."""
        return self.accepted + self.rounds

    @property
    def block_efficiency(self) -> float | None:
        """τ: tokens emitted per target forward."""
        return self.emitted / self.rounds if self.rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted. Not α: tokens after a rejection are drafted, never tested."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_prob(self) -> float | None:
        """The share of tested tokens that were accepted: an estimate of α in the loop."""
        return self.accepted / self.tested if self.tested else None

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens per second of rounds; the prefill is not in it."""
        return self.emitted / self.round_seconds if self.round_seconds else None
