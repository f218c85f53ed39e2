"""run.yaml: what a run was made from, and the check that a resumed one is made from the same."""

from __future__ import annotations

import platform
import subprocess
import sys
import uuid
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from ..data.files import replacing
from .checkpoint import newest_checkpoint
from .config import OUTPUT_NEUTRAL, DistillConfig

FILE = "run.yaml"


def open_record(
    config: DistillConfig, sources: dict[str, Any], circumstances: dict[str, Any]
) -> dict[str, Any]:
    """Return the record of this run, this attempt added to those before it.

    A field that the record lacks is younger than the run and has its default, which is what was
    done before there was a field.

    Args:
        sources: hashes and counts of what the run is made from; the same for every attempt.
        circumstances: what else to note of this attempt.

    Raises:
        ValueError: if the output folder holds a run of another config or sources; names both.
    """
    path = Path(config.output) / FILE
    wanted = {"config": _plain(config), "sources": sources}
    attempt = _describe_attempt() | circumstances
    if newest_checkpoint(path.parent) is None:  # nothing to resume, whatever was tried before
        return {"id": uuid.uuid4().hex[:8], **wanted, "attempts": [attempt]}
    if not path.is_file():
        raise ValueError(f"output: {config.output} holds checkpoints, but no {FILE} says of what")
    record = _read(path)
    defaults = _plain(DistillConfig(target=config.target, corpus=config.corpus))
    _check_same(config, "config", defaults | record["config"], wanted["config"])
    _check_same(config, "sources", record["sources"], wanted["sources"])
    return {**record, **wanted, "attempts": [*record["attempts"], attempt]}


def write_record(config: DistillConfig, record: dict[str, Any]) -> None:
    """Write run.yaml; the file there before is whole until the new one is."""
    text = yaml.safe_dump(record, sort_keys=False, allow_unicode=True)
    with replacing(Path(config.output) / FILE) as part:
        part.write_text(text)


def _read(path: Path) -> dict[str, Any]:
    record = yaml.safe_load(path.read_text())
    parts = {"id": str, "config": dict, "sources": dict, "attempts": list}
    for name, kind in parts.items():
        if not isinstance(record, dict) or not isinstance(record.get(name), kind):
            raise ValueError(f"{path}: not the record of a run, it has no {name}")
    return dict(record)


def _check_same(
    config: DistillConfig, part: str, recorded: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """Raise at the first of the recorded values, in order, that is not what is wanted."""
    for name in recorded | wanted:
        if part == "config" and name in OUTPUT_NEUTRAL:
            continue
        if name not in wanted:
            raise ValueError(
                f"{name} = {recorded[name]!r} is in the {part} of the run in {config.output}, but unknown to "
                "this version of foredraft: resume it with the one that began it, or give another output"
            )
        if name not in recorded:
            raise ValueError(
                f"{name} is {wanted[name]!r}, but the run in {config.output} is older than that and does not "
                "say what it had: resume it with the version that began it, or give another output"
            )
        if recorded[name] != wanted[name]:
            raise ValueError(
                f"{name} is {wanted[name]!r}, but the run in {config.output} has {recorded[name]!r}: "
                "give the same to resume it, or another output"
            )


def _plain(config: DistillConfig) -> dict[str, Any]:
    """Return the fields as YAML gives them back: it has lists and no tuples."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(config).items()
    }


def _describe_attempt() -> dict[str, Any]:
    names = ("foredraft", "torch", "transformers", "accelerate")
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "commit": _commit(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in names},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # run from a checkout
        return None


def _commit() -> str | None:
    """Return the commit of the code that runs, where it is a git checkout, and "-dirty" where it was edited."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40"]
    command += ["--exclude=*", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
