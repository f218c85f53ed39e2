"""A bench's cells as flat rows: the columns of bench.parquet and of the W&B table."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..data.files import replacing
from ..data.parquet import write_parquet
from .bench_data import BenchReport, Cell, Setting

_KINDS = {"str": "string", "int": "int64", "float": "float64"}
_NESTED = ("setting", "memory", "accepted_lengths", "gammas")


def rows_of(report: BenchReport) -> list[dict[str, Any]]:
    """Return a row a cell; histograms as JSON texts."""
    return [_row(cell) for cell in report.cells]


def write_table(report: BenchReport, path: Path) -> None:
    """Write the rows as Parquet; an older file stays whole until it is replaced."""
    rows = rows_of(report)
    kinds = _kinds()
    columns = {name: [row[name] for row in rows] for name in kinds}
    with replacing(path) as part:
        write_parquet(part, columns, kinds)


def _row(cell: Cell) -> dict[str, Any]:
    setting = {each.name: getattr(cell.setting, each.name) for each in fields(Setting)}
    own = {each.name: getattr(cell, each.name) for each in fields(Cell) if each.name not in _NESTED}
    return {
        **setting,
        **own,
        "weight_bytes": cell.memory.weights,
        "packed_bytes": cell.memory.packed,
        "accepted_lengths": json.dumps(cell.accepted_lengths),
        "gammas": json.dumps(cell.gammas),
    }


def _kinds() -> dict[str, str]:
    """Return column -> kind of its values, from the annotations."""
    kinds = {}
    for each in (*fields(Setting), *fields(Cell)):
        if each.name not in _NESTED:
            kinds[each.name] = _KINDS[str(each.type).removesuffix(" | None")]
    extra = {"weight_bytes": "int64", "packed_bytes": "int64"}
    return kinds | extra | {"accepted_lengths": "string", "gammas": "string"}
