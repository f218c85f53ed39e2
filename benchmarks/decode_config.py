"""What the decode benchmark can be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from foredraft.cli.config import ENGLISH
from foredraft.controller.config import check_integer

KINDS = (
    "generate", "generate-packed", "assisted", "assisted-packed", "heuristic", "confidence", "lookup",
    "plain", "ours", "adaptive", "drop-in",
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
    ways on the models as transformers loads them; generate-packed, assisted-packed, which are its ways on
    the packed layers that ours runs on; plain (γ = 0), ours, adaptive, drop-in, which are ours."""
    heads: tuple[str, ...] = ("cut",)
    """The assistant's head where the draft has a cut one: "cut" (as ours uses it), "whole" (as a plain
    load of the folder gives it), or both. assisted-packed always has ours."""
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
        if "adaptive" in self.arms and self.arms != KINDS and self.lookahead is None:
            raise ValueError("arms: adaptive needs lookahead, the folder of a fitted one, got None")
