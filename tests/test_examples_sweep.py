"""The sweep of examples/: W&B reads it, its parameters are ours, and its command runs our trainer."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from wandb.sdk.launch.sweeps import utils as sweeps

from foredraft.train import DistillConfig
from foredraft.train.__main__ import parse_config

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def sweep() -> dict[str, Any]:
    # As `wandb sweep` reads it; its own function leaves the file open, which is a warning here.
    config: dict[str, Any] = yaml.safe_load((EXAMPLES / "sweep.yaml").read_text())
    return config


def values_of(parameter: dict[str, Any]) -> list[Any]:
    """Return the values of a parameter, or the ends of its range."""
    if "values" in parameter:
        return list(parameter["values"])
    assert parameter["distribution"] in ("log_uniform_values", "uniform", "int_uniform")
    low, high = parameter["min"], parameter["max"]
    assert isinstance(low, int | float)  # YAML reads 1e-3 as text
    assert low < high
    return [low, high]


def test_wandb_takes_it(sweep: dict[str, Any]) -> None:
    """The keys that its schema knows; the metric is one that we log."""
    assert sweep["method"] in ("grid", "random", "bayes")
    assert sweep["metric"] == {"name": "best/alpha_tf", "goal": "maximize"}
    known = {"program", "name", "method", "metric", "early_terminate", "parameters", "command"}
    assert sweep.keys() <= known
    assert sweep["program"]


def test_every_parameter_and_value_is_one_of_the_trainers(sweep: dict[str, Any]) -> None:
    for name, parameter in sweep["parameters"].items():
        assert name in DistillConfig.__dataclass_fields__
        for value in values_of(parameter):
            config = parse_config(["--config", str(EXAMPLES / "distill.yaml"), f"--{name}={value}"])
            assert getattr(config, name) == value


def test_its_command_starts_the_trainer_with_an_output_of_its_own(
    sweep: dict[str, Any], tmp_path: Path
) -> None:
    """As the agent fills it in, with an `accelerate` that says what it was asked for."""
    fake = tmp_path / "accelerate"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    chosen = {name: values_of(one)[-1] for name, one in sweep["parameters"].items()}
    filled = sweeps.create_sweep_command_args(
        {"args": {name: {"value": value} for name, value in chosen.items()}}
    ) | {"env": ["/usr/bin/env"]}
    command: list[str] = []
    for part in sweeps.create_sweep_command(list(sweep["command"])):
        macro = part.startswith("${") and part.endswith("}")
        command += filled[part[2:-1]] if macro else [part]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "WANDB_RUN_ID": "r1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    words = done.stdout.splitlines()
    assert words[:3] == ["launch", "-m", "foredraft.train"]
    words[words.index("--config") + 1] = str(EXAMPLES / "distill.yaml")
    config = parse_config(words[3:])
    assert config.output == "runs/sweep/r1"
    assert {name: getattr(config, name) for name in chosen} == chosen
