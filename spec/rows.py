"""Plain decoding of many prompts at once, for writing corpora: rows leave when they end, others join.

One forward serves all rows. Rows stand at different lengths in one cache, so nothing is padded to
the longest row but the reading of its keys.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .cache import KVCache
from .cached import cache_argument, context_length, refuse_without_rollback, rope_switch
from .draws import Draws, GeneratorDraws
from .grouped import grouped_attention
from .params import SamplingParams, refuse_fields
from .sampling import token_probs
from .searches import best_tokens

PREFILL = 8  # prompts computed together: one alone uses a processor badly
WINDOW = 24  # prompts among which those of like length are put together: little padding, order kept

UNSUPPORTED = (
    "n", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words",
    "min_tokens", "stop", "include_stop_str_in_output", "logprobs",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class RowOutput:
    """What came of one prompt."""

    index: int  # which prompt
    token_ids: list[int]  # the end token included
    finish_reason: str  # "stop" or "length"
    states: torch.Tensor | None  # [tokens, d], what the head read for each token, where asked for


@dataclass(slots=True)
class _Row:
    index: int  # which prompt
    params: SamplingParams
    draws: Draws
    length: int  # tokens in the cache
    pending: int  # the token to feed next
    response: list[int] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)  # [d] each


@torch.inference_mode()
def decode_rows(
    model: Any,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    seeds: Sequence[int],
    rows: int,
    eos_token_ids: Sequence[int],
    width: int | None = None,
    keep_states: bool = False,
) -> Iterator[RowOutput]:
    """Yield outputs as they end.

    A row's draws come from its own seed, so its output does not depend on its neighbours but for
    the rounding of a batched forward. Equal prompts near each other are computed once.

    Args:
        model: a causal LM in eval mode with full attention in all layers.
        params: one a prompt; penalties and stop strings are not supported here.
        seeds: one a prompt.
        rows: how many are decoded at a time.
        width: logits are cut to this many entries.
        keep_states: also keep what the head reads at each token, in the model's dtype on its device.

    Raises:
        ValueError: if the model or a parameter is not supported, or a prompt leaves no room.
    """
    capacity = _capacity(model, prompts, params)
    shared = _common_start([list(prompt[:-1]) for prompt in prompts])
    batch = _Batch(model, shared, rows=min(rows, len(prompts)), capacity=capacity, width=width)
    waiting = _joining_order(prompts)
    ready: deque[tuple[int, int]] = deque()  # place among the computed prompts, which prompt
    active: dict[int, _Row] = {}  # slot -> row
    while True:
        for slot in (slot for slot in range(batch.rows) if slot not in active):
            if not ready and waiting:
                groups = [waiting.popleft() for _ in range(min(PREFILL, len(waiting)))]
                batch.compute([prompts[group[0]][:-1] for group in groups])
                ready.extend((place, i) for place, group in enumerate(groups) for i in group)
            if ready:
                place, index = ready.popleft()
                length = len(prompts[index]) - 1
                batch.put(slot, place, length)
                draws = GeneratorDraws(seeds[index])
                active[slot] = _Row(index, params[index], draws, length, prompts[index][-1])
        if not active:
            return
        tokens = _draw(batch.step(active), list(active.values()))
        for (slot, row), token in zip(list(active.items()), tokens, strict=True):
            if keep_states:
                row.states.append(batch.states[slot])
            row.length += 1
            row.pending = token
            row.response.append(token)
            reason = _finish_reason(row, eos_token_ids, capacity)
            if reason is not None:
                del active[slot]
                states = torch.stack(row.states) if keep_states else None  # [tokens, d]
                yield RowOutput(row.index, row.response, reason, states)


def _finish_reason(row: _Row, eos_token_ids: Sequence[int], capacity: int) -> str | None:
    params = row.params
    if row.pending in params.stop_token_ids:
        return "stop"
    if row.pending in eos_token_ids and not params.ignore_eos:
        return "stop"
    if len(row.response) == params.max_tokens or row.length + 1 >= capacity:
        return "length"
    return None


def _joining_order(prompts: Sequence[Sequence[int]]) -> deque[list[int]]:
    """Return groups of equal prompts, those of like length near each other."""
    equal: dict[tuple[int, ...], list[int]] = {}
    for index, prompt in enumerate(prompts):
        equal.setdefault(tuple(prompt), []).append(index)
    groups = list(equal.values())
    windows = [groups[at : at + WINDOW] for at in range(0, len(groups), WINDOW)]
    return deque(g for window in windows for g in sorted(window, key=lambda g: len(prompts[g[0]])))


def _common_start(prompts: Sequence[list[int]]) -> list[int]:
    """Return the tokens that all prompts begin with."""
    if not prompts:
        return []
    first, last = min(prompts), max(prompts)  # in this order, what these two share, all share
    pairs = zip(first, last, strict=False)
    return [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]


def full_attention(model: Any) -> bool:
    """Say whether every layer attends to everything before it: what rows of different length need."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is None
    return set(kinds) == {"full_attention"}


def _capacity(
    model: Any, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> int:
    """Return the tokens that the longest row may have.

    Raises:
        ValueError: if the model, a prompt or a parameter is not supported.
    """
    refuse_without_rollback(model)
    if not full_attention(model):
        raise ValueError(f"{type(model).__name__}: rows of different length need full attention")
    if len(params) != len(prompts):
        raise ValueError(f"params must be one a prompt, got {len(params)} of {len(prompts)}")
    for each in params:
        refuse_fields(each, UNSUPPORTED, "when decoding many rows")
    context = context_length(model)
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= context - 1:
            raise ValueError(
                f"prompt {index} must have 1 to {context - 1} tokens, got {len(prompt)}"
            )
    wanted = [len(prompt) + each.max_tokens for prompt, each in zip(prompts, params, strict=True)]
    capacity = min(max(wanted, default=0), context)
    switch = rope_switch(model)
    if switch is not None and capacity > switch:
        raise ValueError(
            f"prompts and max_tokens reach {capacity} tokens; {type(model).__name__} encodes positions "
            f"otherwise beyond {switch}, which rows of different length cannot share"
        )
    return capacity


def _draw(logits: torch.Tensor, rows: Sequence[_Row]) -> list[int]:
    """Draw each row's next token from logits [rows, V]; rows of the same parameters together."""
    tokens = [0] * len(rows)
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(id(row.params), []).append(place)
    for places in groups.values():
        params = rows[places[0]].params
        part = logits[places]  # [rows of these parameters, V]
        if params.greedy:
            drawn = best_tokens(part).tolist()
        else:
            laws = token_probs(part, params)
            drawn = [rows[place].draws.token(law) for place, law in zip(places, laws, strict=True)]
        for place, token in zip(places, drawn, strict=True):
            tokens[place] = int(token)
    return tokens


class _Batch:
    """The cache of all rows and the forwards over it."""

    def __init__(
        self, model: Any, shared: Sequence[int], *, rows: int, capacity: int, width: int | None
    ) -> None:
        """Allocate.

        Args:
            shared: tokens that every prompt begins with, such as a system prompt; computed once.
        """
        self.model, self.rows, self._width = model, rows, width
        self._head = model.get_output_embeddings()
        self._cache_argument = cache_argument(model)
        self._device = next(model.parameters()).device
        layers = model.config.get_text_config().num_hidden_layers
        self._cache = KVCache(layers, rows=rows, capacity=capacity)
        self._prompt = KVCache(layers, rows=PREFILL, capacity=capacity)
        self._shared = len(shared)
        self.states = torch.empty(0)  # [rows, d], what the head read in the last step
        self._feed([shared] * PREFILL)

    def compute(self, prompts: Sequence[Sequence[int]]) -> None:
        """Compute the keys and values of at most `PREFILL` prompts, for `put`."""
        longest = max(map(len, prompts))
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        padded += padded[:1] * (PREFILL - len(padded))  # the buffers have so many rows
        self._prompt.cover = self._shared  # what is padded lies after all that is real
        self._feed([prompt[self._shared :] for prompt in padded])

    def put(self, slot: int, place: int, length: int) -> None:
        """Copy the first `length` keys and values of a computed prompt into a slot."""
        for whole, part in zip(self._cache.layers, self._prompt.layers, strict=True):
            if not part.is_initialized:
                continue  # prompts of one token: nothing to put
            if not whole.is_initialized:
                whole.lazy_initialization(part.keys, part.values)
            whole.keys[slot, :, :length] = part.keys[place, :, :length]
            whole.values[slot, :, :length] = part.values[place, :, :length]

    def _feed(self, tokens: Sequence[Sequence[int]]) -> None:
        if tokens[0]:
            self.model(
                input_ids=torch.tensor([list(row) for row in tokens], device=self._device),
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: self._prompt},
            )

    def step(self, active: dict[int, _Row]) -> torch.Tensor:
        """Feed each active row's pending token and return logits [active rows, V]. Other rows idle."""
        lengths = torch.zeros(self.rows, dtype=torch.int64)  # [rows]
        tokens = torch.zeros(self.rows, 1, dtype=torch.int64)  # [rows, 1]
        for slot, row in active.items():
            lengths[slot], tokens[slot] = row.length, row.pending
        positions = lengths[:, None].to(self._device)  # [rows, 1]
        longest = int(lengths.max())
        self._cache.cover = longest
        self._cache.place_rows(positions)
        seen = torch.arange(longest + 1, device=self._device) <= positions  # [rows, longest + 1]
        hook = self._head.register_forward_pre_hook(self._keep_states)
        with hook, grouped_attention(self.model):
            logits = self.model(
                input_ids=tokens.to(self._device),
                attention_mask=seen,
                position_ids=positions,
                use_cache=True,
                **{self._cache_argument: self._cache},
            ).logits[:, -1]  # [rows, V]
        return logits[list(active), : self._width]  # type: ignore[no-any-return]

    def _keep_states(self, head: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        self.states = inputs[0][:, -1]  # [rows, d]
