"""The costs of a round on this machine: measured as whole rounds of the real loop, kept as JSON.

Invariant: a table says on which machine it was measured and is refused on another. The verify curve
keeps its steps, which the controller plans around; only falls within the noise are pooled (steps.py).
Context and rows of a batch come on top of it (context_costs.py).
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .config import check_integer
from .context_costs import NO_SLOPES, BatchCosts, ContextSlopes, estimated_batch
from .economics import RoundCosts

SCHEMA = 2
FLAT_SCHEMA = 1  # had one context and one row; read as not growing with either


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFingerprint:
    """What a latency depends on besides the models."""

    device: str
    torch_version: str
    threads: int

    @classmethod
    def here(cls, device: torch.device | str) -> MachineFingerprint:
        """Return the fingerprint of a device of this machine, as this process uses it."""
        device = torch.device(device)
        if device.type == "cuda":
            name = (
                torch.cuda.get_device_name(device) if torch.cuda.is_available() else "cuda (none)"
            )
        else:
            name = f"{device.type} {_processor()}"
        return cls(device=name, torch_version=torch.__version__, threads=torch.get_num_threads())


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTable:
    """Seconds of the parts of a round, low quantiles over repeats.

    Raises:
        ValueError: naming the field that is not positive.
    """

    draft_step_seconds: float  # one draft forward, the choice of the token included
    verify_seconds: tuple[float, ...]  # the target's forward over 1, 2, …, γ_max + 1 tokens
    overhead_seconds: float  # the rest of a round
    context_length: int  # while measuring
    machine: MachineFingerprint
    device: str = "cpu"  # of the models, as torch names it
    target: str = ""  # model fingerprints; empty where not known
    draft: str = ""
    spread: float = 1.0  # median over 10% quantile of the repeats, the median over the cells
    contended: bool = False  # the machine was busy to the last pass: the figures may be high
    slopes: ContextSlopes = NO_SLOPES  # by the token of context
    batches: tuple[BatchCosts, ...] = ()  # that were measured

    def __post_init__(self) -> None:
        cells = (self.draft_step_seconds, *self.verify_seconds)
        if len(self.verify_seconds) < 2 or not all(0.0 < cell < float("inf") for cell in cells):
            raise ValueError(
                "draft_step_seconds and verify_seconds (of 1 and more tokens) must be positive, "
                f"got {self.draft_step_seconds!r} and {self.verify_seconds!r}"
            )
        if not 0.0 <= self.overhead_seconds < float("inf"):
            raise ValueError(f"overhead_seconds must be >= 0, got {self.overhead_seconds!r}")
        check_integer("context_length", self.context_length, low=1)

    @property
    def gamma_max(self) -> int:
        """The largest γ that was measured."""
        return len(self.verify_seconds) - 1

    @property
    def cost_ratio(self) -> float:
        """c: seconds of a draft step per second of a one-token target step."""
        return self.draft_step_seconds / self.verify_seconds[0]

    def costs(
        self, gamma_max: int, *, context_length: int | None = None, rows: int = 1
    ) -> RoundCosts:
        """Return the costs up to `gamma_max`.

        Args:
            context_length: tokens committed; None: as many as while measuring.
            rows: of a batch; the costs are a row's part then, measured where the table has such a batch,
                else estimated from the curve of a single row.
        """
        check_integer("gamma_max", gamma_max, low=1, high=self.gamma_max)
        check_integer("rows", rows, low=1)
        draft, verify = self.draft_step_seconds, self.verify_seconds
        overhead = self.overhead_seconds
        if rows > 1:
            measured = (each for each in self.batches if each.rows == rows)
            batch = next(measured, None) or estimated_batch(rows, draft, verify, overhead)
            draft, verify = batch.draft_step_seconds, batch.verify_seconds
            overhead = batch.overhead_seconds
        more = 0 if context_length is None else context_length - self.context_length
        slopes = self.slopes.verify(len(verify))
        return RoundCosts(
            draft_step=_grown(draft, self.slopes.draft, more),
            verify=tuple(
                _grown(seconds, slope, more)
                for seconds, slope in zip(verify[: gamma_max + 1], slopes, strict=False)
            ),
            plain_overhead=overhead,
            round_overhead=overhead,
        )

    def save(self, path: str | Path) -> None:
        """Write the table as JSON."""
        content = {"schema": SCHEMA, **asdict(self)}
        Path(path).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        machine: MachineFingerprint | None = None,
        target: str | None = None,
        draft: str | None = None,
    ) -> LatencyTable:
        """Read a table.

        Args:
            machine: where it is to be used; None: this machine, as this process uses it.
            target, draft: fingerprints of the models in use; None: not checked.

        Raises:
            ValueError: if the file is missing, broken, of another schema, or measured elsewhere.
        """
        try:
            content: dict[str, Any] = json.loads(Path(path).read_text())
            schema = content.pop("schema", None)
            if schema not in (FLAT_SCHEMA, SCHEMA):
                raise ValueError(
                    f"schema is {schema!r}, this version reads {FLAT_SCHEMA} and {SCHEMA}; measure again"
                )
            content["machine"] = MachineFingerprint(**content["machine"])
            content["verify_seconds"] = tuple(content["verify_seconds"])
            if schema == SCHEMA:
                content["slopes"] = ContextSlopes(**content["slopes"])
                content["batches"] = tuple(map(_batch, content["batches"]))
            table = cls(**content)
            table._check(machine or MachineFingerprint.here(table.device), target, draft)
        except (OSError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a usable latency table: {error}") from error
        return table

    def _check(self, machine: MachineFingerprint, target: str | None, draft: str | None) -> None:
        used = {**asdict(machine), "target": target, "draft": draft}
        measured = {**asdict(self.machine), "target": self.target, "draft": self.draft}
        for name, value in used.items():
            if value is not None and measured[name] != value:
                raise ValueError(
                    f"measured with {name} = {measured[name]!r}, but here it is {value!r}; "
                    "measure again"
                )


def _grown(seconds: float, slope: float, tokens: int) -> float:
    """Return the seconds at so many tokens more of context; at fewer, at least half of what was measured."""
    return max(0.5 * seconds, seconds + slope * tokens)


def _batch(content: dict[str, Any]) -> BatchCosts:
    return BatchCosts(**(content | {"verify_seconds": tuple(content["verify_seconds"])}))


def _processor() -> str:
    """Return the processor's name, which platform.processor() leaves out on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
