"""What `foredraft bench` measured, in plain numbers: the schema of bench.json and of cells.jsonl.

What was not measured is None. Times are seconds, or milliseconds where the name says so.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from .report_data import Machine, Target, Versions

SCHEMA = 1
PLAIN = "plain"
ALL = "all"  # domains together


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Under what a prompt was decoded, by whom."""

    condition: str
    drafter: str  # as it was asked for; "none" where nothing drafts
    policy: str  # "γ = 2", "adaptive", …; "plain" where nothing drafts
    domain: str
    prompt_tokens: int | None  # asked for; None: prompts as they are
    max_tokens: int
    rows: int  # prompts at once
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds of a call in order of their ends, a column each."""

    context: list[int] = field(default_factory=list)  # tokens committed before the round
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    draft_steps: list[int] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    verify_seconds: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)  # seconds after the call began
    gap: list[float | None] = field(default_factory=list)  # since the request's last round


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One block of prompts, decoded once by one arm: a line of cells.jsonl."""

    setting: Setting
    index: int  # of the block in its domain
    repeat: int
    prompt_lengths: list[int]
    output_lengths: list[int]
    seconds: float  # of the whole call
    decode_seconds: float  # of the call, without reading the prompts
    rounds: Rounds
    equal: int | None  # outputs with plain decoding's tokens; None where they were sampled
    ties: int | None  # differing ones that rounding explains: nearly equal logits
    ranks: list[float]  # of sampled tokens in the target's law, see bench_law; else empty
    cache_bytes: int
    peak_bytes: int  # of the process or the card while it ran


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the models of an arm hold, in bytes."""

    weights: int  # shared ones once
    packed: int  # copies of weights in another layout, see pack_linears


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm under one setting, all its prompts and repeats together."""

    setting: Setting
    about: str
    requests: int
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    tested: int
    acceptance_rate: float | None  # accepted / drafted
    acceptance_prob: float | None  # accepted / tested: α in the loop
    block_efficiency: float  # τ: tokens a target forward emits for a request
    accepted_lengths: dict[int, int]
    gammas: dict[int, int]
    draft_ms: float | None  # a step, median over rounds but each request's first that drafts
    verify_ms: float  # a forward, median over rounds; a row's share in a batch
    ttft_ms: float  # from the call to a request's first token, median
    itl_ms: float | None  # between a reader's deliveries, median; a round's tokens come together
    itl_p95_ms: float | None
    itl_p99_ms: float | None
    tpot_ms: float  # seconds of decoding per output token of a request
    tokens_per_second: float  # of all rows, prompts not read in it
    call_tokens_per_second: float  # of whole calls
    speedup: float  # over plain decoding in the same run, prompts not read in it
    speedup_low: float | None  # None where there is one prompt
    speedup_high: float | None
    call_speedup: float  # of whole calls
    equal: int | None
    ties: int | None
    outputs: int
    law_distance: float | None  # Kolmogorov–Smirnov, of ranks from uniform
    law_tokens: int
    law_odds: float | None  # most that chance would give so far off a law that is right
    memory: Memory
    cache_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCost:
    """A target forward for one request, of all arms together."""

    condition: str
    tokens: int  # in the forward: drafted + 1
    context_low: int  # tokens before it, from here …
    context_high: int  # … to below this
    count: int
    ms: float  # median


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An arm that could not be run."""

    condition: str
    drafter: str
    policy: str | None  # None: no policy at all
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What was varied, in words."""

    name: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """One run. Only plain Python numbers and strings, so that JSON holds all of it."""

    created: str  # ISO 8601
    command: str
    commit: str | None
    machine: Machine
    versions: Versions
    target: Target
    settings: dict[str, Any]
    conditions: list[Condition]
    blocks: int  # measured
    wanted: int  # asked for
    cells: list[Cell]
    verify: list[VerifyCost]
    refusals: list[Refusal]
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the report as JSON.

        Raises:
            ValueError: if a number is NaN or infinite.
        """
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> BenchReport:
        """Return the report that `to_json` wrote.

        Raises:
            ValueError: if the text is not JSON, is of another schema, or a field is missing.
        """
        from pydantic import TypeAdapter  # not at import: `foredraft --help` does without

        content = json.loads(text)
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != SCHEMA:
            raise ValueError(f"bench: schema is {schema!r}, this version reads {SCHEMA}")
        return TypeAdapter(cls).validate_python(content)
