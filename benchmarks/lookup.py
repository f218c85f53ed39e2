"""Prompt lookup on prompts that ask to copy or edit a text: plain, ours and transformers', interleaved.

    python benchmarks/lookup.py --target smollm2 --gammas '[4,10]' --max_tokens 96 --least_copied 0.6

No draft model runs. Arms are measured as in benchmarks/decode.py: transformers' on the model as it loads it.
Ours are fixed γ and the policy that learns. What a lookup takes is timed in contexts of 1k to 32k tokens.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jsonargparse
import torch
from rich.console import Console

from decode_arms import Arm, generate_arm, ours_arm
from decode_figures import ArmFigures, print_table
from decode_measuring import compare, measure
from decode_probes import Clock
from foredraft.cli.machine import provenance
from foredraft.cli.packaged import resolve_target
from foredraft.controller import LookupLookahead
from foredraft.data.files import write_json
from foredraft.spec import (
    FixedLookahead,
    GeneratorDraws,
    PromptLookupDrafter,
    SamplingParams,
    SpeculativeDecoder,
    TokenLaw,
    load_causal_lm,
    load_tokenizer,
    pack_linears,
    render_chat,
    settle_cpu,
    unpacked,
)

NOTE = """The ferry to the island leaves the north pier at eight in the morning and at two in the \
afternoon. Bring a warm coat, because the wind on deck is cold even in July. Tickets are sold at the \
kiosk beside the bakery, and children under six travel free with an adult."""
CODE = """def total_price(items, tax_rate):
    subtotal = 0
    for item in items:
        subtotal = subtotal + item.price * item.count
    tax = subtotal * tax_rate
    return subtotal + tax"""
LIST = """Monday: water the tomatoes, sweep the porch
Tuesday: call the plumber about the kitchen tap
Wednesday: return the library books, buy bread
Thursday: water the tomatoes, mend the garden gate
Friday: pay the rent, answer the letter from Ada"""
PROMPTS = (
    f"Repeat this text word for word and add nothing:\n\n{NOTE}",
    f"Copy this text, but write the times as 8:00 and 14:00:\n\n{NOTE}",
    f"Rename the variable subtotal to amount and print the whole function:\n\n{CODE}",
    f"Add a one-line docstring to this function and print all of it:\n\n{CODE}",
    f"Print this plan again with Thursday moved to Saturday:\n\n{LIST}",
    f"Correct the spelling in this text and change nothing else:\n\n{NOTE.replace('ie', 'ei')}",
    f"Which sentences of this text are about tickets or times? Quote them word for word:\n\n{NOTE}",
    f"Summarize this text by leaving out its second sentence and keeping the others:\n\n{NOTE}",
    f"Print this plan again without the lines for Monday and Tuesday:\n\n{LIST}",
    f"Print this function twice, the second time with the name total_cost:\n\n{CODE}",
)
COPIED_RUN = 4  # tokens in a row that stand in the prompt: copied, not said anew
LENGTHS = (1_000, 8_000, 32_000)  # contexts in which lookups are timed


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupBenchmark:
    """Compare ways to decode without a draft model where the output repeats the prompt."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    gammas: tuple[int, ...] = (4, 10)
    """Most tokens drafted in a round: arms of ours and of transformers'."""
    max_ngram: int = 5
    """The longest match that ours looks for."""
    min_ngram: int = 2
    """The shortest."""
    max_tokens: int = 96
    temperature: float = 0.0
    """0 decodes greedily, and outputs are compared token for token."""
    lookahead: str | None = None
    """Folder of a fitted lookahead whose latency table the learning arm starts from; none: from nothing."""
    least_copied: float = 0.0
    """Prompts of which less of the plain output is copied are left out."""
    repeats: int = 5
    """Times each prompt is decoded in each arm."""
    max_seconds: float | None = None
    """Start no further prompt after this time; none: no limit."""
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = None
    """Threads of torch; none: its own choice."""
    out: str | None = None
    """Where the figures go as JSON."""


def make_arms(config: LookupBenchmark, decoder: SpeculativeDecoder) -> list[Arm]:
    """Return transformers' plain `generate`, ours, and both sides' lookup for each γ."""
    params = SamplingParams(
        temperature=config.temperature, max_tokens=config.max_tokens, seed=config.seed
    )
    loaded = unpacked(decoder.target.model)
    arms = [
        generate_arm("generate", "transformers' generate, as it loads the model", loaded, params),
        ours_arm("plain", "ours, γ = 0", decoder, FixedLookahead(0), params),
    ]
    for gamma in config.gammas:
        theirs = f"lookup {gamma}"
        about = f"transformers' prompt_lookup_num_tokens = {gamma}"
        arms.append(generate_arm(theirs, about, loaded, params, lookup=gamma, bases=("plain",)))
        about = f"ours, {decoder.drafter!r}, at most {gamma} a round"
        policy = FixedLookahead(gamma)
        arms.append(
            ours_arm(f"ours {gamma}", about, decoder, policy, params, bases=("plain", theirs))
        )
    learning = LookupLookahead()
    if config.lookahead is not None:
        learning = LookupLookahead.load(config.lookahead)
    bases = ("plain", *(f"lookup {gamma}" for gamma in config.gammas))
    about = f"ours, {decoder.drafter!r}, {learning!r}"
    return [*arms, ours_arm("ours adaptive", about, decoder, learning, params, bases=bases)]


def copied_share(prompt: Sequence[int], output: Sequence[int]) -> float:
    """Return the share of the output's tokens that lie in a run of `COPIED_RUN` that stands in the prompt."""
    runs = {tuple(prompt[at : at + COPIED_RUN]) for at in range(len(prompt) - COPIED_RUN + 1)}
    copied: set[int] = set()
    for at in range(len(output) - COPIED_RUN + 1):
        if tuple(output[at : at + COPIED_RUN]) in runs:
            copied.update(range(at, at + COPIED_RUN))
    return len(copied) / max(1, len(output))


def lookup_microseconds(drafter: PromptLookupDrafter, length: int) -> float:
    """Return the median of what a look and a draft of ten tokens take after every third token."""
    choice = random.Random(0)
    tokens = [
        choice.randrange(300) for _ in range(length // 2)
    ] * 2  # so that there is what to follow
    law = TokenLaw(SamplingParams(), [0], width=300, eos_token_ids=(), device=torch.device("cpu"))
    twin, policy, draws, taken = drafter.twin(), FixedLookahead(10), GeneratorDraws(0), []
    twin.reset(length + 1000)
    twin.look(tokens)  # reads the prompt
    for _ in range(200):
        tokens += tokens[-length // 2 :][:3]
        begun = time.perf_counter()
        twin.look(tokens)
        twin.propose(tokens, 10, policy, law, draws)
        taken.append(time.perf_counter() - begun)
    return 1e6 * statistics.median(taken)


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What was measured."""

    arms: list[ArmFigures]
    copied: list[float]  # of each prompt that was measured, of its plain output
    microseconds: dict[int, float]  # tokens of context -> of a lookup


def run(config: LookupBenchmark) -> LookupResult:
    """Load the target, decode the prompts in all arms and return their figures.

    Raises:
        ValueError: if no prompt's output is copied enough.
    """
    name = resolve_target(config.target)
    target = load_causal_lm(name, device=config.device, dtype=config.dtype)
    pack_linears(target)
    tokenizer = load_tokenizer(name)
    drafter = PromptLookupDrafter(max_ngram=config.max_ngram, min_ngram=config.min_ngram)
    arms = make_arms(config, SpeculativeDecoder(target, tokenizer, drafter))
    plain = next(arm for arm in arms if arm.name == "plain")
    rendered = [render_chat(tokenizer, [{"role": "user", "content": text}]) for text in PROMPTS]
    shares = [copied_share(prompt, plain.decode(prompt, None)) for prompt in rendered]
    chosen = [place for place, share in enumerate(shares) if share >= config.least_copied]
    if not chosen:
        raise ValueError(
            f"least_copied: no output is copied to {config.least_copied:.0%}, at most {max(shares):.0%}"
        )
    runs = measure(
        arms,
        [rendered[place] for place in chosen],
        repeats=config.repeats,
        clock=Clock(target.device),
        seed=config.seed,
        max_seconds=config.max_seconds,
    )
    greedy = config.temperature == 0.0
    exact = greedy and config.dtype == "float32"
    measured = chosen[: len(runs["plain"])]
    return LookupResult(
        compare(arms, runs, greedy=greedy, exact=exact),
        [shares[place] for place in measured],
        {length: lookup_microseconds(drafter, length) for length in LENGTHS},
    )


def print_result(result: LookupResult, console: Console) -> None:
    """Print the arms, how much was copied, and what lookups took."""
    print_table(result.arms, console)
    least, mean = min(result.copied), statistics.mean(result.copied)
    console.print(
        f"{len(result.copied)} prompts; of their outputs {mean:.0%} is copied from the prompt, at least "
        f"{least:.0%}: tokens in runs of {COPIED_RUN} or more that stand there"
    )
    times = ", ".join(f"{taken:.0f} µs at {n:,}" for n, taken in result.microseconds.items())
    console.print(f"a lookup, by tokens of context: {times}")


def main() -> None:
    """Run from the command line."""
    config: LookupBenchmark = jsonargparse.auto_cli(LookupBenchmark, as_positional=False)
    settle_cpu(config.threads)
    result = run(config)
    print_result(result, Console())
    if config.out is not None:
        content: dict[str, Any] = {
            "config": asdict(config),
            **provenance(config.device),
            **asdict(result),
        }
        write_json(Path(config.out), content)


if __name__ == "__main__":
    main()
