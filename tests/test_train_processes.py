"""Two processes train like one: `accelerate launch` on a CPU, with gloo."""

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

from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama

TOLERANCE = 1e-4  # relative, of each step's loss: sums are taken in another order


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


def test_two_processes_give_the_curve_of_one(tmp_path: Path) -> None:
    """Also with uneven shares: 5 rows a step are 3 and 2, in micro-batches of 2."""
    target = tiny_llama()
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    rows = [*random_rows(30), *random_rows(5, split="dev", seed=1)]
    write_corpus_folder(tmp_path / "corpus", target, rows)
    loss = {"loss": "lk", "temperature": 0.8}  # KL and the acceptance of the whole law, both
    one = launch(tmp_path, 1, batch_rows=5, **loss)
    two = launch(tmp_path, 2, batch_rows=5, micro_rows=2, **loss)
    assert len(one) == len(two) == 14  # 10 steps, 3 evaluations and one more before the alignment
    for first, second in zip(one, two, strict=True):
        exact = [name for name in first if name in ("step", "train/lr", "train/tokens")]
        assert all(first[name] == second[name] for name in exact)
        for name in ("train/loss", "train/grad_norm"):
            if name in first:
                assert second[name] == pytest.approx(first[name], rel=TOLERANCE), first["step"]
        for name in (name for name in first if name.startswith("eval/T1/")):
            assert second[name] == pytest.approx(first[name], rel=1e-3, abs=1e-4)
    # Of prompts that were shared out: later the drafts differ by rounding, and their answers by tokens.
    names = {name for name in one[0] if name.startswith("eval/T0/")} | {"eval/tau"}
    assert len(names) > 2
    assert {name: two[0][name] for name in names} == {name: one[0][name] for name in names}
    assert one[-2]["train/loss"] < one[2]["train/loss"]
    models = [
        AutoModelForCausalLM.from_pretrained(tmp_path / f"run-{n}" / "latest") for n in (1, 2)
    ]
    states = [model.state_dict() for model in models]
    assert states[0].keys() == states[1].keys()  # B72: no prefix of the wrapper
    for name, weight in states[0].items():
        assert torch.allclose(weight, states[1][name], atol=1e-3), name
