"""What is asked of the decoder, checked before any work: a prompt, its params and its processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .bad_words import with_token_ids
from .cached import CachedModel
from .generation_config import default_params
from .law import TokenLaw
from .output import RequestOutput
from .params import SamplingParams
from .processors import Processor, copied
from .prompts import encode_text
from .stopping import StopRule, check_stops, eos_token_ids

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Request:
    """A checked prompt with what is asked of it."""

    tokens: list[int]
    params: SamplingParams  # bad words as token ids
    processors: Sequence[Processor]

    def end(self, context: int) -> int:
        """Return how many tokens prompt and output may have together."""
        return min(len(self.tokens) + self.params.max_tokens, context)

    def seed(self, index: int, sample: int) -> int | None:
        """Return the seed of one output: no other prompt or sample beside it has the same."""
        seed = self.params.seed
        return None if seed is None else seed + index + (sample << 32)


def begin_output(
    output: RequestOutput, request: Request, target: CachedModel, tokenizer: Any
) -> tuple[StopRule, TokenLaw]:
    """Return what follows an output as it is decoded: where it stops, and the law of its next token."""
    params, tokens = request.params, request.tokens
    ends = eos_token_ids(target.model)
    rule = StopRule(params, ends, tokenizer, request.end(target.context) - len(tokens))
    law = TokenLaw(
        params,
        tokens,
        width=vocabulary_width(target),
        eos_token_ids=ends,
        device=target.device,
        processors=request.processors,
    )
    output.token_ids = rule.token_ids
    output.logprobs = None if params.logprobs is None else []
    return rule, law


def check_request(
    target: CachedModel,
    tokenizer: Any,
    prompt: Prompt,
    params: SamplingParams | None,
    processors: Sequence[Processor],
    name: str = "",
) -> Request:
    """Return a prompt and what is asked of it, checked.

    Args:
        params: None takes the model's generation config.
        name: of the prompt, put before what is said of it.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    tokens = _encode(target, tokenizer, prompt, name)
    if params is None:
        params = default_params(target.model.generation_config, len(tokens))
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params must be SamplingParams or None, got {params!r}")
    check_stops(params, tokenizer)
    params = with_token_ids(params, tokenizer)
    params.check_vocabulary(vocabulary_width(target))
    copied(processors)  # raises where that cannot be done
    return Request(tokens, params, tuple(processors))


def vocabulary_width(target: CachedModel) -> int:
    """Return V: token ids lie below it."""
    return target.width or int(target.model.config.get_text_config().vocab_size)


def _encode(target: CachedModel, tokenizer: Any, prompt: Prompt, name: str) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError(f"{name}prompt: text needs a tokenizer, and the decoder has none")
        prompt = encode_text(tokenizer, prompt)
    if not isinstance(prompt, Sequence):
        raise ValueError(f"{name}prompt must be a text or a list of token ids, got {prompt!r}")
    tokens = [int(token) for token in prompt]
    if not tokens:
        raise ValueError(f"{name}prompt must have at least one token, got none")
    if len(tokens) >= target.context:
        raise ValueError(
            f"{name}prompt has {len(tokens)} tokens; the target's context is {target.context}, "
            f"so at most {target.context - 1} are allowed"
        )
    width = vocabulary_width(target)
    for token in tokens:
        if not 0 <= token < width:
            raise ValueError(f"{name}prompt must have token ids in [0, {width}), got {token}")
    return tokens


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Tell one prompt from several: a text, or a flat list of ids, is one."""
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
