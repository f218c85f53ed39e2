"""Many prompts at once: rows draft, accept and end each at its own pace, and prompts join as rows leave."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from .batch_cached import CachedRows
from .batch_drafter import RowsDrafter
from .batch_draws import RowsDraws, Together
from .batch_round import decode_round_of_rows
from .batch_row import Row
from .decoder import SpeculativeDecoder
from .output import RequestOutput, raise_or_warn
from .params import SamplingParams, check_integer
from .processors import Processor
from .request import Prompt, Request, as_list, begin_output, check_request


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One output that is to be decoded: prompts with n > 1 have several."""

    index: int  # which prompt
    request: Request
    seed: int | None
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
        check_integer("rows", rows, low=1)
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
        *,
        logits_processors: Sequence[Processor] = (),
    ) -> list[RequestOutput]:
        """Decode each prompt and return one output for each, in order.

        As in `SpeculativeDecoder.generate`, all is checked before any work, and what goes wrong later in
        one row is a warning and that output's `error`; the others go on.

        Args:
            prompts: texts or lists of token ids, or one of them.
            params: for all, where with a seed prompt i uses seed + i; or one for each prompt, taken as they
                are. None takes the model's own generation config.
            logits_processors: see `SpeculativeDecoder.generate`; each row has its own copies.

        Raises:
            ValueError: naming what is asked for and cannot be done.
        """
        ended = dict(self.as_ended(prompts, params, logits_processors=logits_processors))
        results = [ended[index] for index in range(len(ended))]
        raise_or_warn(results)
        return results

    def as_ended(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        logits_processors: Sequence[Processor] = (),
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Yield (prompt index, output) when all n outputs of a prompt have ended; an error is in its output.

        Otherwise as `generate`.
        """
        waiting = self._waiting(as_list(prompts), params, logits_processors)
        missing = Counter(each.index for each in waiting)
        outputs: dict[int, list[tuple[int, RequestOutput]]] = {index: [] for index in missing}
        for place, output in self._decode(waiting):
            index = waiting[place].index
            outputs[index].append((place, output))
            if len(outputs[index]) == missing[index]:
                first, *others = (each for _, each in sorted(outputs.pop(index), key=itemgetter(0)))
                first.others = others
                yield index, first

    def _waiting(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        processors: Sequence[Processor],
    ) -> list[_Waiting]:
        """Check all that is asked for and return it output by output."""
        target, tokenizer = self.decoder.target, self.decoder.tokenizer
        own: list[SamplingParams | None]
        if params is None or isinstance(params, SamplingParams):
            own, shared = [params] * len(prompts), True
        else:
            own, shared = list(params), False
        if len(own) != len(prompts):
            raise ValueError(f"params must be one or {len(prompts)}, one a prompt, got {len(own)}")
        waiting = []
        for index, (prompt, asked) in enumerate(zip(prompts, own, strict=True)):
            name = f"prompts[{index}]: "
            request = check_request(target, tokenizer, prompt, asked, processors, name)
            end = request.end(target.context)
            for sample in range(request.params.n):
                seed = request.seed(index if shared else 0, sample)
                waiting.append(_Waiting(index, request, seed, end))
        return waiting

    def _decode(self, waiting: Sequence[_Waiting]) -> Iterator[tuple[int, RequestOutput]]:
        """Yield (place in `waiting`, output) as outputs end."""
        if self.obstacle is not None:
            yield from self._row_by_row(waiting)
            return
        capacity = max((each.end for each in waiting), default=0)
        self._target.reset(capacity)
        if self._drafter is not None:
            self._drafter.reset(capacity)
        queue = deque(enumerate(waiting))
        active: list[Row] = []  # by slot, without gaps
        while queue or active:
            yield from self._settle(active, queue)
            if active:
                decode_round_of_rows(active, self._target, self._drafter, self._draws)

    def _row_by_row(self, waiting: Sequence[_Waiting]) -> Iterator[tuple[int, RequestOutput]]:
        for place, each in enumerate(waiting):
            own = replace(each.request, params=replace(each.request.params, seed=each.seed))
            with self.decoder._turn.taken():
                output = self.decoder._decode_whole(own, 0, 0)
            yield place, output

    def _settle(
        self, active: list[Row], queue: deque[tuple[int, _Waiting]]
    ) -> Iterator[tuple[int, RequestOutput]]:
        """Let ended rows leave and prompts take their slots, then close the gaps that are left."""
        ended = [row for row in active if row.ended]
        for row in ended:
            yield row.place, row.finish()
        free = deque([*(row.slot for row in ended), *range(len(active), self.rows)])
        going = {row.slot: row for row in active if not row.ended}
        joined = []
        while free and queue:
            place, each = queue.popleft()
            output = RequestOutput(list(each.request.tokens))
            try:
                row = self._open(place, each, output, free[0])
            except Exception as error:
                output.finish_reason, output.error = "error", error
                yield place, output
                continue
            going[free.popleft()] = row
            joined.append(row)
        self._prefill(joined)
        for slot in range(len(going)):
            if slot not in going:
                going[slot] = self._move(going.pop(max(going)), slot)
        active[:] = [going[slot] for slot in range(len(going))]

    def _open(self, place: int, each: _Waiting, output: RequestOutput, slot: int) -> Row:
        """Return the row of an output that takes a free slot."""
        request, decoder = each.request, self.decoder
        params = request.params
        rule, law = begin_output(output, request, decoder.target, decoder.tokenizer)
        policy = self._policies[slot]
        policy.begin_request(params)
        self._target.open(slot)
        if self._drafter is not None:
            self._drafter.open(slot)
        return Row(
            place=place,
            output=output,
            logprobs=params.logprobs,
            slot=slot,
            tokens=list(request.tokens),
            end=each.end,
            law=law,
            rule=rule,
            policy=policy,
            source=self._draws.source(each.seed),
        )

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
            share = len(prompt) / sum(map(len, prompts))
            row.output.stats.prefill_seconds += seconds * share

    def _move(self, row: Row, slot: int) -> Row:
        self._target.move(row.slot, slot)
        if self._drafter is not None:
            self._drafter.move(row.slot, slot)
        policies = self._policies
        policies[row.slot], policies[slot] = policies[slot], policies[row.slot]
        row.slot = slot
        return row
