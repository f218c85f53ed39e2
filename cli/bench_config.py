"""What `foredraft bench` and `foredraft advise` can be asked for. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from ..controller.config import check_integer

POLICIES = ("adaptive", "bandit", "confidence", "heuristic")
LOSING = (
    "other-domain",
    "large-draft",
    "long-candidates",
    "short-outputs",
    "large-batches",
    "two-models-memory",
    "other-tokenizer",
)
"""Names of the conditions in which speculation is known to lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCommand:
    """Measure every drafter with every policy beside plain decoding, interleaved in one run; resumes."""

    target: str = ""
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    drafters: tuple[str, ...] = ("prompt-lookup",)
    """Hub ids or folders of draft models, "prompt-lookup", or another name that a decoder's `draft` takes."""
    policies: tuple[int | str, ...] = (2, 4, "adaptive")
    """Fixed γ, "adaptive", "bandit", "confidence" or "heuristic". Plain decoding is always there."""
    lookahead: str | None = None
    """Folder of a fitted lookahead for "adaptive", used for the draft it was fitted with. Every other draft
    model gets one that is fitted before the run; prompt lookup learns from rounds, others get the bandit."""
    preset: tuple[str, ...] = ()
    """Losing conditions to measure in place of the settings below: names of them, or "losing" for all seven."""
    prompts: str = "shipped"
    """"shipped", a .jsonl file, a folder of them, or a datasets id; split "test" is used."""
    domains: tuple[str, ...] | None = None
    """Domains of the prompts; none: all."""
    prompts_per_domain: int = 2
    """Prompts of each domain; in a batch, so many batches."""
    prompt_tokens: tuple[int, ...] = ()
    """Lengths to which prompts are cut or filled up with others of their domain; none: as they are."""
    max_tokens: tuple[int, ...] = (64,)
    """Most tokens of an output, one or more lengths."""
    batch_sizes: tuple[int, ...] = (1,)
    """Prompts decoded at once."""
    temperatures: tuple[float, ...] = (0.0,)
    """0 is greedy: outputs are compared token for token. Above it the law of the outputs is tested."""
    repeats: int = 1
    """Times each prompt is decoded in each arm; the median of its times counts."""
    seed: int = 0
    """Seeds the order of the arms and the sampled outputs."""
    max_seconds: float | None = None
    """Start no further prompt after this time; the same command goes on with the rest. None: no limit."""
    memory_gb: float | None = None
    """Most memory of a draft's weights; above it there is only plain decoding. None: what is free."""
    output: str = "runs/bench"
    """Folder for cells.jsonl, bench.json, bench.parquet and bench.html."""
    report_to: str = "none"
    """"wandb" also logs the table there (offline without a key)."""
    device: str = "cpu"
    """Device of all models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""
    compare: tuple[str, ...] = ()
    """Two bench.json to compare instead of measuring."""

    def __post_init__(self) -> None:
        if self.compare:
            if len(self.compare) != 2:
                raise ValueError(f"compare must be two files, got {list(self.compare)}")
            return
        if not self.target:
            raise ValueError("target must be a hub id or a folder, got ''")
        check_arms(self.drafters, self.policies)
        for name in self.preset:
            if name not in (*LOSING, "losing"):
                raise ValueError(f'preset must be of "losing", {", ".join(LOSING)}, got {name!r}')
        for name in ("prompts_per_domain", "repeats"):
            check_integer(name, getattr(self, name), low=1)
        check_integer("seed", self.seed, low=0)
        for name in ("prompt_tokens", "max_tokens", "batch_sizes"):
            for value in getattr(self, name):
                check_integer(name, value, low=1)
        for name in ("max_tokens", "batch_sizes", "temperatures"):
            if not getattr(self, name):
                raise ValueError(f"{name} must have one value or more, got none")
        if any(value < 0 for value in self.temperatures):
            raise ValueError(f"temperatures must be >= 0, got {self.temperatures!r}")
        if self.report_to not in ("none", "wandb"):
            raise ValueError(f'report_to must be "none" or "wandb", got {self.report_to!r}')


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseCommand:
    """Say from a short measurement which drafter and policy to use, and when not to bother."""

    target: str
    """Hub id or folder of a causal LM, or "smollm2" for the packaged one."""
    drafters: tuple[str, ...] = ("prompt-lookup",)
    """What there is to draft with; see `foredraft bench`."""
    policies: tuple[int | str, ...] = (2, 4, "adaptive")
    """Fixed γ, "adaptive", "bandit", "confidence" or "heuristic"."""
    lookahead: str | None = None
    """Folder of a fitted lookahead for "adaptive"."""
    prompts: str = "shipped"
    """Your own prompts: a .jsonl file or a folder of them; "shipped" or a datasets id."""
    domains: tuple[str, ...] | None = None
    """Domains of the prompts; none: all."""
    prompts_per_domain: int = 2
    """Prompts of each domain."""
    max_tokens: int = 48
    """Most tokens of an output."""
    batch_size: int = 1
    """Prompts decoded at once."""
    temperature: float = 0.0
    """Of your requests; 0 is greedy."""
    max_seconds: float | None = 300.0
    """Start no further prompt after this time."""
    output: str = "runs/advise"
    """Folder of the measurement; the same call again goes on with it."""
    device: str = "cpu"
    """Device of all models."""
    dtype: str = "float32"
    """float32, bfloat16 or float16."""

    def __post_init__(self) -> None:
        check_arms(self.drafters, self.policies)
        for name in ("prompts_per_domain", "max_tokens", "batch_size"):
            check_integer(name, getattr(self, name), low=1)


def check_arms(drafters: tuple[str, ...], policies: tuple[int | str, ...]) -> None:
    """Raise where a list is empty, names something twice, or names an unknown policy.

    Raises:
        ValueError: naming the field and the value.
    """
    for name, values in (("drafters", drafters), ("policies", policies)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} must be distinct, one or more, got {list(values)}")
    for policy in policies:
        if isinstance(policy, str):
            if policy not in POLICIES:
                raise ValueError(f"policies must be γ or {', '.join(POLICIES)}, got {policy!r}")
        else:
            check_integer("policies", policy, low=1)
