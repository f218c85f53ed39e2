"""Two processes train like one, with whole weights (DDP) and with spread ones (FSDP2); on a CPU, with gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM

from foredraft.spec import DraftInfo, cut_head, load_kept_tokens
from foredraft.train import DistillConfig, distill, evaluate_draft
from foredraft.train.checkpoint import load_tensors
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama

TOLERANCE = 1e-4  # relative, of each step's loss: sums are taken in another order
ROWS = [*random_rows(30), *random_rows(5, split="dev", seed=1)]
ALPHA = "eval/T1/alpha_tf"


def launch(folder: Path, processes: int, **changes: Any) -> list[dict[str, Any]]:
    """Train with so many processes and return the lines of metrics.jsonl."""
    output = folder / f"run-{processes}"
    fields = {
        "target": folder / "target", "corpus": folder / "corpus", "output": output, "layers": 1,
        "head_tokens": 100, "steps": 10, "batch_rows": 6, "learning_rate": 3e-3, "eval_every": 5,
        "eval_prompts": 3, "eval_temperatures": "[0]", "eval_max_tokens": 6,
        "serving_temperatures": "[]", "report_to": "none", **changes,
    }  # fmt: skip
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    # With --cpu, accelerate starts one process whatever is asked for (unless through mpirun).
    command += ["--multi_gpu"] if processes > 1 else ["--cpu"]
    command += ["--num_processes", str(processes), "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", "--main_process_port", "0", "-m", "foredraft.train"]
    command += [f"--{name}={value}" for name, value in fields.items()]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("α on held-out text") == 1  # only the main process speaks
    record = yaml.safe_load((output / "run.yaml").read_text())
    assert record["attempts"][0]["processes"] == processes
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def launch_two(folder: Path, runs: list[tuple[bool, dict[str, Any]]]) -> None:
    """Train with two processes, once for each (whether FSDP2, fields)."""
    flags = [
        [sharded, [f"--{name}={value}" for name, value in fields.items()]]
        for sharded, fields in runs
    ]
    (folder / "runs.json").write_text(json.dumps(flags))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    command += ["--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", "--main_process_port", "0"]
    command += [str(Path(__file__).parent / "two_processes.py"), str(folder / "runs.json")]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    said = done.stdout.count("α on held-out text")
    assert said == len(runs)  # only the main process speaks


def metrics(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def assert_same_curve(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """The same but for rounding."""
    for one, other in zip(first, second, strict=True):
        for name in one:
            if name in ("step", "train/lr", "train/tokens"):
                assert other[name] == one[name]
            elif name in ("train/loss", "train/grad_norm"):
                assert other[name] == pytest.approx(one[name], rel=TOLERANCE), one["step"]
            elif name.startswith("eval/T1/"):
                assert other[name] == pytest.approx(one[name], rel=1e-3, abs=1e-4)


def test_two_processes_give_the_curve_and_the_weights_of_one(tmp_path: Path) -> None:
    """B60, B72: uneven shares, 5 rows a step are 3 and 2, in micro-batches of 2: two of them and one.

    A checkpoint of spread weights is as one process writes it: weights and optimizer, whole.
    """
    target = tiny_llama()
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    write_corpus_folder(tmp_path / "corpus", target, ROWS)
    base: dict[str, Any] = {
        "target": str(tmp_path / "target"), "corpus": str(tmp_path / "corpus"),
        "output": str(tmp_path / "one"), "layers": 1, "head_tokens": 100, "steps": 6,
        "batch_rows": 5, "learning_rate": 3e-3, "eval_every": 3, "report_to": "none",
        "loss": "lk", "temperature": 0.8,  # KL and the acceptance of the whole law, both
        "eval_prompts": 3, "eval_temperatures": [0], "eval_max_tokens": 6, "serving_temperatures": [],
    }  # fmt: skip
    one = distill(DistillConfig(**base)).curve
    ddp, fsdp = (
        {**base, "micro_rows": 2, "output": str(tmp_path / name)} for name in ("ddp", "fsdp")
    )
    # One prompt alone: a process that decodes it, and one that has none, do not wait for each other.
    lone = {**fsdp, "output": str(tmp_path / "lone"), "eval_prompts": 1, "steps": 1}
    launch_two(tmp_path, [(False, ddp), (True, fsdp), (True, lone)])
    assert "eval/tau" in metrics(tmp_path / "lone")[-1]
    folders = [tmp_path / name for name in ("one", "ddp", "fsdp")]
    states = [AutoModelForCausalLM.from_pretrained(f / "latest").state_dict() for f in folders]
    optimizers = [load_tensors(folder / "latest")[0]["state"] for folder in folders]
    for folder, state, optimizer in zip(folders[1:], states[1:], optimizers[1:], strict=True):
        curve = metrics(folder)
        assert_same_curve(one, curve)
        # Of prompts that were shared out: later the drafts differ by rounding, and answers by tokens.
        names = {name for name in one[0] if name.startswith("eval/T0/")} | {"eval/tau"}
        assert len(names) > 2
        assert {n: curve[0][n] for n in names} == {n: one[0][n] for n in names}
        record = yaml.safe_load((folder / "run.yaml").read_text())
        assert record["attempts"][0]["processes"] == 2
        assert states[0].keys() == state.keys()  # no prefix of the wrapper
        for name, weight in states[0].items():
            assert torch.allclose(weight, state[name], atol=1e-4), name
        for index, values in optimizers[0].items():
            for name, value in values.items():
                assert torch.allclose(value, optimizer[index][name], rtol=1e-3, atol=1e-6), name
    name = "model.layers.0.mlp.up_proj.weight"  # trained at all
    assert not torch.allclose(states[0][name], target.state_dict()[name], atol=1e-3)
    # α of the reloaded folder is α of the sharded run.
    info = DraftInfo.load(folders[2] / "best")
    assert info is not None
    draft = AutoModelForCausalLM.from_pretrained(folders[2] / "best").eval()
    kept = load_kept_tokens(folders[2] / "best", info)
    assert kept is not None
    cut_head(draft, kept)
    again = evaluate_draft(target, draft, kept, [row for row in ROWS if row.split == "dev"])
    assert again[ALPHA] == pytest.approx(info.metrics[ALPHA], abs=1e-5)
