"""Decodes the same prompts in transformers' ways and in ours, interleaved in one run, and compares.

    python benchmarks/decode.py --target smollm2 --draft runs/demo/draft/best

Timed passes carry no instruments but the marks of rounds; what a round is made of, host reads and memory
are measured in passes of their own. The speed is that after the first round of each call, in every arm:
no prompt is read in it (`generate` and assisted generation read it in the first round, our target before
it). It is marked where tokens come out: a streamer's put for `generate`, the end of the round for ours.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonargparse
from rich.console import Console

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
from decode_figures import print_table
from decode_measuring import compare, measure, probed
from decode_probes import Clock
from foredraft.cli.comparing import interleave_domains
from foredraft.cli.machine import commit, describe_machine, describe_versions
from foredraft.cli.packaged import resolve_target
from foredraft.data import load_prompts
from foredraft.data.files import write_json
from foredraft.spec import (
    FixedLookahead,
    SamplingParams,
    SpeculativeDecoder,
    load_causal_lm,
    load_drafter,
    load_lookahead,
    load_tokenizer,
    render_chat,
    settle_cpu,
    target_width,
)


def run_benchmark(config: DecodeBenchmark, console: Console) -> dict[str, Any]:
    """Load, measure, print the table, write decode.json and return its content."""
    settle_cpu(config.threads)
    name = resolve_target(config.target)
    target = load_causal_lm(name, device=config.device, dtype=config.dtype)
    tokenizer = load_tokenizer(name)
    arms = make_arms(config, target, tokenizer)
    prompts = [
        render_chat(tokenizer, prompt.messages)
        for prompt in interleave_domains(
            load_prompts(
                config.prompts,
                domains=config.domains,
                split="test",
                limit_per_domain=config.prompts_per_domain,
            )
        )
    ]
    clock = Clock(target.device)
    runs = measure(
        arms, prompts, repeats=config.repeats, clock=clock, seed=config.seed,
        max_seconds=config.max_seconds,
    )  # fmt: skip
    greedy = config.temperature == 0.0
    figures = [
        probed(figure, arm, prompts[: len(runs[arm.name])], config.max_tokens, clock)
        for arm, figure in zip(
            arms,
            compare(arms, runs, greedy=greedy, exact=greedy and config.dtype == "float32"),
            strict=True,
        )
    ]
    print_table(figures, console)
    content = {
        "settings": asdict(config),
        "command": " ".join(sys.argv),
        "commit": commit(),
        "machine": asdict(describe_machine(config.device)),
        "versions": asdict(describe_versions()),
        "prompts": len(next(iter(runs.values()))),
        "arms": [asdict(figure) for figure in figures],
        "runs": {
            arm: [[asdict(run) | {"tokens": len(run.tokens)} for run in each] for each in all_runs]
            for arm, all_runs in runs.items()
        },
    }
    path = Path(config.output) / "decode.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    console.print(f"written: {path}")
    return content


def make_arms(config: DecodeBenchmark, target: Any, tokenizer: Any) -> list[Arm]:
    """Return the arms that are asked for; `generate` is always one, as the others are held against it."""
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
    arms = [generate_arm("generate", "transformers, one token a forward", target, params)]
    arms += _assisted_arms(config, target, drafter, params, width)
    if "lookup" in config.arms:
        about = f"transformers' prompt lookup, {LOOKUP_TOKENS} tokens"
        arms.append(
            generate_arm("lookup", about, target, params, prompt_lookup_num_tokens=LOOKUP_TOKENS)
        )
    if "plain" in config.arms:
        about = "our loop, one token a forward"
        arms.append(ours_arm("ours plain", about, decoder, FixedLookahead(0), params))
    for gamma in config.gammas:
        base = f"assisted γ={gamma}" if "assisted" in config.arms else None
        if "ours" in config.arms:
            about = f"our loop, {gamma} drafted a round"
            policy = FixedLookahead(gamma)
            arms.append(ours_arm(f"ours γ={gamma}", about, decoder, policy, params, base=base))
        if "drop-in" in config.arms:
            about = f"our loop inside generate, {gamma} drafted a round"
            arms.append(
                drop_in_arm(f"drop-in γ={gamma}", about, target, drafter, gamma, params, base=base)
            )
    if "adaptive" in config.arms and config.lookahead is not None:
        adaptive = load_lookahead(config.lookahead, target, drafter.cached.model)
        assert adaptive is not None
        arms.append(
            ours_arm("ours adaptive", f"our loop, {config.lookahead}", decoder, adaptive, params)
        )
    return arms


def _assisted_arms(
    config: DecodeBenchmark, target: Any, drafter: Any, params: SamplingParams, width: int
) -> list[Arm]:
    """Return the arms of transformers' assisted generation, each with an assistant object of its own."""
    arms: list[Arm] = []
    heads = config.heads if drafter.kept is not None else ("whole",)
    for head in heads:
        if head == "cut":
            model, kept = drafter.cached.model, drafter.kept
            words = f"head cut to {len(kept)} rows as ours is, logits spread"
        else:
            model, kept = drafter.cached.model, None
            if drafter.kept is not None:
                model = load_causal_lm(config.draft, device=config.device, dtype=config.dtype)
            words = "whole head"
        suffix = "" if head == heads[0] else ", whole head"
        # name, about, tokens, schedule, confidence: 5 and "heuristic" were, 20 and 0.4 are the defaults
        settings: list[tuple[str, str, int, str, float]] = []
        if "assisted" in config.arms:
            settings += [
                (f"assisted γ={gamma}", f"{gamma} a round", gamma, "constant", 0.0)
                for gamma in config.gammas
            ]
        if "heuristic" in config.arms:
            settings.append(("assisted heuristic", "from 5, +2 or −1", 5, "heuristic", 0.0))
        if "confidence" in config.arms:
            settings.append(("assisted confidence", "20, stop below 0.4", 20, "constant", 0.4))
        for name, how, tokens, schedule, confidence in settings:
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 2 where the input was wrong."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(description=(DecodeBenchmark.__doc__ or "").strip())
    parser.add_argument("--config", action="config", help="YAML file of the fields below.")
    parser.add_class_arguments(DecodeBenchmark)
    fields = parser.parse_args(argv).as_dict()
    del fields["config"]
    try:
        run_benchmark(DecodeBenchmark(**fields), Console(width=140))
    except ValueError as error:
        print(f"decode.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
