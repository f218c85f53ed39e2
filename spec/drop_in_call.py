"""Reads what a call of transformers' `generate` asks for, and refuses by name what cannot be honoured."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.generation import logits_process as stock

from .params import SamplingParams

# Fields of the generation config that change what comes out, and the values that do not.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0.0),
    "constraints": (None,),
    "force_words_ids": (None,),
    "penalty_alpha": (None, 0.0),
    "dola_layers": (None,),
    "guidance_scale": (None, 1.0),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "cache_implementation": (None, "dynamic", "static"),
    "assistant_ensemble_weight": (None,),
}
# Fields that steer transformers' own speculation. A model's own config may carry them; a call may not.
OTHER_DRAFTERS: dict[str, tuple[Any, ...]] = {
    "num_assistant_tokens": (None, 20),
    "num_assistant_tokens_schedule": (None, "constant"),
    "assistant_confidence_threshold": (None, 0.4),
    "assistant_early_exit": (None,),
    "prompt_lookup_num_tokens": (None,),
    "max_matching_ngram_size": (None,),
    "use_mtp": (None, False),
    "speculation_type": (None,),
}
PREPARED = (
    "attention_mask",
    "position_ids",
    "cache",
    "past_key_values",
    "use_cache",
    "logits_to_keep",
)


def refuse_unsupported(
    model: Any,
    config: GenerationConfig,
    processors: LogitsProcessorList,
    model_kwargs: Mapping[str, Any],
) -> None:
    """Raise where the call asks for something that this loop does not do.

    Raises:
        ValueError: naming the argument, its value and what is allowed.
    """
    for name, allowed in UNSUPPORTED.items():
        value = getattr(config, name, None)
        if value not in allowed:
            raise ValueError(f"{name} = {value!r} is not supported; allowed: {_words(allowed)}")
    for name, allowed in OTHER_DRAFTERS.items():
        value = getattr(config, name, None)
        if value not in allowed and value != getattr(model.generation_config, name, None):
            raise ValueError(
                f"{name} = {value!r} would be ignored: what drafts, and how far ahead, is said by "
                "foredraft_generate(draft=…, lookahead=…)"
            )
    for processor in processors:
        if isinstance(processor, stock.UnbatchedClassifierFreeGuidanceLogitsProcessor):
            raise ValueError(
                f"logits_processor: {type(processor).__name__} runs the model itself, with a cache of "
                "its own that a rejected token could not be taken out of"
            )
    for name in ("cache", "past_key_values"):
        if getattr(model_kwargs.get(name), "_is_user_defined", False):
            raise ValueError(
                f"{name}: foredraft keeps its own cache; pass the whole prompt instead"
            )
    extra = [name for name, v in model_kwargs.items() if v is not None and name not in PREPARED]
    if extra:
        raise ValueError(
            f"{', '.join(extra)}: arguments of the model are not supported but for "
            "input_ids, attention_mask and position_ids"
        )


def unpadded(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> list[list[int]]:
    """Return each row's tokens without its left padding.

    Args:
        input_ids: [B, L].

    Raises:
        ValueError: if a mask has holes, a row is empty, or positions are not counted from the first
            token.
    """
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(input_ids)  # [B, L]
    if mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask must have the shape of input_ids, {list(input_ids.shape)}, "
            f"got {list(mask.shape)}"
        )
    kept = mask != 0
    positions = model_kwargs.get("position_ids")
    counted = (kept.long().cumsum(-1) - 1).clamp(min=0)
    if positions is not None and not bool(((positions == counted) | ~kept).all()):
        raise ValueError("position_ids must count each row's tokens from 0")
    rows = []
    for row, (ids, keep) in enumerate(zip(input_ids.tolist(), kept.tolist(), strict=True)):
        padding = len(ids) - sum(keep)
        if any(keep[:padding]) or not keep[-1:] == [True]:
            raise ValueError(
                f"attention_mask: row {row} must be padded on the left only and have a token"
            )
        rows.append(ids[padding:])
    return rows


def asked_params(config: GenerationConfig) -> SamplingParams:
    """Return the sampling settings of a config; a policy is told these."""
    if not config.do_sample:
        return SamplingParams(temperature=0.0, repetition_penalty=config.repetition_penalty or 1.0)
    return SamplingParams(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_k=config.top_k or 0,
        top_p=1.0 if config.top_p is None else config.top_p,
        min_p=config.min_p or 0.0,
        repetition_penalty=config.repetition_penalty or 1.0,
    )


def dropped_arguments(model: Any) -> dict[str, Any]:
    """Return `streamer`, `assistant_model` and `synced_gpus` of the `generate` call that is running.

    transformers 5.24 hands a callable none of the three, without a word: a reader of the streamer would
    wait for ever. They are read where they still are, in the caller's frame.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals["self"] is model:
            names = ("streamer", "assistant_model", "synced_gpus")
            return {name: frame.f_locals.get(name) for name in names}
        frame = frame.f_back
    return {}


def _words(allowed: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, allowed))
