"""Drafts across tokenizers on a real target and a tiny model of another tokenizer, both ways round.

    python benchmarks/cross_pair.py --corpus runs/demo/corpus --target smollm2 --out runs/cross
    python benchmarks/cross_tokenizer.py --target smollm2 --tiny runs/cross

Greedy outputs are compared with plain decoding token for token. A ratio is of seconds in this run, each prompt
decoded in all arms before the next. `--text_cost true` only times the text work of a round, after contexts
of 1k to 32k tokens, with a draft model that costs nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonargparse
import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig

from foredraft.cli.machine import provenance
from foredraft.cli.packaged import resolve_target
from foredraft.data import load_prompts
from foredraft.data.files import write_json
from foredraft.spec import (
    CrossTokenizerDrafter,
    DecodeStats,
    Drafter,
    FixedLookahead,
    GeneratorDraws,
    SamplingParams,
    SharedTokensDrafter,
    SpeculativeDecoder,
    TokenLaw,
    load_causal_lm,
    load_tokenizer,
    pack_linears,
    render_chat,
    settle_cpu,
)
from foredraft.spec.codec import Codec
from foredraft.spec.translation import Translation

CONTEXTS = (1024, 4096, 16384, 32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossBenchmark:
    """Measure drafts across tokenizers."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    tiny: str
    """Folder that benchmarks/cross_pair.py made."""
    gammas: tuple[int, ...] = (2, 4)
    prompts: int = 4
    """How many of the shipped test prompts, one of each domain first."""
    max_tokens: int = 48
    text_cost: bool = False
    """Time the text work by itself, and nothing else."""
    threads: int | None = None
    """Threads of torch; none: its own choice."""
    out: str | None = None
    """Where the figures go as JSON."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one arm did on all prompts."""

    arm: str
    equal: bool  # all tokens are plain decoding's
    acceptance_rate: float | None
    tokens_a_round: float | None
    steps_a_token: float | None  # draft forwards for each drafted token of the target's
    step_ms: float | None  # of a draft forward, its text work included
    speedup: float  # of the rounds, over plain decoding


def measure(
    target: Any,
    tokenizer: Any,
    drafters: dict[str, Drafter],
    prompts: Sequence[list[int]],
    config: CrossBenchmark,
) -> list[Figures]:
    """Decode each prompt plainly and with each drafter and γ, and return the figures of each."""
    params = SamplingParams(temperature=0.0, max_tokens=config.max_tokens)
    arms = {"plain": SpeculativeDecoder(target, tokenizer)} | {
        f"{name}, γ = {gamma}": SpeculativeDecoder(
            target, tokenizer, drafter, FixedLookahead(gamma)
        )
        for name, drafter in drafters.items()
        for gamma in config.gammas
    }
    stats = {name: DecodeStats() for name in arms}
    outputs: dict[str, list[list[int]]] = {name: [] for name in arms}
    for decoder in arms.values():  # warm-up
        decoder.generate(prompts[0], SamplingParams(temperature=0.0, max_tokens=4))
    for prompt in prompts:
        for name, decoder in arms.items():
            [output] = decoder.generate(prompt, params)
            outputs[name].append(output.token_ids)
            stats[name] += output.stats
    plain = stats["plain"].tokens_per_second
    assert plain
    return [
        Figures(
            arm=name,
            equal=outputs[name] == outputs["plain"],
            acceptance_rate=one.acceptance_rate,
            tokens_a_round=one.block_efficiency,
            steps_a_token=one.draft_steps / one.drafted if one.drafted else None,
            step_ms=1e3 * one.draft_seconds / one.draft_steps if one.draft_steps else None,
            speedup=(one.tokens_per_second or 0.0) / plain,
        )
        for name, one in stats.items()
    ]


def both_ways(
    target: Any, tiny: Any, prompts: Sequence[list[int]], config: CrossBenchmark
) -> dict[str, list[Figures]]:
    """Measure with each model as the target of the other.

    Args:
        target, tiny: a model and its tokenizer each.
        prompts: in the target's tokens.
    """
    results = {}
    for title, (model, tokenizer), (draft, own) in (
        ("real target, tiny draft", target, tiny),
        ("tiny target, real draft", tiny, target),
    ):
        asked = list(prompts) if model is target[0] else translated(prompts, own, tokenizer)
        width = int(model.get_output_embeddings().weight.shape[0])
        drafters: dict[str, Drafter] = {
            "cross": CrossTokenizerDrafter(draft, own, tokenizer),
            "shared": SharedTokensDrafter(draft, own, tokenizer, width=width),
        }
        results[title] = measure(model, tokenizer, drafters, asked, config)
        print(title, "·", repr(drafters["shared"]))
    return results


def translated(prompts: Sequence[list[int]], source: Any, to: Any) -> list[list[int]]:
    """Return prompts of one tokenizer's tokens in another's, special tokens included."""
    result = []
    for prompt in prompts:
        translation = Translation(Codec(source, "target"), Codec(to, "draft"))
        translation.extend(prompt)
        result.append(translation.ids)
    return result


class Free(torch.nn.Module):
    """A draft model whose forward costs nothing and that always says the same token."""

    def __init__(self, vocabulary: int, token: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(vocabulary, 1), requires_grad=False)
        self.logits = torch.zeros(1, 1, vocabulary)
        self.logits[0, 0, token] = 9.0
        self.generation_config = GenerationConfig()
        self.config: Any = SimpleNamespace(
            is_encoder_decoder=False,
            model_type="free",
            max_position_embeddings=2**20,
            num_hidden_layers=0,
            get_text_config=lambda: self.config,
        )

    def forward(self, input_ids: Any, cache: Any, use_cache: bool, logits_to_keep: int) -> Any:
        return SimpleNamespace(logits=self.logits)

    def get_output_embeddings(self) -> Any:
        return SimpleNamespace(weight=self.weight)


def text_cost(tokenizer: Any, own: Any, tokens: Sequence[int]) -> dict[str, dict[int, float]]:
    """Return milliseconds of a round of 4 drafted tokens whose draft model costs nothing, by drafter and
    context: the median of 30 rounds, each of which commits 3 more tokens."""
    model = Free(len(own), own.encode(" and")[-1])
    width, policy = len(tokenizer), FixedLookahead(4)
    law = TokenLaw(
        SamplingParams(temperature=0.0),
        [],
        width=width,
        eos_token_ids=[],
        device=torch.device("cpu"),
    )
    drafters: dict[str, Drafter] = {
        "cross": CrossTokenizerDrafter(model, own, tokenizer),
        "shared": SharedTokensDrafter(model, own, tokenizer, width=width),
    }
    costs: dict[str, dict[int, float]] = {}
    for name, drafter in drafters.items():
        costs[name] = {}
        for context in CONTEXTS:
            drafter.reset(context + 200)
            seconds = []
            for length in range(context, context + 93, 3):
                sequence = tokens[:length]
                begun = time.perf_counter()
                drafter.propose(sequence, 4, policy, law, GeneratorDraws(0))
                drafter.roll_back(length)
                seconds.append(time.perf_counter() - begun)
            costs[name][context] = 1e3 * statistics.median(
                seconds[1:]
            )  # the first reads the prompt
    return costs


def print_figures(title: str, figures: Sequence[Figures]) -> None:
    """Print a table."""
    columns = (
        "arm",
        "tokens",
        "accepted",
        "tokens a round",
        "steps a token",
        "ms a step",
        "speedup",
    )
    table = Table(*columns, title=title)
    for one in figures:
        numbers = (one.acceptance_rate, one.tokens_a_round, one.steps_a_token, one.step_ms)
        cells = ["–" if number is None else f"{number:.2f}" for number in numbers]
        table.add_row(one.arm, "equal" if one.equal else "DIFFER", *cells, f"{one.speedup:.2f}×")
    Console(width=110).print(table)


def main() -> None:
    """Run from the command line."""
    config: CrossBenchmark = jsonargparse.auto_cli(CrossBenchmark, as_positional=False)
    settle_cpu(config.threads)
    name = resolve_target(config.target)
    tokenizer, own = load_tokenizer(name), load_tokenizer(config.tiny)
    shipped = load_prompts(split="test", limit_per_domain=1)[: config.prompts]
    prompts = [render_chat(tokenizer, prompt.messages) for prompt in shipped]
    if config.text_cost:
        texts = [render_chat(tokenizer, prompt.messages) for prompt in load_prompts()]
        tokens = [token for text in texts for token in text]
        result: Any = text_cost(tokenizer, own, tokens * (1 + (CONTEXTS[-1] + 200) // len(tokens)))
        print("milliseconds of text work a round, by context:", result)
    else:
        models = [load_causal_lm(folder) for folder in (name, config.tiny)]
        for model in models:
            pack_linears(model)
        figures = both_ways((models[0], tokenizer), (models[1], own), prompts, config)
        for title, rows in figures.items():
            print_figures(title, rows)
        result = {title: [asdict(row) for row in rows] for title, rows in figures.items()}
    if config.out is not None:
        write_json(
            Path(config.out),
            {"config": asdict(config), **provenance("cpu"), "result": result},
        )


if __name__ == "__main__":
    main()
