"""The target answers a batch of prompts, through transformers' `generate`.

The answers follow the target's own law at the temperature asked for: nothing of the checkpoint's
generation config (its top-k, penalties, forced tokens) takes part but the end tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from ..spec import eos_token_ids

# A dynamic cache grows by concatenation, allocated anew at every step, and on a CPU the page faults
# can outweigh the arithmetic. A static one is allocated once per batch, for just the room needed.
# With left padding it gave the tokens of single rows in all 18 families tried, recurrent ones too.
_CACHE = "static"


def answer_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_new_tokens: int,
    width: int,
    seed: int,
    top_p: float = 1.0,
    top_k: int = 0,
) -> list[list[int]]:
    """Return the response tokens of each prompt, its end token included, nothing after it.

    The whole batch draws from one stream, so a response is reproducible with its batch, not alone.

    Args:
        model: a causal LM in eval mode.
        prompts: B lists of token ids.
        temperature: 0 decodes greedily.
        width: V; head rows from this on are padding and never drawn.
        top_p, top_k: what is drawn from, where it is not greedy; 1 and 0: everything.
    """
    ends = eos_token_ids(model)
    settings = _settings(ends, temperature, max_new_tokens, unused=range(width, _head_rows(model)))
    if temperature > 0.0:
        settings.top_p, settings.top_k = top_p, top_k
    longest = max(map(len, prompts))
    padded = [[settings.pad_token_id] * (longest - len(ids)) + list(ids) for ids in prompts]
    input_ids = torch.tensor(padded, device=model.device)  # [B, longest]
    lengths = torch.tensor([[len(ids)] for ids in prompts], device=model.device)  # [B, 1]
    columns = torch.arange(longest, device=model.device)  # [longest]
    mask = (columns >= longest - lengths).long()  # [B, longest]
    # `generate` fills what our settings leave open from the model's own, and leaves notes on the
    # model. A shallow copy shares the weights and keeps both away from the caller's object.
    speaker = copy.copy(model)
    speaker.generation_config = settings
    with _seeded(model.device, seed), torch.inference_mode():
        output = speaker.generate(input_ids, attention_mask=mask, generation_config=settings)
    return [_upto_end(row, set(ends)) for row in output[:, longest:].tolist()]


def _settings(
    ends: list[int], temperature: float, max_new_tokens: int, unused: range
) -> GenerationConfig:
    sampled = temperature > 0.0
    return GenerationConfig(
        do_sample=sampled,
        temperature=temperature if sampled else None,
        top_k=0 if sampled else None,  # left open, transformers would take 50
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,  # never attended to, and cut off after an end
        suppress_tokens=list(unused) or None,
        cache_implementation=_CACHE,
        disable_compile=True,  # minutes of compilation for shapes that change with every batch
    )


def _head_rows(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the global streams, the only ones `generate` draws from, and put them back after."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _upto_end(response: list[int], ends: set[int]) -> list[int]:
    for position, token in enumerate(response):
        if token in ends:
            return response[: position + 1]
    return response
