"""The target as a teacher: its last hidden states, remembered, and its head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .batches import Example
from .divergences import Law
from .heads import at_least_float32, cap_logits, check_split, divided, head_of, hidden_states


class Teacher:
    """Answers what the target thinks at the supervised positions of examples.

    The body is most of a teacher's cost and does not change, so the hidden states of an example are
    computed once and kept in memory while there is room; logits are made from them when needed.
    Nothing here takes a gradient.
    """

    def __init__(
        self,
        model: Any,
        *,
        width: int | None = None,
        cache_gb: float = 0.0,
        saved: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Wrap the target, which is put in eval mode and takes no gradients from here on.

        Args:
            model: a causal LM.
            width: V, logits used: padding of the vocabulary is cut off; None keeps all rows.
            cache_gb: memory for hidden states, in GB; examples beyond it are computed at each call.
            saved: row id to this model's states [response tokens, d], of some corpus rows.
        """
        self.model = model.eval().requires_grad_(False)
        self.head = head_of(model)
        if width is not None:
            self.head = self.head.first(width)
        self._room = int(cache_gb * 1e9)  # bytes
        self._saved = saved or {}
        self._hidden: dict[Example, torch.Tensor] = {}
        self._summary: dict[tuple[Example, float], tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def width(self) -> int:
        """V, entries of the target's law."""
        return int(self.head.weight.shape[0])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, V] of hidden states [N, d], by the target's own layer, packed or not."""
        raw = self.model.get_output_embeddings()(hidden.to(self.head.weight.dtype))
        return cap_logits(at_least_float32(raw[:, : self.width]), self.head.softcap)

    @property
    def device(self) -> torch.device:
        """Where the target is."""
        return self.head.weight.device

    def check(self, example: Example) -> None:
        """Raise a ValueError where logits are not the head on the states, or saved states are others."""
        check_split(self.model, example.input_ids[None].to(self.device))
        if example.row_id in self._saved:
            saved, computed = self._saved_of(example), self._compute(example)
            error = (saved - computed).abs().max() / computed.abs().max()
            if not error <= torch.finfo(saved.dtype).eps ** 0.5:
                raise ValueError(
                    f"corpus: the saved states of row {example.row_id} differ from the target's by "
                    f"{error:.2g} of the largest; delete its states-*.safetensors"
                )

    @torch.no_grad()
    def hidden(self, examples: Sequence[Example]) -> torch.Tensor:
        """Return the hidden states at the supervised positions, example by example: [N, d]."""
        return torch.cat([self._hidden_of(example) for example in examples])

    def forget(self, examples: Sequence[Example]) -> None:
        """Keep nothing of examples that will not be asked for again; their memory is free for others."""
        gone = set(examples)
        for example in gone & self._hidden.keys():
            states = self._hidden.pop(example)
            self._room += states.numel() * states.element_size()
        for key in [key for key in self._summary if key[0] in gone]:
            del self._summary[key]

    def _hidden_of(self, example: Example) -> torch.Tensor:
        if example in self._hidden:
            return self._hidden[example].to(self.device)
        if example.row_id in self._saved:
            return self._saved_of(example)
        states = self._compute(example)
        size = states.numel() * states.element_size()
        if size <= self._room:  # no eviction: epochs visit rows in turn, it would only thrash
            self._room -= size
            self._hidden[example] = states.cpu()
        return states

    def _saved_of(self, example: Example) -> torch.Tensor:
        """Return the saved states: [supervised, d]; a response cut at its end needs the first of them."""
        states = self._saved[example.row_id]
        if len(states) < example.supervised:
            raise ValueError(
                f"corpus: row {example.row_id} has {example.supervised} response tokens and saved "
                f"states of {len(states)}; delete its states-*.safetensors"
            )
        return states[: example.supervised].to(self.device)

    @torch.no_grad()
    def _compute(self, example: Example) -> torch.Tensor:
        # Alone, so that rounding does not depend on what it is batched with: a run is the same, bit
        # for bit, whatever was remembered before.
        states = hidden_states(self.model, example.input_ids[None].to(self.device))[0]  # [T, d]
        return states[
            example.positions.to(states.device)
        ]  # a copy: holds on to no more than it shows

    @torch.no_grad()
    def summary(
        self,
        examples: Sequence[Example],
        hidden: torch.Tensor,
        chunk_tokens: int,
        temperature: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what needs the whole vocabulary: log Σ exp of the logits [N] and their argmax [N].

        With it, the target's unrenormalised law on any part of the vocabulary needs the logits of
        that part only. Always remembered: 12 bytes a token.

        Args:
            hidden: [N, d], the hidden states of the examples.
            temperature: divides the logits.
        """
        sizes = [example.supervised for example in examples]
        log_sums, best = [], []
        for example, states in zip(examples, torch.split(hidden, sizes), strict=True):
            key = (example, temperature)
            if key not in self._summary:
                self._summary[key] = self._summarise(states, chunk_tokens, temperature)
            log_sums.append(self._summary[key][0])
            best.append(self._summary[key][1])
        return torch.cat(log_sums), torch.cat(best)

    def log_sums(
        self,
        examples: Sequence[Example],
        hidden: torch.Tensor,
        law: Law,
        columns: torch.Tensor,
        *,
        chunk_tokens: int,
        temperature: float,
    ) -> torch.Tensor | None:
        """Return the log [N] of what makes the logits of `columns` the law that a loss is given.

        Args:
            examples: of N supervised tokens together.
            hidden: [N, d], their hidden states.
            law: see `divergences`.
            columns: [V_draft], the tokens that the draft can propose.
            chunk_tokens: tokens whose logits exist at the same time.
            temperature: divides the logits.

        Returns:
            None where the logits of `columns` say it all; inf where the law has nothing on them.
        """
        if law == "kept":
            return None
        log_sums, best = self.summary(examples, hidden, chunk_tokens, temperature)
        if law == "whole":
            return log_sums
        return log_sums.masked_fill(~torch.isin(best, columns.to(best.device)), torch.inf)

    def _summarise(
        self, hidden: torch.Tensor, chunk_tokens: int, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_sums, best = [], []
        for chunk in torch.split(hidden, chunk_tokens):
            logits = divided(self.logits(chunk), temperature)  # [n, V]
            log_sums.append(logits.logsumexp(-1))
            best.append(logits.argmax(-1))
        return torch.cat(log_sums), torch.cat(best)
