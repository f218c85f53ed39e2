"""Decodes the same prompts under each way to pace a draft, in the real loop, the policies taking turns.

    python benchmarks/policies.py --target smollm2 --draft runs/demo/draft/best --lookahead runs/demo/lookahead

The speed is that of rounds: the target's prefill is in none of them, the draft's is (it reads the prompt in
the first round that drafts). Every arm keeps what it learns from prompt to prompt. The same command goes on
where it was stopped, with policies that have learned nothing: what is finished is in cells.jsonl.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jsonargparse
from rich.console import Console

from foredraft.cli.comparing import interleave_domains
from foredraft.cli.config import ENGLISH
from foredraft.cli.machine import describe_machine, provenance
from foredraft.cli.packaged import resolve_target
from foredraft.controller import (
    AdaptiveLookahead,
    ConfidenceThreshold,
    EntropyBound,
    GammaBandit,
    HeuristicSchedule,
    SurvivalThreshold,
)
from foredraft.controller.config import check_integer
from foredraft.data import Prompt, load_prompts
from foredraft.data.files import write_json
from foredraft.spec import (
    FixedLookahead,
    LookaheadPolicy,
    SamplingParams,
    SpeculativeDecoder,
    model_fingerprint,
    settle_cpu,
)
from foredraft.spec.load_parts import draft_model
from policies_cells import Cells, measure
from policies_cost import decision_cost
from policies_figures import ADAPTIVE, PLAIN, compared, print_tables

PEERS = ("heuristic", "confidence", "entropy", "survival", "bandit")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesBenchmark:
    """Compare the adaptive lookahead with fixed γ and with other people's policies.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    draft: str
    """Hub id or folder of its draft."""
    lookahead: str
    """Folder of a fitted lookahead."""
    output: str = "runs/policies"
    """Folder for policies.json and cells.jsonl."""
    gammas: tuple[int, ...] = (1, 2, 3, 4, 6)
    """Arms of a fixed γ; plain decoding is always one."""
    peers: tuple[str, ...] = ("heuristic", "confidence")
    """Arms: transformers' heuristic (+2 / −1) and confidence threshold (0.4), SVIP's "entropy" bound,
    SpecDec++'s "survival" threshold on our predictor, "bandit" over γ."""
    prompts: str = "shipped"
    """"shipped", a .jsonl file, a folder of them, or a datasets id; split "test" is used."""
    domains: tuple[str, ...] = ENGLISH
    """Domains of the prompts."""
    prompts_per_domain: int = 1
    """Prompts of each domain."""
    max_tokens: int = 48
    """Most tokens of an output."""
    temperature: float = 0.0
    """0 decodes greedily, and outputs are compared token for token."""
    repeats: int = 7
    """Times each prompt is decoded in each arm; all prompts once, then all again."""
    max_seconds: float | None = None
    """Begin no further prompt after this time; none: no limit. The same command goes on."""
    device: str = "cpu"
    """Device of both models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""
    threads: int | None = None
    """Threads of torch; none: its own choice."""

    def __post_init__(self) -> None:
        for name in ("prompts_per_domain", "max_tokens", "repeats"):
            check_integer(name, getattr(self, name), low=1)
        for gamma in self.gammas:
            check_integer("gammas", gamma, low=1)
        if not self.gammas or len(set(self.gammas)) < len(self.gammas):
            raise ValueError(f"gammas must be distinct, at least one, got {self.gammas!r}")
        for peer in self.peers:
            if peer not in PEERS:
                raise ValueError(f"peers must be of {', '.join(PEERS)}, got {peer!r}")


def make_policies(
    config: PoliciesBenchmark, adaptive: AdaptiveLookahead
) -> dict[str, LookaheadPolicy]:
    """Return the arms by name, none of which has learned anything."""
    peers: dict[str, LookaheadPolicy] = {
        "heuristic": HeuristicSchedule(),
        "confidence": ConfidenceThreshold(),
        "entropy": EntropyBound(),
        "survival": SurvivalThreshold(adaptive.predictor),
        "bandit": GammaBandit(),
    }
    arms: dict[str, LookaheadPolicy] = {PLAIN: FixedLookahead(0)}
    arms |= {f"γ = {gamma}": FixedLookahead(gamma) for gamma in config.gammas}
    arms |= {name: peers[name] for name in config.peers}
    return arms | {ADAPTIVE: adaptive}


def run_benchmark(
    config: PoliciesBenchmark,
    decoder: SpeculativeDecoder,
    adaptive: AdaptiveLookahead,
    prompts: Sequence[Prompt],
    console: Console,
) -> dict[str, Any]:
    """Measure what is left to measure, print the tables, write policies.json and return its content.

    Args:
        adaptive: nothing learned; what a decision of it costs is measured with copies.
    """
    cells = Cells(Path(config.output), _origin(config, decoder, prompts))
    params = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens, seed=0)
    cost = decision_cost(decoder, adaptive, prompts[0], params)
    arms = {name: decoder.twin(policy) for name, policy in make_policies(config, adaptive).items()}
    begun = time.perf_counter()
    for repeat in range(config.repeats):
        for index, prompt in enumerate(prompts):
            late = config.max_seconds is not None and (
                time.perf_counter() - begun > config.max_seconds
            )
            if (repeat, index) not in cells.done and not late:
                cells.add(repeat, index, measure(arms, prompt, params, seed=len(cells.done)))
    done = cells.by_prompt([prompt.domain for prompt in prompts])
    if not done:
        raise ValueError(f"max_seconds must leave time for a prompt, got {config.max_seconds!r}")
    total, domains = compared(done, greedy=params.greedy)
    print_tables(total, domains, console)
    wanted = config.repeats * len(prompts)
    console.print(
        f"{len(cells.done)} of {wanted} decodings in each arm"
        + ("" if len(cells.done) == wanted else "; the same command does the others")
    )
    if cost is not None:
        console.print(
            f"a decision of the adaptive lookahead: {cost.decision_us:.0f} µs, "
            f"{cost.share:.1%} of a draft step of {1e-3 * cost.draft_step_us:.2f} ms; "
            f"the rest of a round: {cost.round_us:.0f} µs"
        )
    content = {
        "settings": asdict(config),
        "command": " ".join(sys.argv),
        **provenance(config.device),
        "decodings": len(cells.done),
        "decodings_wanted": wanted,
        "total": asdict(total),
        "domains": {name: asdict(part) for name, part in domains.items()},
        "decision": None if cost is None else asdict(cost),
    }
    path = Path(config.output) / "policies.json"
    write_json(path, content)
    console.print(f"written: {path}")
    return content


def _origin(
    config: PoliciesBenchmark, decoder: SpeculativeDecoder, prompts: Sequence[Prompt]
) -> dict[str, Any]:
    """Return what cells must share to be compared."""
    machine = describe_machine(config.device)
    return {
        "target": model_fingerprint(decoder.target.model),
        "draft": model_fingerprint(draft_model(decoder.drafter)),
        "lookahead": config.lookahead,
        "arms": [f"γ = {gamma}" for gamma in config.gammas] + list(config.peers),
        "prompts": [prompt.id for prompt in prompts],
        "max_tokens": config.max_tokens,
        "temperature": config.temperature,
        "machine": machine.cpu,
        "threads": machine.threads,
        "dtype": config.dtype,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 2 where the input was wrong."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(description=(PoliciesBenchmark.__doc__ or "").strip())
    parser.add_class_arguments(PoliciesBenchmark)
    try:
        config = PoliciesBenchmark(**parser.parse_args(argv).as_dict())
        settle_cpu(config.threads)
        decoder = SpeculativeDecoder.from_pretrained(
            resolve_target(config.target),
            draft=config.draft,
            device=config.device,
            dtype=config.dtype,
        )
        adaptive = AdaptiveLookahead.load(
            config.lookahead,
            target=model_fingerprint(decoder.target.model),
            draft=model_fingerprint(draft_model(decoder.drafter)),
        )
        prompts = interleave_domains(
            load_prompts(
                config.prompts,
                domains=config.domains,
                split="test",
                limit_per_domain=config.prompts_per_domain,
            )
        )
        run_benchmark(config, decoder, adaptive, prompts, Console(width=140))
    except ValueError as error:
        print(f"policies.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
