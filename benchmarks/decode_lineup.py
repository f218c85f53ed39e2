"""Chooses the arms of the decode benchmark: which ways to decode, on which layers, held against which.

An arm's name says "packed" where a way of transformers runs on our layers instead of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decode_arms import (
    LOOKUP_TOKENS,
    Arm,
    as_assistant,
    assisted_arm,
    drop_in_arm,
    generate_arm,
    ours_arm,
)
from decode_config import DecodeBenchmark
from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    SamplingParams,
    SpeculativeDecoder,
    layer_kernels,
    load_causal_lm,
    load_drafter,
    load_lookahead,
    target_width,
    unpacked,
)

GENERATE_PACKED = "generate, packed"


def make_arms(config: DecodeBenchmark, target: Any, tokenizer: Any) -> list[Arm]:
    """Return the arms that are asked for; `generate` is always one, as the others are held against it.

    Where nothing was packed (a card, or a CPU where it is not faster), no arm is called packed: it would
    be its plain one again. `left_out` says so.

    Args:
        target: packed, for our arms; transformers' get a twin on plain layers.
    """
    width = target_width(target, None)
    drafter = load_drafter(
        config.draft, tokenizer, width=width, device=config.device, dtype=config.dtype
    )
    decoder = SpeculativeDecoder(target, None, drafter)  # no arm turns tokens into text
    params = SamplingParams(
        temperature=config.temperature,
        repetition_penalty=decoder.default_params().repetition_penalty,
        max_tokens=config.max_tokens,
        seed=config.seed,
    )
    plain_target = unpacked(target)
    return [
        *_one_token_arms(config, target, plain_target, params),
        *_assisted_arms(config, plain_target, drafter, params, width),
        *_assisted_packed_arms(config, target, drafter, params, width),
        *_our_arms(config, decoder, plain_target, drafter, params),
    ]


def left_out(config: DecodeBenchmark, arms: Sequence[Arm]) -> list[str]:
    """Return the kinds that were asked for and gave no arm, each with the reason."""
    names = {arm.name for arm in arms}
    found = []
    if "generate-packed" in config.arms and GENERATE_PACKED not in names:
        found.append("generate-packed: no layer of the target was packed")
    packed = {assisted_name(gamma, suffix=", packed") for gamma in config.gammas}
    if "assisted-packed" in config.arms and not packed <= names:
        found.append("assisted-packed: no layer of target or draft was packed")
    if "adaptive" in config.arms and config.lookahead is None:
        found.append("adaptive: no lookahead is given")
    return found


def is_packed(model: Any) -> bool:
    """Say whether a linear layer runs on a layout of ours."""
    return layer_kernels(model).keys() - {"plain"} != set()


def assisted_name(gamma: int, *, suffix: str = "") -> str:
    """Return the name of an arm of assisted generation."""
    return f"assisted γ={gamma}{suffix}"


def _one_token_arms(
    config: DecodeBenchmark, target: Any, plain_target: Any, params: SamplingParams
) -> list[Arm]:
    about = "transformers, one token a forward"
    arms = [generate_arm("generate", about, plain_target, params)]
    if "generate-packed" in config.arms and is_packed(target):
        arms.append(generate_arm(GENERATE_PACKED, f"{about}, on our layers", target, params))
    if "lookup" in config.arms:
        about = f"transformers' prompt lookup, {LOOKUP_TOKENS} tokens"
        arms.append(generate_arm("lookup", about, plain_target, params, lookup=LOOKUP_TOKENS))
    return arms


def _assisted_arms(
    config: DecodeBenchmark,
    target: Any,
    drafter: ModelDrafter,
    params: SamplingParams,
    width: int,
) -> list[Arm]:
    """Return the arms of transformers' assisted generation on plain layers, each with an assistant object
    of its own."""
    # name, tokens, schedule, confidence, about: 5 and "heuristic" were, 20 and 0.4 are the defaults
    settings: list[tuple[str, int, str, float, str]] = []
    if "assisted" in config.arms:
        settings += [
            (assisted_name(gamma), gamma, "constant", 0.0, f"{gamma} a round")
            for gamma in config.gammas
        ]
    if "heuristic" in config.arms:
        settings.append(("assisted heuristic", 5, "heuristic", 0.0, "from 5, +2 or −1"))
    if "confidence" in config.arms:
        settings.append(("assisted confidence", 20, "constant", 0.4, "20, stop below 0.4"))
    arms: list[Arm] = []
    heads = config.heads if drafter.kept is not None else ("whole",)
    for head in heads if settings else ():
        model, kept, words = unpacked(drafter.cached.model), drafter.kept, _head_words(drafter)
        if head == "whole" and kept is not None:
            model.set_output_embeddings(_whole_head(config))
            kept, words = None, "whole head"
        suffix = "" if head == heads[0] else ", whole head"
        for name, tokens, schedule, confidence, how in settings:
            arms.append(
                assisted_arm(
                    name + suffix,
                    f"transformers' assisted generation, {how}; {words}",
                    target,
                    as_assistant(model, kept, width),
                    params,
                    tokens=tokens,
                    schedule=schedule,
                    confidence=confidence,
                )
            )
    return arms


def _assisted_packed_arms(
    config: DecodeBenchmark,
    target: Any,
    drafter: ModelDrafter,
    params: SamplingParams,
    width: int,
) -> list[Arm]:
    """Return the arms of assisted generation on the very layers of ours, of target and draft."""
    draft = drafter.cached.model
    if "assisted-packed" not in config.arms or not (is_packed(target) or is_packed(draft)):
        return []
    return [
        assisted_arm(
            assisted_name(gamma, suffix=", packed"),
            f"transformers' assisted generation on our layers, {gamma} a round; {_head_words(drafter)}",
            target,
            as_assistant(draft, drafter.kept, width),
            params,
            tokens=gamma,
            schedule="constant",
            confidence=0.0,
            bases=(GENERATE_PACKED, assisted_name(gamma)),
        )
        for gamma in config.gammas
    ]


def _our_arms(
    config: DecodeBenchmark,
    decoder: SpeculativeDecoder,
    plain_target: Any,
    drafter: ModelDrafter,
    params: SamplingParams,
) -> list[Arm]:
    arms: list[Arm] = []
    packed = (GENERATE_PACKED,)
    if "plain" in config.arms:
        about = "our loop, one token a forward"
        arms.append(ours_arm("ours γ=0", about, decoder, FixedLookahead(0), params, bases=packed))
    for gamma in config.gammas:
        assisted = assisted_name(gamma)
        if "ours" in config.arms:
            about = f"our loop, {gamma} drafted a round"
            bases = (*packed, assisted, assisted_name(gamma, suffix=", packed"))
            policy = FixedLookahead(gamma)
            arms.append(ours_arm(f"ours γ={gamma}", about, decoder, policy, params, bases=bases))
        if "drop-in" in config.arms:
            about = f"our loop inside generate, {gamma} drafted a round, target as transformers loads it"
            name = f"drop-in γ={gamma}"
            arms.append(
                drop_in_arm(name, about, plain_target, drafter, gamma, params, bases=(assisted,))
            )
    if "adaptive" in config.arms and config.lookahead is not None:
        adaptive = load_lookahead(config.lookahead, decoder.target.model, drafter.cached.model)
        assert adaptive is not None
        about = f"our loop, {config.lookahead}"
        arms.append(ours_arm("ours adaptive", about, decoder, adaptive, params, bases=packed))
    return arms


def _head_words(drafter: ModelDrafter) -> str:
    if drafter.kept is None:
        return "whole head"
    return f"head cut to {len(drafter.kept)} rows as ours is, logits spread"


def _whole_head(config: DecodeBenchmark) -> Any:
    """Return the draft's head as a plain load of its folder gives it; its other weights are let go."""
    model = load_causal_lm(config.draft, device=config.device, dtype=config.dtype)
    return model.get_output_embeddings()
