"""What `foredraft demo` and `foredraft compare` measured, in plain numbers: report.json's schema.

A part that was not run is None. Times are seconds, or milliseconds where the name says so; rates
are shares of 1.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it ran."""

    cpu: str
    cores: int
    threads: int  # that torch used
    memory_gb: float
    device: str
    platform: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What it ran with."""

    python: str
    torch: str
    transformers: str
    foredraft: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model that decides."""

    name: str
    parameters: int
    layers: int
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The model that proposes."""

    folder: str
    layers: int
    parameters: int
    head_tokens: int | None = None  # rows of a cut head; None where the head is whole
    coverage: float | None = None  # the target's mass on the kept tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the run."""

    name: str
    seconds: float
    reused: bool  # found on disk from an earlier run
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The text that the target wrote for training."""

    rows: int
    complete_rows: int  # ended by the target itself; only these are trained on
    tokens: int
    prompts: int
    domains: dict[str, int]  # name -> rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The state of training after `step` optimizer steps; None where it was not measured there."""

    step: int
    tokens: int
    seconds: float
    loss: float | None = None
    alpha: float | None = None
    top1: float | None = None
    kl: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftQuality:
    """A draft on held-out text, teacher forced at temperature 1, over the target's vocabulary."""

    alpha: float  # mean Σ min(p, q)
    top1: float  # share of positions where both like the same token best
    kl: float  # nats
    coverage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopAlpha:
    """α as the decode loop saw it at temperature 1, and teacher forced on the same text."""

    alpha: float
    low: float
    high: float
    tested: int  # drafted tokens that the target judged
    teacher_forced: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How the draft learned."""

    curve: list[CurvePoint]
    before: DraftQuality
    best: DraftQuality  # of the checkpoint that is used
    alpha_loop: LoopAlpha | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What a forward costs on this machine."""

    draft_step_ms: float
    verify_ms: list[float]  # [n]: item i is a target forward over i + 1 tokens
    overhead_ms: float  # of a round, outside the two models
    context_length: int
    contended: bool  # other work kept the machine busy while it was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """Tokens of about the same predicted chance of acceptance."""

    predicted: float  # mean prediction
    observed: float  # share that was accepted
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """How well acceptance is foretold on held-out traces."""

    rows: int
    auc: float
    log_loss: float  # nats
    ece_raw: float  # expected calibration error before calibration
    ece: float
    reliability: list[ReliabilityBin]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSpeed:
    """One arm on the prompts of one domain."""

    tokens_per_second: float
    speedup: float
    speedup_low: float | None = None
    speedup_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of decoding the same prompts. Rates are None where nothing was drafted."""

    name: str
    gamma: int | Literal["adaptive"]  # 0 is plain decoding
    tokens: int
    seconds: float
    rounds: int
    drafted: int
    accepted: int
    tested: int  # accepted + rejections
    acceptance_prob: float | None = None  # accepted / tested
    acceptance_rate: float | None = None  # accepted / drafted
    block_efficiency: float  # tokens per target forward
    draft_ms: float | None = None
    verify_ms: float
    tokens_per_second: float
    speedup: float
    speedup_low: float
    speedup_high: float
    equal_outputs: int  # token for token the same as plain decoding
    outputs: int  # compared; 0 where outputs are drawn and cannot be compared
    accepted_lengths: dict[int, int] = field(default_factory=dict)  # length -> rounds with γ > 0
    gammas: dict[int, int] = field(default_factory=dict)  # tokens drafted -> rounds
    domains: dict[str, DomainSpeed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All arms, measured in one run on the same prompts."""

    prompts: int
    max_tokens: int
    temperature: float
    dtype: str
    repeats: int
    arms: list[Arm]
    interval: str | None = None  # how speedup_low and speedup_high were found, in words
    reference_equal: int | None = None  # prompts on which plain equals transformers' generate


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run. Only plain Python numbers and strings, so that JSON holds all of it."""

    created: str  # ISO 8601
    command: str
    machine: Machine
    versions: Versions
    target: Target
    commit: str | None = None
    draft: Draft | None = None
    stages: list[Stage] = field(default_factory=list)
    corpus: Corpus | None = None
    training: Training | None = None
    latency: Latency | None = None
    predictor: Predictor | None = None
    comparison: Comparison | None = None
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the report as JSON with sorted keys, the same text for the same report.

        Raises:
            ValueError: if a number is NaN or infinite; what was not measured is None.
        """
        return json.dumps(asdict(self), indent=2, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the report that `to_json` wrote.

        Raises:
            ValueError: if the text is not JSON, is of another schema, or a field is missing or of
                another type (the message names it).
        """
        from pydantic import TypeAdapter  # not at import: `foredraft --help` does without

        content = json.loads(text)
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"report: schema is {schema!r}, this version reads {SCHEMA}")
        return TypeAdapter(cls).validate_python(content)
