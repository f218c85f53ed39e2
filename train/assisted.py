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
    """One answer and what it took."""

    prompt_id: str
    prompt: list[int]
    tokens: list[int]
    rounds: int  # target forwards
    drafted: int

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept, not past the answer's end: each forward adds one of its own."""
        return len(self.tokens) - self.rounds

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
        ids, tokens, stats = output.prompt_token_ids, output.token_ids, output.stats
        answers.append(Greedy(prompt.id, ids, tokens, stats.rounds, stats.drafted))
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
            answers.append(Greedy(prompt.id, ids[0].tolist(), tokens, rounds, drafted))
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
