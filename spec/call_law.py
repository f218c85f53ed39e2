"""The law of a transformers call: what its own logits processors make of the model's logits.

Until the loop takes laws itself, this is the one place where processors meet `decode_round`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as stock

from .cached import CachedModel
from .drafter import Drafter, Proposal
from .draws import Draws
from .params import SamplingParams
from .policy import LookaheadPolicy, RoundOutcome, RoundStart

# Look at the scores only: one call serves all positions of a block.
PLACELESS = (
    stock.TemperatureLogitsWarper,
    stock.TopKLogitsWarper,
    stock.TopPLogitsWarper,
    stock.MinPLogitsWarper,
    stock.TopHLogitsWarper,
    stock.TypicalLogitsWarper,
    stock.EpsilonLogitsWarper,
    stock.EtaLogitsWarper,
    stock.InfNanRemoveLogitsProcessor,
    stock.LogitNormalization,
    stock.SuppressTokensLogitsProcessor,
)
# Functions of the prefix and the scores, the same for every row of a batch.
BY_PREFIX = (
    stock.MinLengthLogitsProcessor,
    stock.MinNewTokensLengthLogitsProcessor,
    stock.NoRepeatNGramLogitsProcessor,
    stock.SequenceBiasLogitsProcessor,
    stock.NoBadWordsLogitsProcessor,
    stock.ForcedBOSTokenLogitsProcessor,
    stock.ForcedEOSTokenLogitsProcessor,
    stock.ExponentialDecayLengthPenalty,
    stock.SuppressTokensAtBeginLogitsProcessor,
)
# Functions as well, but they hold something for each row, so they must see rows where they were.
BY_ROW = (
    stock.RepetitionPenaltyLogitsProcessor,
    stock.EncoderRepetitionPenaltyLogitsProcessor,
    stock.EncoderNoRepeatNGramLogitsProcessor,
    stock.PrefixConstrainedLogitsProcessor,
    stock.WatermarkLogitsProcessor,
)


def may_draft(processors: Sequence[LogitsProcessor], pure: tuple[type, ...] = ()) -> bool:
    """Return whether all processors may be asked about drafted positions, some of them rejected later.

    Args:
        pure: further classes that are functions of their arguments.
    """
    known = (*PLACELESS, *BY_PREFIX, *BY_ROW, *pure)
    return all(type(processor) in known for processor in processors)


class CallLaw:
    """The law of one row: its scores are the call's processed logits, its tokens drawn from their softmax.

    The processors are asked about prefixes as `generate` asks: the padding of the row included.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        prompt: torch.Tensor,
        *,
        row: int,
        rows: int,
        capacity: int,
        greedy: bool,
    ) -> None:
        """Begin a row.

        Args:
            prompt: [1, L], padding included.
            row, rows: which row of how many it is.
            capacity: most tokens of prompt and output together.
            greedy: the law is a one-hot on the best score.
        """
        self._processors = processors
        self._row, self._rows, self._greedy = row, rows, greedy
        self._ids = prompt.new_zeros(1, capacity)
        self._length = prompt.shape[1]
        self._ids[:, : self._length] = prompt

    @property
    def ids(self) -> torch.Tensor:
        """[1, L], the committed tokens, padding included."""
        return self._ids[:, : self._length]

    def scores(self, logits: torch.Tensor, drafted: Sequence[int], first: int = 0) -> torch.Tensor:
        """Return [N, V] in float32 from raw logits [N, V]; row i follows drafted[: first + i]."""
        scores = logits.to(torch.float32, copy=True)  # processors may write in place
        if drafted:
            block = torch.tensor(drafted, device=self._ids.device)  # [γ]
            self._ids[0, self._length : self._length + len(drafted)] = block
        for processor in self._processors:
            if type(processor) in PLACELESS:
                scores = processor(self.ids, scores)
                continue
            start = self._length + first
            scores = torch.cat(
                [
                    self._processed(processor, self._ids[:, : start + i], scores[i : i + 1])
                    for i in range(len(scores))
                ]
            )
        return scores

    def probs(
        self,
        logits: torch.Tensor,
        drafted: Sequence[int],
        first: int = 0,
        *,
        temperature_factor: float = 1.0,
    ) -> torch.Tensor:
        """Return the law [N, V] of each position; the factor flattens what the processors left."""
        scores = self.scores(logits, drafted, first)
        if self._greedy:
            return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
        return (scores / temperature_factor).softmax(-1)

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens follow what was committed."""
        end = self._length + len(tokens)
        self._ids[0, self._length : end] = torch.tensor(tokens, device=self._ids.device)
        self._length = end

    def _processed(
        self, processor: LogitsProcessor, prefix: torch.Tensor, scores: torch.Tensor
    ) -> torch.Tensor:
        if self._rows == 1 or type(processor) in BY_PREFIX:
            return processor(prefix, scores)  # type: ignore[no-any-return]
        # It holds something for each row: put this row in its place, and the others are not looked at.
        whole = processor(prefix.expand(self._rows, -1), scores.repeat(self._rows, 1))
        return whole[self._row : self._row + 1]  # type: ignore[no-any-return]


class ProcessedTarget(CachedModel):
    """A target whose `advance` gives a call's processed scores in place of logits."""

    law: CallLaw
    raw: torch.Tensor  # [keep, V] of the last advance
    scores: torch.Tensor  # [keep, V], the same processed

    def begin(self, law: CallLaw, tokens: Sequence[int], capacity: int, *, chunk: int) -> None:
        """Start a sequence as `start` does, reading the prompt `chunk` tokens at a time."""
        self.law = law
        self.reset(capacity)
        while self.cover < len(tokens) - 1:
            super().advance(tokens[: min(self.cover + chunk, len(tokens) - 1)])

    def again(self, law: CallLaw, length: int) -> None:
        """Start over after the prompt of `length` tokens that the last row began with."""
        self.law = law
        self.roll_back(length - 1)

    def advance(self, tokens: Sequence[int], keep: int = 1) -> torch.Tensor:
        """Return [keep, V], processed; the last keep - 1 tokens are drafted ones."""
        self.raw = super().advance(tokens, keep)
        self.scores = self.law.scores(self.raw, tokens[len(tokens) - keep + 1 :])
        return self.scores


class CallDrafter:
    """Drafts with the call's sampling settings, while the target's law is in its scores already."""

    def __init__(self, drafter: Drafter, params: SamplingParams) -> None:
        self.context = drafter.context
        self._drafter, self._params = drafter, params

    def reset(self, capacity: int) -> None:
        self._drafter.reset(capacity)

    def propose(
        self,
        tokens: Sequence[int],
        gamma: int,
        policy: LookaheadPolicy,
        params: SamplingParams,
        draws: Draws,
    ) -> Proposal:
        return self._drafter.propose(tokens, gamma, policy, self._params, draws)

    def roll_back(self, length: int) -> None:
        self._drafter.roll_back(length)


class RawOutcomes:
    """Shows a policy the raw logits that its protocol promises."""

    def __init__(self, policy: LookaheadPolicy, target: ProcessedTarget) -> None:
        self.gamma_max = policy.gamma_max
        self._policy, self._target = policy, target

    def begin_request(self, params: SamplingParams) -> None:
        self._policy.begin_request(params)

    def begin_round(self, start: RoundStart) -> int:
        return self._policy.begin_round(start)

    def wants_step(self, depth: int) -> bool:
        return self._policy.wants_step(depth)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return self._policy.wants_token(depth, draft_logits)

    def end_round(self, outcome: RoundOutcome) -> None:
        self._policy.end_round(replace(outcome, target_logits=self._target.raw))
