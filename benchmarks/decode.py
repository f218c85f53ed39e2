r"""Decodes the same prompts in transformers' ways and in ours, interleaved in one run, and compares.

    python benchmarks/decode.py --target smollm2 --draft runs/demo/draft/best \
        --arms '[generate-packed,assisted,assisted-packed,plain,ours]'

Transformers' arms run on the models as transformers loads them; ours and those called "packed" on the same
weights laid out as `SpeculativeDecoder.from_pretrained` does. Against the first, a user's gain is seen;
against the second, that of the loop alone. `settle_cpu` is the process's, so it serves all arms.

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

from decode_config import DecodeBenchmark
from decode_figures import print_table
from decode_lineup import left_out, make_arms
from decode_measuring import compare, measure, probed
from decode_probes import Clock
from foredraft.cli.comparing import interleave_domains
from foredraft.cli.machine import provenance
from foredraft.cli.packaged import resolve_target
from foredraft.data import load_prompts
from foredraft.data.files import write_json
from foredraft.spec import (
    load_causal_lm,
    load_tokenizer,
    pack_linears,
    render_chat,
    settle_cpu,
)


def run_benchmark(config: DecodeBenchmark, console: Console) -> dict[str, Any]:
    """Load, measure, print the table, write decode.json and return its content."""
    settle_cpu(config.threads)
    name = resolve_target(config.target)
    target = load_causal_lm(name, device=config.device, dtype=config.dtype)
    pack_linears(target)
    tokenizer = load_tokenizer(name)
    arms = make_arms(config, target, tokenizer)
    missing = left_out(config, arms)
    for line in missing:
        console.print(f"left out: {line}")
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
        **provenance(config.device),
        "left_out": missing,
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
