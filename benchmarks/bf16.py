"""Counts where speculative and plain greedy decoding differ in 16 bits, and holds each to the rounding bound.

    python benchmarks/bf16.py --target smollm2 --draft runs/demo/draft/best

A difference whose logits are further apart than the bound is a fault: the run then ends with an error.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import jsonargparse

from foredraft.cli.comparing import interleave_domains
from foredraft.cli.machine import describe_machine, describe_versions
from foredraft.cli.packaged import resolve_target
from foredraft.data import load_prompts
from foredraft.data.files import write_json
from foredraft.spec import (
    FixedLookahead,
    SamplingParams,
    SpeculativeDecoder,
    first_difference,
    render_chat,
    settle_cpu,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingBenchmark:
    """Compare greedy outputs in a low precision, for each γ with plain decoding."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    draft: str
    """Hub id or folder of its draft."""
    gammas: tuple[int, ...] = (1, 4)
    prompts: int = 24
    """Of all domains, in turn."""
    max_tokens: int = 48
    device: str = "cpu"
    dtype: str = "bfloat16"
    """bfloat16, float16 or float32."""
    out: str | None = None
    """Where the figures go as JSON."""


def run(config: RoundingBenchmark) -> int:
    """Print a line for each difference and the count; return how many are no ties."""
    settle_cpu()
    decoder = SpeculativeDecoder.from_pretrained(
        resolve_target(config.target), draft=config.draft, device=config.device, dtype=config.dtype
    )
    prompts = interleave_domains(load_prompts(split="test"))[: config.prompts]
    params = SamplingParams(temperature=0.0, max_tokens=config.max_tokens)
    outputs = differences = faults = tokens = 0
    found = []
    for prompt in prompts:
        ids = render_chat(decoder.tokenizer, prompt.messages)
        plain = decoder.with_lookahead(FixedLookahead(0)).generate([ids], params)[0]
        for gamma in config.gammas:
            output = decoder.with_lookahead(FixedLookahead(gamma)).generate([ids], params)[0]
            outputs, tokens = outputs + 1, tokens + len(output.token_ids)
            difference = first_difference(
                decoder.target.model, ids, output.token_ids, plain.token_ids
            )
            if difference is None:
                continue
            differences += 1
            faults += not difference.tie
            found.append({"prompt": prompt.id, "gamma": gamma, **asdict(difference)})
            print(
                f"{prompt.id} γ = {gamma}: token {difference.position}, gap {difference.gap:.4g}, "
                f"bound {difference.bound:.4g}: {'tie' if difference.tie else 'FAULT'}"
            )
    print(
        f"{config.dtype}: {outputs} outputs, {tokens} tokens; {differences} differ from plain "
        f"decoding, {differences - faults} of them ties, {faults} faults"
    )
    if config.out is not None:
        result = {
            "config": asdict(config),
            "machine": asdict(describe_machine(config.device)),
            "versions": asdict(describe_versions()),
            "outputs": outputs,
            "tokens": tokens,
            "faults": faults,
            "differences": found,
        }
        write_json(Path(config.out), result)
    return faults


if __name__ == "__main__":
    sys.exit(min(run(jsonargparse.auto_cli(RoundingBenchmark, as_positional=False)), 1))
