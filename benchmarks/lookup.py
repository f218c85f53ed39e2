"""Prompt lookup on prompts that ask to copy or edit a text: plain, ours and transformers', interleaved.

    python benchmarks/lookup.py --target smollm2 --gammas '[4,10]' --max_tokens 96

No draft model runs. Arms are measured as in benchmarks/decode.py: transformers' on the model as it loads it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jsonargparse
from rich.console import Console

from decode_arms import Arm, generate_arm, ours_arm
from decode_figures import ArmFigures, print_table
from decode_measuring import compare, measure
from decode_probes import Clock
from foredraft.cli.machine import provenance
from foredraft.cli.packaged import resolve_target
from foredraft.data.files import write_json
from foredraft.spec import (
    FixedLookahead,
    PromptLookupDrafter,
    SamplingParams,
    SpeculativeDecoder,
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
)


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
    repeats: int = 5
    """Times each prompt is decoded in each arm."""
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
    return arms


def run(config: LookupBenchmark) -> list[ArmFigures]:
    """Load the target, decode the six prompts in all arms and return their figures."""
    name = resolve_target(config.target)
    target = load_causal_lm(name, device=config.device, dtype=config.dtype)
    pack_linears(target)
    tokenizer = load_tokenizer(name)
    drafter = PromptLookupDrafter(max_ngram=config.max_ngram, min_ngram=config.min_ngram)
    arms = make_arms(config, SpeculativeDecoder(target, tokenizer, drafter))
    prompts = [render_chat(tokenizer, [{"role": "user", "content": text}]) for text in PROMPTS]
    runs = measure(
        arms, prompts, repeats=config.repeats, clock=Clock(target.device), seed=config.seed
    )
    greedy = config.temperature == 0.0
    return compare(arms, runs, greedy=greedy, exact=greedy and config.dtype == "float32")


def main() -> None:
    """Run from the command line."""
    config: LookupBenchmark = jsonargparse.auto_cli(LookupBenchmark, as_positional=False)
    settle_cpu(config.threads)
    figures = run(config)
    print_table(figures, Console())
    if config.out is not None:
        result: dict[str, Any] = {
            "config": asdict(config),
            **provenance(config.device),
            "arms": [asdict(arm) for arm in figures],
        }
        write_json(Path(config.out), result)


if __name__ == "__main__":
    main()
