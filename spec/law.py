"""The law that a request's tokens are drawn from: biases, penalties over its history, then filters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .bad_words import BadWords
from .one_hot import Laws, OneHot
from .params import SamplingParams
from .processors import Processor, ProcessorChain
from .sampling import penalize_repetition, precision, token_probs
from .searches import best_tokens


class TokenLaw:
    """The law that one request's tokens are drawn from: penalties over its own history, then temperature
    and filters.

    The target and the draft of a request share one. What was committed is held as counts over the
    vocabulary, so no call walks through the history.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        width: int,
        eos_token_ids: Sequence[int],
        device: torch.device,
        processors: Sequence[Processor] = (),
    ) -> None:
        """Start the law of one output.

        Args:
            params: with `bad_words` as token ids; see `with_token_ids`.
            width: V, entries of the vocabulary.
            eos_token_ids: forbidden before `min_tokens`, besides `stop_token_ids`.
            processors: custom logits processors; see `ProcessorChain` for the rule they follow.

        Raises:
            ValueError: naming a token id outside the vocabulary, a word without token ids, a processor
                that cannot be copied; or if every token is forbidden.
        """
        params.check_vocabulary(width)
        self.params = params
        self.width = width
        self._device = device
        self._generated = 0  # tokens committed, the prompt not counted
        self._ends = [t for t in {*eos_token_ids, *params.stop_token_ids} if t < width]
        words = [_token_ids(word) for word in params.bad_words]
        bias = dict(params.logit_bias) | {word[0]: -math.inf for word in words if len(word) == 1}
        self._never = {token for token, value in bias.items() if value == -math.inf}
        self._refuse_nothing_left(self._ends if params.min_tokens else ())
        self._bias = _bias_tensor(bias, width, device) if bias else None  # [V], float64
        longer = [word for word in words if len(word) > 1]
        self._bad_words = BadWords(longer, prompt) if longer else None
        self._seen: torch.Tensor | None = None  # [V], bool: in the prompt or the output
        if params.repetition_penalty != 1.0:
            self._seen = torch.zeros(width, dtype=torch.bool, device=device)
            self._seen[[token for token in set(prompt) if token < width]] = True
        self._counts: torch.Tensor | None = None  # [V]: times in the output
        if params.presence_penalty or params.frequency_penalty:
            self._counts = torch.zeros(width, device=device)
        self._processors = ProcessorChain(processors, prompt, device) if processors else None

    def probs(
        self,
        logits: torch.Tensor,
        drafted: Sequence[int],
        first: int = 0,
        *,
        temperature_factor: float = 1.0,
    ) -> torch.Tensor:
        """[N, V] from raw logits [N, V]; row i follows the committed tokens and drafted[: first + i]."""
        scores = self.scores(logits, drafted, first)
        return token_probs(scores, self.params, temperature_factor=temperature_factor)

    @torch.inference_mode()
    def laws(
        self,
        logits: torch.Tensor,
        drafted: Sequence[int],
        first: int = 0,
        *,
        temperature_factor: float = 1.0,
    ) -> Laws:
        """Return what `probs` does; greedy laws come as tokens, which takes one read by the host."""
        if not self.params.greedy:
            return self.probs(logits, drafted, first, temperature_factor=temperature_factor)
        best = best_tokens(self.scores(logits, drafted, first))  # [N]
        return OneHot(best.tolist(), logits.shape[-1])

    def knows_ids(self, first: int) -> bool:
        """Return whether tokens are told apart by more than their logits, after `first` drafted ones.

        Else the law of a cut vocabulary can be made before it is spread.
        """
        histories = (self._bias, self._seen, self._counts, self._bad_words, self._processors)
        early = self._generated + first < self.params.min_tokens
        return early or any(history is not None for history in histories)

    @torch.inference_mode()
    def scores(self, logits: torch.Tensor, drafted: Sequence[int], first: int = 0) -> torch.Tensor:
        """Return the logits [N, V] after all that comes before the temperature; `logits` stay as they are.

        Raises:
            ValueError: if no token is left in a row.
        """
        if self._bias is not None:
            logits = logits.to(precision(logits)) + self._bias.to(precision(logits))
        if self._seen is not None:
            seen = self._rows(self._seen, drafted, first, logits.shape[0])  # [N, V]
            logits = penalize_repetition(
                logits.to(precision(logits)), self.params.repetition_penalty, seen
            )
        if self._counts is not None:
            counts = self._rows(self._counts, drafted, first, logits.shape[0])  # [N, V]
            logits = logits.to(precision(logits)) - self.params.frequency_penalty * counts
            logits = logits - self.params.presence_penalty * (counts > 0)
        forbidden = self._forbidden(drafted, first, logits.shape[0])
        if forbidden:
            logits = logits.clone()
            logits[torch.tensor(forbidden, device=logits.device).unbind(1)] = -torch.inf
        if self._processors is not None:
            logits = self._processors(logits.to(precision(logits)), drafted, first)
        return logits

    @torch.inference_mode()
    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens follow what was committed; cost does not grow with the history's length."""
        self._generated += len(tokens)
        if self._seen is not None or self._counts is not None:
            index = torch.tensor(tokens, dtype=torch.int64, device=self._device)  # [n]
            if self._seen is not None:
                self._seen[index] = True
            if self._counts is not None:
                self._counts.index_add_(0, index, torch.ones_like(index, dtype=torch.float32))
        if self._bad_words is not None:
            self._bad_words.commit(tokens)
        if self._processors is not None:
            self._processors.commit(tokens)

    def _rows(
        self, history: torch.Tensor, drafted: Sequence[int], first: int, rows: int
    ) -> torch.Tensor:
        """Return the history [N, V] of each row: what was committed, and the tokens drafted before it."""
        own = history.expand(rows, -1).clone()  # [N, V]
        pairs = [(row, token) for row in range(rows) for token in drafted[: first + row]]
        if pairs:
            index = torch.tensor(pairs, device=own.device).unbind(1)
            one = torch.ones((), dtype=own.dtype, device=own.device)
            own.index_put_(index, one, accumulate=own.dtype != torch.bool)
        return own

    def _forbidden(self, drafted: Sequence[int], first: int, rows: int) -> list[tuple[int, int]]:
        """Return (row, token) of what may not come next, besides what may never come."""
        if self._bad_words is None and self._generated + first >= self.params.min_tokens:
            return []
        pairs = []
        for row in range(rows):
            early = self._generated + first + row < self.params.min_tokens
            tokens = set(self._ends) if early else set()
            if self._bad_words is not None and (
                completing := self._bad_words.after(drafted[: first + row])
            ):
                tokens |= completing
                self._refuse_nothing_left(tokens)
            pairs += [(row, token) for token in tokens]
        return pairs

    def _refuse_nothing_left(self, tokens: Sequence[int] | set[int]) -> None:
        few = len(self._never) + len(tokens) < self.width
        if not few and len(self._never | set(tokens)) >= self.width:
            raise ValueError(
                "bad_words, logit_bias and min_tokens must leave a token, "
                f"but they forbid all {self.width}"
            )


def _token_ids(word: str | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(word, str):
        raise ValueError(f"bad_words must be token ids here, got {word!r}; see with_token_ids")
    return word


def _bias_tensor(bias: dict[int, float], width: int, device: torch.device) -> torch.Tensor:
    tensor = torch.zeros(width, dtype=torch.float64)  # [V]
    tensor[list(bias)] = torch.tensor(list(bias.values()), dtype=torch.float64)
    return tensor.to(device)
