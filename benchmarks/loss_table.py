"""One draft trained with every loss on one corpus, from several seeds: acceptance, agreement, KL and speed.

    OMP_NUM_THREADS=2 python benchmarks/loss_table.py --target FOLDER --corpus FOLDER --out table.jsonl

A cell is a loss and a seed. Each ends as a line of the file, and lines that are there are not trained again:
interrupted, it goes on with the cell it was in, at its last checkpoint. The start is the same for all seeds
(the target's first layers and an aligned head); a seed is the order of the rows. Settings are the demo's
unless changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import jsonargparse
from rich.console import Console
from rich.table import Table

from foredraft.cli.config import DemoCommand
from foredraft.cli.machine import provenance
from foredraft.spec import load_causal_lm, load_tokenizer, pack_linears, settle_cpu
from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.config import LOSSES
from foredraft.train.tracking import ALPHA

DEMO = DemoCommand()
METRICS = {"alpha": ALPHA, "top1": "eval/T1/top1", "kl": "eval/T1/kl"}  # of a line, of the trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTable:
    """Train with every loss from every seed, in float32, and compare on the corpus's held-out rows."""

    target: str
    """Hub id or folder."""
    corpus: str
    """Folder of a corpus that the target wrote."""
    out: str
    """Lines of JSON, one a cell; the cell in training is in a folder beside it."""
    losses: tuple[str, ...] = LOSSES
    """Which to train with."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the order of the rows."""
    steps: int = DEMO.steps
    """Optimizer steps of a cell."""
    batch_rows: int = DEMO.batch_rows
    """Corpus rows in a step."""
    learning_rate: float = DEMO.learning_rate
    """Peak of the rate."""
    layers: int = DEMO.layers
    """Of the draft: the target's first."""
    head_tokens: int | None = DEMO.head_tokens
    """Tokens the draft can propose; none: all."""
    train_head: bool = False
    """Train the head too."""
    state_weight: float = DEMO.state_weight
    """Weight of the distance of states beside each loss; 0: the losses alone."""
    temperature: float = 1.0
    """Divides the logits of both in training; α is always measured at 1."""
    complete_only: bool = True
    """Train only on answers that ended by themselves."""
    eval_rows: int = 36
    """Held-out rows."""
    chunk_tokens: int = 256
    """Tokens whose logits exist at the same time."""
    save_every: int = 100
    """Steps between checkpoints of the cell in training."""

    def __post_init__(self) -> None:
        for name in ("losses", "seeds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be at least one, each once, got {values!r}")
        for loss, seed in cells(self):
            self._cell(loss, seed)

    def _cell(self, loss: str, seed: int) -> DistillConfig:
        """Return the run of a cell."""
        return DistillConfig(
            target=self.target, corpus=self.corpus, output=f"{self.out}.cell/{loss}-{seed}",
            loss=loss, seed=seed, steps=self.steps, batch_rows=self.batch_rows,
            learning_rate=self.learning_rate, layers=self.layers, head_tokens=self.head_tokens,
            train_head=self.train_head, state_weight=self.state_weight,
            temperature=self.temperature, complete_only=self.complete_only,
            eval_rows=self.eval_rows, chunk_tokens=self.chunk_tokens, save_every=self.save_every,
            eval_every=self.steps, eval_prompts=0, serving_temperatures=(), keep=1,
            report_to="none",
        )  # fmt: skip


def cells(config: LossTable) -> Iterator[tuple[str, int]]:
    """Yield losses and seeds, all losses of a seed before the next: part of a table compares them all."""
    for seed in config.seeds:
        for loss in config.losses:
            yield loss, seed


def run(config: LossTable, *, target: Any = None, tokenizer: Any = None) -> list[dict[str, Any]]:
    """Train the cells that are missing, write each one's line, and return all lines of the table.

    Args:
        target: if it is loaded already.
        tokenizer: the target's, if it is loaded already.

    Raises:
        ValueError: if the file has lines of other settings.
    """
    lines = read_lines(config)
    for loss, seed in cells(config):
        if any(line["loss"] == loss and line["seed"] == seed for line in lines):
            continue
        if target is None:
            settle_cpu()
            target = load_causal_lm(config.target, device="cpu", dtype="float32")
            pack_linears(target)
            tokenizer = load_tokenizer(config.target)
        cell = config._cell(loss, seed)
        result = distill(cell, target=target, tokenizer=tokenizer)
        line = json.dumps(_line(config, loss, seed, result))
        with Path(config.out).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        shutil.rmtree(cell.output)
        lines.append(json.loads(line))
    return lines


def read_lines(config: LossTable) -> list[dict[str, Any]]:
    """Return the finished cells of the file, without a line cut by an interruption."""
    path = Path(config.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    whole = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
        whole.append(text + "\n")
    if path.is_file():
        path.write_text("".join(whole), encoding="utf-8")
    wanted = _settings(config)
    for line in lines:
        for name, value in wanted.items():
            if line["settings"][name] != value:
                raise ValueError(
                    f"{name} is {value!r}, but {path} has a line of {line['settings'][name]!r}"
                )
    return lines


def _settings(config: LossTable) -> dict[str, Any]:
    """Return what all lines of a table have in common, as it is in JSON."""
    own = ("losses", "seeds", "out", "chunk_tokens", "save_every")
    return {name: value for name, value in asdict(config).items() if name not in own}


def _line(config: LossTable, loss: str, seed: int, result: DistillResult) -> dict[str, Any]:
    """Return a cell's figures: of the last evaluation, not the best, which would be chosen by them."""
    evaluations = [row for row in result.curve if ALPHA in row]
    rates = [row["perf/tokens_per_s"] for row in result.curve if "perf/tokens_per_s" in row]
    return {
        "loss": loss,
        "seed": seed,
        **{name: evaluations[-1][key] for name, key in METRICS.items()},
        "start": {name: evaluations[-2][key] for name, key in METRICS.items()},
        "tokens_per_s": median(rates),
        "tokens": max(row.get("train/tokens", 0.0) for row in result.curve),
        "settings": _settings(config),
        **provenance("cpu"),
    }


def table(lines: list[dict[str, Any]]) -> Table:
    """Return means and standard deviations over the seeds, the largest α first."""
    shown = Table("loss", "seeds", "α at T = 1", "top-1", "KL, nats", "tokens/s", title="losses")
    start = lines[0]["start"]
    by_loss = {loss: [one for one in lines if one["loss"] == loss] for loss in LOSSES}
    found = [(loss, some) for loss, some in by_loss.items() if some]
    found.sort(key=lambda pair: -mean(one["alpha"] for one in pair[1]))
    for loss, some in found:
        spread = [
            mean_and_deviation([one[name] for one in some]) for name in ("alpha", "top1", "kl")
        ]
        rate = f"{median(one['tokens_per_s'] for one in some):.0f}"
        shown.add_row(loss, str(len(some)), *spread, rate)
    shown.add_row("(start)", "", *(f"{start[name]:.4f}" for name in METRICS), "")
    return shown


def mean_and_deviation(values: list[float]) -> str:
    """Return "mean ± sd" of a sample; the mean alone where it is one value."""
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def main() -> None:
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    config = jsonargparse.auto_cli(LossTable, as_positional=False)
    Console().print(table(run(config)))


if __name__ == "__main__":
    main()
