"""Greedy decoding with one draft and one γ, by our loop and by transformers' `assistant_model`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from ..data import Prompt
from ..spec import (
    FixedLookahead,
    ModelDrafter,
    SamplingParams,
    SpeculativeDecoder,
    eos_token_ids,
    first_difference,
    render_chat,
    target_width,
)


@dataclass(frozen=True, slots=True)
class Greedy:
    """One answer and what it took, or the counts of several."""

    prompt_id: str
    prompt: list[int]
    tokens: list[int]
    rounds: int  # target forwards
    drafted: int
    accepted: int  # of those that were kept: not past the answer's end

    @classmethod
    def nothing(cls) -> Greedy:
        """Return what sums begin with."""
        return cls("", [], [], 0, 0, 0)

    def __add__(self, other: Greedy) -> Greedy:
        """Return the counts of both, without their tokens."""
        rounds, drafted = self.rounds + other.rounds, self.drafted + other.drafted
        return Greedy("", [], [], rounds, drafted, self.accepted + other.accepted)

    @property
    def per_forward(self) -> float:
        """Accepted tokens per target forward; a rate of what was drafted depends on the tokens that a
        draft adds after an end token, which our loop does and transformers does not."""
        return self.accepted / self.rounds if self.rounds else float("nan")

    def ties_with(self, other: Greedy, target: Any) -> bool:
        """Say whether rounding explains all that differs between two answers to a prompt."""
        if self.tokens == other.tokens:
            return True
        difference = first_difference(target, self.prompt, self.tokens, other.tokens)
        return difference is not None and difference.tie


def with_foredraft(
    target: Any, tokenizer: Any, draft: Any, prompts: Sequence[Prompt], gamma: int, max_tokens: int
) -> list[Greedy]:
    """Return an answer a prompt, by our loop."""
    drafter = ModelDrafter(draft, width=target_width(target, tokenizer))
    decoder = SpeculativeDecoder(target, tokenizer, drafter, FixedLookahead(gamma))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    answers = []
    for prompt in prompts:
        output = decoder.chat([prompt.messages], params)[0]
        rounds, tokens = output.stats.rounds, output.token_ids
        answers.append(
            Greedy(
                prompt.id,
                output.prompt_token_ids,
                tokens,
                rounds,
                output.stats.drafted,
                len(tokens) - rounds,
            )
        )
    return answers


def with_transformers(
    target: Any, tokenizer: Any, draft: Any, prompts: Sequence[Prompt], gamma: int, max_tokens: int
) -> list[Greedy]:
    """Return an answer a prompt, by `generate(assistant_model=draft)` with γ constant.

    It returns no counts: a hook reads from the target's forwards how many tokens each was to verify.
    """
    device = next(target.parameters()).device
    ends = eos_token_ids(target)
    # Of a mask of ones, transformers 5.24 passes the draft none, and the draft guesses one: tokens equal
    # to a padding id of their own would be hidden from it, wherever in the prompt. An end is taken.
    pad = ends[0] if ends else None
    plain = GenerationConfig(do_sample=False, eos_token_id=ends or None, pad_token_id=pad)
    constant = GenerationConfig(
        num_assistant_tokens=gamma,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    answers = []
    with _configured(target, plain), _configured(draft, constant), _fed(target) as lengths:
        for prompt in prompts:
            lengths.clear()
            ids = torch.tensor([render_chat(tokenizer, prompt.messages)], device=device)  # [1, T]
            with torch.inference_mode():
                whole = target.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    assistant_model=draft,
                    max_new_tokens=max_tokens,
                )
            start, rounds = ids.shape[1], len(lengths)
            tokens = whole[0, start:].tolist()
            drafted = sum(lengths) - start - (rounds - 1)  # the first is fed the prompt too
            answers.append(
                Greedy(prompt.id, ids[0].tolist(), tokens, rounds, drafted, len(tokens) - rounds)
            )
    return answers


@contextmanager
def _fed(model: Any) -> Iterator[list[int]]:
    """Yield a list that grows by the tokens of each forward while the block runs."""
    lengths: list[int] = []

    def note(_: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        lengths.append((args[0] if args else inputs["input_ids"]).shape[1])

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield lengths
    finally:
        hook.remove()


@contextmanager
def _configured(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Give a model another generation config while the block runs."""
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before
