"""The saved controller: `lookahead.json` (policy, settings), `predictor.json`, `latency.json`.

What a policy learned online is not saved: it belongs to the text and the machine of the moment.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .config import AdaptiveConfig, check_integer
from .latency import LatencyTable, MachineFingerprint
from .predictor import AcceptancePredictor

LOOKAHEAD_FILE, PREDICTOR_FILE, LATENCY_FILE = "lookahead.json", "predictor.json", "latency.json"
POLICY = "adaptive"
SCHEMA = 1


def write_lookahead(
    folder: str | Path,
    predictor: AcceptancePredictor,
    latency: LatencyTable,
    gamma_max: int,
    config: AdaptiveConfig,
) -> None:
    """Write the three files; `lookahead.json` last, so that a folder that has it is whole."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / LOOKAHEAD_FILE).unlink(missing_ok=True)
    predictor.save(path / PREDICTOR_FILE)
    latency.save(path / LATENCY_FILE)
    content = {
        "policy": POLICY,
        "schema": SCHEMA,
        "gamma_max": gamma_max,
        "config": asdict(config),
        "target": predictor.target,
        "draft": predictor.draft,
    }
    (path / LOOKAHEAD_FILE).write_text(json.dumps(content, indent=1) + "\n")


def read_lookahead(
    folder: str | Path,
    *,
    target: str | None,
    draft: str | None,
    machine: MachineFingerprint | None,
) -> tuple[AcceptancePredictor, LatencyTable, int, AdaptiveConfig]:
    """Return what `write_lookahead` wrote.

    Raises:
        ValueError: naming the file that is missing, broken, of another schema, or made for others.
    """
    path = Path(folder)
    description = path / LOOKAHEAD_FILE
    try:
        content: dict[str, Any] = json.loads(description.read_text())
        if content.get("policy") != POLICY or content.get("schema") != SCHEMA:
            raise ValueError(
                f"expected policy {POLICY!r} of schema {SCHEMA}, got {content.get('policy')!r} of "
                f"{content.get('schema')!r}"
            )
        config = AdaptiveConfig(**content["config"])
        gamma_max = content["gamma_max"]
        check_integer("gamma_max", gamma_max, low=1)
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{description}: not a usable lookahead: {error}") from error
    predictor = AcceptancePredictor.load(path / PREDICTOR_FILE, target=target, draft=draft)
    latency = LatencyTable.load(path / LATENCY_FILE, machine=machine, target=target, draft=draft)
    return predictor, latency, gamma_max, config
