"""Arms of the decode benchmark: transformers' ways to decode, and ours, on the same two models' weights.

Which kernels multiply them is the models': `unpacked` ones are as transformers loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decode_probes import Marks
from foredraft.spec import (
    FixedLookahead,
    LookaheadPolicy,
    ModelDrafter,
    ReadsTokens,
    RoundOutcome,
    RoundStart,
    Said,
    SamplingParams,
    SpeculativeDecoder,
    foredraft_generate,
    shared_copy,
    show_tokens,
)

LOOKUP_TOKENS = 10  # transformers' own default of its prompt lookup
Decode = Callable[[Sequence[int], Marks | None], list[int]]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to decode."""

    name: str
    about: str
    models: tuple[torch.nn.Module, ...]  # the target, and the draft where there is one
    decode: Decode  # prompt, marks to make (None: none) -> generated tokens
    bases: tuple[str, ...] = ()  # arms that it is held against besides "generate", where they ran


class SpreadHead(torch.nn.Module):
    """A cut head that gives logits over the whole vocabulary; tokens without a row are impossible."""

    def __init__(self, head: torch.nn.Linear, kept: torch.Tensor, width: int) -> None:
        super().__init__()
        self.head, self.kept, self.width = head, kept, width

    @property
    def weight(self) -> torch.Tensor:
        return self.head.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        whole = hidden.new_full((*hidden.shape[:-1], self.width), -torch.inf)  # [.., V]
        whole[..., self.kept] = self.head(hidden)
        return whole


def as_assistant(draft: Any, kept: torch.Tensor | None, width: int) -> Any:
    """Return a copy of the draft that shares its weights and layouts, for transformers as an assistant.

    Args:
        kept: [V_draft], where the draft's head is cut: the copy keeps the cut head and spreads its
            logits, so that both sides run the same draft.
        width: V.
    """
    assistant = shared_copy(draft)
    if kept is not None:
        head = assistant.get_output_embeddings()
        assistant.set_output_embeddings(SpreadHead(head, kept, width))
    return assistant


class MarkingPolicy(ReadsTokens):
    """A policy that also marks the end of each round."""

    def __init__(self, policy: LookaheadPolicy) -> None:
        self.gamma_max, self.reads_logits = policy.gamma_max, policy.reads_logits
        self.marks: Marks | None = None
        self._policy = policy

    def begin_request(self, params: SamplingParams) -> None:
        self._policy.begin_request(params)

    def begin_round(self, start: RoundStart) -> int:
        return self._policy.begin_round(start)

    def wants_step(self, depth: int) -> bool:
        return self._policy.wants_step(depth)

    def read(self, said: Said) -> None:
        show_tokens(self._policy, said)

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        return self._policy.wants_token(depth, draft_logits)

    def end_round(self, outcome: RoundOutcome) -> None:
        self._policy.end_round(outcome)
        if self.marks is not None:
            self.marks.round(outcome.accepted + 1)

    def for_rows(self, count: int) -> list[LookaheadPolicy]:
        raise ValueError("rounds are marked one request at a time, not in a batch")


class MarkingStreamer:
    """A streamer that marks a round at each put after the prompt's."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self._marks.round(value.numel())
        self._prompt_seen = True

    def end(self) -> None:
        pass


def generate_arm(
    name: str,
    about: str,
    target: Any,
    params: SamplingParams,
    *,
    assistant: Any = None,
    lookup: int | None = None,
    bases: tuple[str, ...] = (),
) -> Arm:
    """Return an arm that calls transformers' `generate`.

    Args:
        assistant: None or the model for `assistant_model`.
        lookup: None or the tokens of its prompt lookup.
    """
    arguments = generate_arguments(params)
    if assistant is not None:
        arguments["assistant_model"] = assistant
    if lookup is not None:
        arguments["prompt_lookup_num_tokens"] = lookup

    def decode(prompt: Sequence[int], marks: Marks | None) -> list[int]:
        streamer = None if marks is None else MarkingStreamer(marks)
        return _call(target, prompt, arguments | {"streamer": streamer}, params.seed)

    models = (target,) if assistant is None else (target, assistant)
    return Arm(name, about, models, decode, bases)


def assisted_arm(
    name: str,
    about: str,
    target: Any,
    assistant: Any,
    params: SamplingParams,
    *,
    tokens: int,
    schedule: str,
    confidence: float,
    bases: tuple[str, ...] = (),
) -> Arm:
    """Return an arm of transformers' assisted generation.

    The three settings go to the assistant's own generation config: given to `generate`, transformers
    ignores them (its issue 40739).
    """
    config = assistant.generation_config
    config.num_assistant_tokens = tokens
    config.num_assistant_tokens_schedule = schedule
    config.assistant_confidence_threshold = confidence
    return generate_arm(name, about, target, params, assistant=assistant, bases=bases)


def ours_arm(
    name: str,
    about: str,
    decoder: SpeculativeDecoder,
    policy: LookaheadPolicy,
    params: SamplingParams,
    *,
    bases: tuple[str, ...] = (),
) -> Arm:
    """Return an arm of our decoder."""
    marking = MarkingPolicy(policy)
    decoder = decoder.with_lookahead(marking)

    def decode(prompt: Sequence[int], marks: Marks | None) -> list[int]:
        marking.marks = marks
        return decoder.generate([list(prompt)], params)[0].token_ids

    drafter = decoder.drafter if policy.gamma_max > 0 else None
    models = [decoder.target.model]
    if isinstance(drafter, ModelDrafter):
        models.append(drafter.cached.model)
    return Arm(name, about, tuple(models), decode, bases)


def drop_in_arm(
    name: str,
    about: str,
    target: Any,
    drafter: ModelDrafter,
    gamma: int,
    params: SamplingParams,
    *,
    bases: tuple[str, ...] = (),
) -> Arm:
    """Return an arm of our loop inside `generate`."""
    marking = MarkingPolicy(FixedLookahead(gamma))
    ours = foredraft_generate(drafter, marking)
    arguments = generate_arguments(params) | {"custom_generate": ours}

    def decode(prompt: Sequence[int], marks: Marks | None) -> list[int]:
        marking.marks = marks
        return _call(target, prompt, arguments, params.seed)

    return Arm(name, about, (target, drafter.cached.model), decode, bases)


def generate_arguments(params: SamplingParams) -> dict[str, Any]:
    """Return the arguments of `generate` that ask for what `params` asks for."""
    arguments: dict[str, Any] = {
        "do_sample": not params.greedy,
        "max_new_tokens": params.max_tokens,
        "repetition_penalty": params.repetition_penalty,
        "pad_token_id": 0,
    }
    if not params.greedy:
        arguments |= {
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
        }
    return arguments


def _call(
    target: Any, prompt: Sequence[int], arguments: dict[str, Any], seed: int | None
) -> list[int]:
    ids = torch.tensor([list(prompt)], device=target.device)  # [1, L]
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        output = target.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens
