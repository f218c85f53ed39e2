"""Many prompts at once: rows draft, accept and end each at its own pace, and prompts join as rows leave."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .batch_cached import CachedRows
from .batch_drafter import RowsDrafter
from .batch_draws import RowsDraws, Together
from .batch_round import decode_round_of_rows
from .batch_row import Row, describe
from .decoder import Prompt, RequestOutput, SpeculativeDecoder, _as_list
from .law import TokenLaw
from .params import SamplingParams
from .stopping import StopRule, eos_token_ids


@dataclass(frozen=True, slots=True)
class _Request:
    index: int
    tokens: list[int]
    params: SamplingParams
    end: int  # tokens at most


class BatchDecoder:
    """Decodes with the models, drafter and lookahead of a `SpeculativeDecoder`, many rows at a time.

    Each row has its own draws, laws, stop rule and policy: what it says does not depend on its
    neighbours, but for the rounding of a batched forward (and a learning policy's choices, which
    change γ, never the law). With a seed, prompt i says what `SpeculativeDecoder.generate` makes of it.

    Where a model's rows cannot share a forward, `obstacle` says why and prompts are decoded one by one.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        *,
        rows: int = 8,
        draws: RowsDraws[Any] | None = None,
    ) -> None:
        """Make a batch of `rows` slots.

        Args:
            rows: prompts decoded at a time.
            draws: how rows draw and verify; None: `Together`.

        Raises:
            ValueError: if `rows` is not a positive integer.
        """
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise ValueError(f"rows must be an integer >= 1, got {rows!r}")
        self.decoder, self.rows = decoder, rows
        self._draws: RowsDraws[Any] = Together() if draws is None else draws
        self._drafter: RowsDrafter | None = None
        self.obstacle: str | None = None
        target = decoder.target
        try:
            self._target = CachedRows(target.model, rows=rows, width=target.width)
            if decoder.drafter is not None:
                self._drafter = decoder.drafter.for_rows(rows)
        except ValueError as error:
            self.obstacle = str(error)
        self._policies = decoder.lookahead.for_rows(rows)  # by slot; they learn across requests

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Decode each prompt and return one output for each, in order.

        What a request alone is to blame for (a prompt that is too long, a stop string without a tokenizer,
        a policy or processor that raises) ends it with finish_reason "error" and the message in `error`.

        Args:
            prompts: texts or lists of token ids, or one of them.
            params: for all, where with a seed prompt i uses seed + i; or one for each prompt, taken as they
                are. None takes the model's own generation config.

        Raises:
            ValueError: if there are not as many params as prompts.
        """
        outputs = dict(self.stream(prompts, params))
        return [outputs[index] for index in range(len(outputs))]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Yield (prompt index, output) as outputs end; otherwise as `generate`."""
        waiting: deque[_Request] = deque()
        for index, (prompt, own) in enumerate(self._pairs(prompts, params)):
            try:
                tokens = self.decoder._encode(prompt)
            except Exception as error:
                yield index, RequestOutput([], finish_reason="error", error=describe(error))
                continue
            end = min(len(tokens) + own.max_tokens, self.decoder.target.context)
            waiting.append(_Request(index, tokens, own, end))
        if self.obstacle is not None:
            yield from self._row_by_row(waiting)
            return
        self._reset(max((request.end for request in waiting), default=0))
        active: list[Row] = []  # by slot, without gaps
        while waiting or active:
            yield from self._settle(active, waiting)
            if active:
                decode_round_of_rows(active, self._target, self._drafter, self._draws)

    def _pairs(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[tuple[Prompt, SamplingParams]]:
        """Give each prompt its own params."""
        listed = _as_list(prompts)
        if params is None:
            params = self.decoder.default_params()
        if isinstance(params, SamplingParams):
            seed = params.seed
            own = [
                params if seed is None else replace(params, seed=seed + index)
                for index in range(len(listed))
            ]
        else:
            own = list(params)
        if len(own) != len(listed):
            raise ValueError(f"params must be one or {len(listed)}, one a prompt, got {len(own)}")
        return list(zip(listed, own, strict=True))

    def _row_by_row(self, requests: Iterable[_Request]) -> Iterator[tuple[int, RequestOutput]]:
        for request in requests:
            try:
                (output,) = self.decoder.generate([request.tokens], request.params)
            except Exception as error:
                output = RequestOutput(request.tokens, finish_reason="error", error=describe(error))
            yield request.index, output

    def _reset(self, capacity: int) -> None:
        self._target.reset(capacity)
        if self._drafter is not None:
            self._drafter.reset(capacity)

    def _settle(
        self, active: list[Row], waiting: deque[_Request]
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Let ended rows leave and prompts take their slots, then close the gaps that are left."""
        ended = [row for row in active if row.ended]
        for row in ended:
            yield row.index, _output(row)
        free = deque([*(row.slot for row in ended), *range(len(active), self.rows)])
        going = {row.slot: row for row in active if not row.ended}
        joined = []
        while free and waiting:
            request = waiting.popleft()
            try:
                row = self._open(request, free[0])
            except Exception as error:
                output = RequestOutput(request.tokens, finish_reason="error", error=describe(error))
                yield request.index, output
                continue
            going[free.popleft()] = row
            joined.append(row)
        self._prefill(joined)
        for slot in range(len(going)):
            if slot not in going:
                going[slot] = self._move(going.pop(max(going)), slot)
        active[:] = [going[slot] for slot in range(len(going))]

    def _open(self, request: _Request, slot: int) -> Row:
        """Return the row of a request that takes a free slot."""
        target, tokenizer = self._target, self.decoder.tokenizer
        tokens, params = request.tokens, request.params
        ends = eos_token_ids(target.model)
        row = Row(
            index=request.index,
            slot=slot,
            prompt_length=len(tokens),
            tokens=list(tokens),
            end=request.end,
            law=TokenLaw(
                params,
                tokens,
                width=self.decoder.target.width or 0,
                eos_token_ids=ends,
                device=target.device,
            ),
            rule=StopRule(params, ends, tokenizer, request.end - len(tokens)),
            policy=self._policies[slot],
            source=self._draws.source(params.seed),
        )
        row.policy.begin_request(params)
        target.open(slot)
        if self._drafter is not None:
            self._drafter.open(slot)
        return row

    def _prefill(self, rows: Sequence[Row]) -> None:
        """Cover all but the last prompt token of rows that join; the seconds are shared by tokens."""
        reading = sorted((row for row in rows if len(row.tokens) > 1), key=lambda row: row.slot)
        if not reading:
            return
        begun = time.perf_counter()
        prompts = [row.tokens[:-1] for row in reading]
        self._target.advance([row.slot for row in reading], prompts, [1] * len(reading))
        seconds = time.perf_counter() - begun
        for row, prompt in zip(reading, prompts, strict=True):
            row.stats.prefill_seconds += seconds * len(prompt) / sum(map(len, prompts))

    def _move(self, row: Row, slot: int) -> Row:
        self._target.move(row.slot, slot)
        if self._drafter is not None:
            self._drafter.move(row.slot, slot)
        policies = self._policies
        policies[row.slot], policies[slot] = policies[slot], policies[row.slot]
        row.slot = slot
        return row


def _output(row: Row) -> RequestOutput:
    return RequestOutput(
        row.tokens[: row.prompt_length],
        row.rule.token_ids,
        row.rule.text,
        "error" if row.error is not None else row.rule.finish_reason,
        row.stats,
        row.error,
    )
