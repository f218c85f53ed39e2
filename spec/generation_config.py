"""What a model's own generation config asks for, as the params of a request."""

from __future__ import annotations

from typing import Any

from .params import SamplingParams

# How each field is treated; `default_params` says it in words.
_MAPPED = {
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "max_new_tokens", "max_length", "min_new_tokens", "min_length", "eos_token_id",
    "bad_words_ids", "suppress_tokens", "sequence_bias", "stop_strings", "num_return_sequences",
}  # fmt: skip
_WITHOUT_EFFECT = {  # how `generate` computes, what it returns, or what only other modes of it read
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache",
    "compile_config", "disable_compile", "continuous_batching_config", "low_memory",
    "prefill_chunk_size", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate", "pad_token_id", "bos_token_id",
    "decoder_start_token_id", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
    "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
    "target_lookbehind", "assistant_ensemble_weight", "speculation_type", "use_mtp",
    "early_stopping", "length_penalty", "renormalize_logits", "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size", "transformers_version", "_from_model_config",
}  # fmt: skip
_SAMPLING = {"top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"}  # read only where do_sample
_NEUTRAL: dict[str, tuple[Any, ...]] = {  # values of the other fields that ask for nothing
    "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0.0,), "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,), "no_repeat_ngram_size": (0,),
    "remove_invalid_values": (False,), "guidance_scale": (1, 1.0), "token_healing": (False,),
    "penalty_alpha": (0.0,),
}  # fmt: skip


def default_params(config: Any, prompt_length: int = 0) -> SamplingParams:
    """Return what a transformers GenerationConfig asks for.

    - do_sample, temperature, top_k, top_p, min_p: as they are; greedy without do_sample. What the file
      leaves out is off: `generate`'s own top_k = 50 is not taken over (as in vLLM).
    - repetition_penalty, num_return_sequences (n), stop_strings (stop): as they are.
    - max_new_tokens, min_new_tokens: max_tokens and min_tokens; else max_length and min_length less the
      prompt's length; else 256 and 0.
    - bad_words_ids: bad_words, less a lone end token (as in transformers); suppress_tokens: bad_words of one
      token; sequence_bias: logit_bias, where the sequences are single tokens.
    - eos_token_id: read by the loop itself, one or several.
    - How `generate` computes and what it returns (caches, compilation, its assistants, output flags, pad and
      decoder-start ids), and what only beams or encoders read: without effect here.
    - All else (beams, contrastive search, DoLa, guidance, typical_p, top_h, epsilon and eta cutoffs,
      no_repeat_ngram_size, forced tokens, begin_suppress_tokens, exponential_decay_length_penalty, watermarks,
      token_healing, max_time, fields that are not transformers') raises, unless it has its neutral value.

    Args:
        prompt_length: tokens of the prompt, for max_length and min_length.

    Raises:
        ValueError: naming the field and its value, if it cannot be honoured.
    """
    _refuse_the_rest(config)
    sampled = bool(config.do_sample)
    max_tokens = config.max_new_tokens
    if max_tokens is None and config.max_length is not None:
        max_tokens = config.max_length - prompt_length
        if max_tokens < 1:
            raise ValueError(
                f"generation_config: max_length must be above the prompt's {prompt_length} tokens, "
                f"got {config.max_length}"
            )
    min_tokens = config.min_new_tokens
    if min_tokens is None:
        min_tokens = max(0, (config.min_length or 0) - prompt_length)
    ends = config.eos_token_id
    lone_ends = [[end] for end in ([ends] if isinstance(ends, int) else ends or [])]
    words = [word for word in config.bad_words_ids or [] if word not in lone_ends]
    stop = config.stop_strings or ()
    return SamplingParams(
        n=config.num_return_sequences or 1,
        temperature=(1.0 if config.temperature is None else config.temperature) * sampled,
        top_k=(config.top_k or 0) if sampled else 0,
        top_p=(config.top_p or 1.0) if sampled else 1.0,
        min_p=(config.min_p or 0.0) if sampled else 0.0,
        repetition_penalty=config.repetition_penalty or 1.0,
        logit_bias=_single_biases(config.sequence_bias),
        bad_words=tuple(map(tuple, [*words, *([t] for t in config.suppress_tokens or [])])),
        max_tokens=max_tokens or SamplingParams().max_tokens,
        min_tokens=min_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _refuse_the_rest(config: Any) -> None:
    """Raise on the first field that is set and neither mapped nor without effect."""
    for name, value in config.to_dict().items():
        if name in _MAPPED or name in _WITHOUT_EFFECT:
            continue
        if name in _SAMPLING and not config.do_sample:
            continue
        if value is None or any(value == neutral for neutral in _NEUTRAL.get(name, ())):
            continue
        raise ValueError(
            f"generation_config: {name} = {value!r} cannot be honoured, and is not dropped in silence; "
            "pass SamplingParams of your own (and logits_processors, where transformers has one for it)"
        )


def _single_biases(sequence_bias: Any) -> dict[int, float]:
    """Return token id -> bias, from transformers' dict of tuples or list of pairs."""
    pairs = sequence_bias.items() if isinstance(sequence_bias, dict) else sequence_bias or ()
    biases = {tuple(sequence): float(bias) for sequence, bias in pairs}
    longer = [sequence for sequence in biases if len(sequence) != 1]
    if longer:
        raise ValueError(
            f"generation_config: sequence_bias of several tokens cannot be honoured, got {longer[0]}; "
            "pass SamplingParams and logits_processors=[SequenceBiasLogitsProcessor(...)]"
        )
    return {sequence[0]: bias for sequence, bias in biases.items()}
