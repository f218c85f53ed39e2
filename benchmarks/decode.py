"""Decodes the same prompts in transformers' ways and in ours, interleaved in one run, and compares.

    python benchmarks/decode.py --target smollm2 --draft runs/demo/draft/best

Timed passes carry no instruments but the marks of rounds; what a round is made of, host reads and memory
are measured in passes of their own. The speed is that after the first round of each call, in every arm:
no prompt is read in it (`generate` and assisted generation read it in the first round, our target before
it). It is marked where tokens come out: a streamer's put for `generate`, the end of the round for ours.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import jsonargparse
import torch
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
from decode_figures import ArmFigures, Run, arm_figures, print_table, ratio_of
from decode_probes import (
    Clock,
    ForwardTimer,
    HostReads,
    LiveTensors,
    Marks,
    cache_bytes,
    weight_bytes,
)
from foredraft.cli.comparing import interleave_domains
from foredraft.cli.config import ENGLISH
from foredraft.cli.machine import commit, describe_machine, describe_versions
from foredraft.cli.packaged import resolve_target
from foredraft.controller.config import check_integer
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

KINDS = (
    "generate", "assisted", "heuristic", "confidence", "lookup", "plain", "ours", "adaptive", "drop-in",
)  # fmt: skip
HEADS = ("cut", "whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBenchmark:
    """Compare transformers' ways to decode with ours, on one target and one draft."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    draft: str
    """Hub id or folder of the draft, the same for all arms."""
    lookahead: str | None = None
    """Folder of a fitted lookahead for the adaptive arm; none: no such arm."""
    output: str = "runs/decode"
    """Folder for decode.json."""
    arms: tuple[str, ...] = KINDS
    """Kinds of arms: generate (always), assisted, heuristic, confidence, lookup, which are transformers'
    ways; plain, ours, adaptive, drop-in, which are ours."""
    heads: tuple[str, ...] = ("cut",)
    """The assistant's head where the draft has a cut one: "cut" (as ours uses it), "whole" (as a plain
    load of the folder gives it), or both."""
    prompts: str = "shipped"
    """"shipped", a .jsonl file, a folder of them, or a datasets id; split "test" is used."""
    domains: tuple[str, ...] = ENGLISH
    """Domains of the prompts."""
    prompts_per_domain: int = 1
    """Prompts of each domain."""
    max_tokens: int = 64
    """Most tokens of an output."""
    gammas: tuple[int, ...] = (4,)
    """Tokens drafted in every round: arms of assisted generation and of ours."""
    temperature: float = 0.0
    """0 decodes greedily, and outputs are compared token for token."""
    repeats: int = 7
    """Times each prompt is decoded in each arm."""
    max_seconds: float | None = None
    """Start no further prompt after this time; none: no limit."""
    seed: int = 0
    """Orders the arms, and seeds the draws where the temperature is not 0."""
    device: str = "cpu"
    """Device of both models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""
    threads: int | None = None
    """Threads of torch; none: its own choice."""

    def __post_init__(self) -> None:
        for name in ("prompts_per_domain", "repeats"):
            check_integer(name, getattr(self, name), low=1)
        check_integer("max_tokens", self.max_tokens, low=2)
        for gamma in self.gammas:
            check_integer("gammas", gamma, low=1)
        for name, allowed in (("arms", KINDS), ("heads", HEADS)):
            for value in getattr(self, name):
                if value not in allowed:
                    raise ValueError(f"{name} must be of {', '.join(allowed)}, got {value!r}")


class Now(Protocol):
    """A clock; a test brings its own."""

    def now(self) -> float:
        """Return seconds, the device's work done."""


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


def measure(
    arms: Sequence[Arm],
    prompts: Sequence[Sequence[int]],
    *,
    repeats: int,
    clock: Now,
    seed: int = 0,
    max_seconds: float | None = None,
) -> dict[str, list[list[Run]]]:
    """Return arm -> prompt -> repeat -> run. Every arm decodes the first prompt once before; the order of
    the arms is new for each repeat of each prompt."""
    for arm in arms:
        arm.decode(prompts[0], None)
    order = random.Random(seed)
    runs: dict[str, list[list[Run]]] = {arm.name: [] for arm in arms}
    begun = time.perf_counter()
    for prompt in prompts:
        for arm in arms:
            runs[arm.name].append([])
        for _ in range(repeats):
            for arm in order.sample(arms, len(arms)):
                runs[arm.name][-1].append(timed(arm, prompt, clock))
        if max_seconds is not None and time.perf_counter() - begun > max_seconds:
            break
    return runs


def timed(
    arm: Arm,
    prompt: Sequence[int],
    clock: Now,
    first_done: Callable[[], None] | None = None,
) -> Run:
    """Decode once and return when what came out."""
    marks = Marks(clock.now, first_done)
    tokens = arm.decode(prompt, marks)
    end = clock.now()
    return Run(
        tokens=tokens,
        rounds=marks.rounds,
        first_tokens=marks.first_tokens,
        first_seconds=marks.first - marks.begun,
        seconds=end - marks.begun,
    )


def compare(
    arms: Sequence[Arm], runs: dict[str, list[list[Run]]], *, greedy: bool, exact: bool
) -> list[ArmFigures]:
    """Return the figures of each arm.

    Args:
        greedy: outputs are compared with `generate`'s.
        exact: they must be the same; no ratio is given for an arm where one is not.
    """
    reference = runs["generate"]
    all_figures = []
    for arm in arms:
        mine = runs[arm.name]
        figures = arm_figures(arm.name, arm.about, mine, reference if greedy else None)
        ratios = []
        if not exact or figures.equal_outputs == figures.outputs:
            bases = ["generate"] if arm.name != "generate" else []
            bases += [arm.base] if arm.base is not None and arm.base in runs else []
            found = [ratio_of(base, runs[base], mine) for base in bases]
            ratios = [ratio for ratio in found if ratio is not None]
        all_figures.append(replace(figures, ratios=ratios))
    return all_figures


def probed(
    figures: ArmFigures,
    arm: Arm,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    clock: Now,
) -> ArmFigures:
    """Return the figures with what instrumented passes show: all prompts for the shares of a round, the
    first prompt for host reads and memory."""
    device = next(arm.models[0].parameters()).device
    timer = ForwardTimer(arm.models, device)
    window, forwards, rounds = 0.0, [0.0] * len(arm.models), []
    with timer.running():
        for prompt in prompts:
            timer.reset()
            run = timed(arm, prompt, clock, timer.reset)
            window += run.decode_seconds
            rounds.append(run.rounds)
            forwards = [a + b for a, b in zip(forwards, timer.seconds(), strict=True)]
    shares = [part / window for part in forwards] if window > 0 else None
    with HostReads(device) as reads:
        arm.decode(prompts[0], None)
    positions = len(prompts[0]) + max_tokens
    weights = weight_bytes(arm.models)
    return replace(
        figures,
        outside_share=None if shares is None else max(0.0, 1.0 - sum(shares)),
        target_share=None if shares is None else shares[0],
        draft_share=None if shares is None else sum(shares[1:]),
        host_reads_per_round=reads.count / rounds[0],
        peak_bytes=weights + _peak(arm, prompts[0], device),
        bound_bytes=weights + sum(cache_bytes(model, positions) for model in arm.models),
    )


def _peak(arm: Arm, prompt: Sequence[int], device: torch.device) -> int:
    """Return the most bytes that lived during a call besides the weights."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        arm.decode(prompt, None)
        return torch.cuda.max_memory_allocated(device) - before
    known = [weight for model in arm.models for weight in (*model.parameters(), *model.buffers())]
    live = LiveTensors(known)
    with live if device.type == "cpu" else nullcontext():
        arm.decode(prompt, None)
    return live.peak


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
