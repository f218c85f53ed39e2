"""The config's checks, the command line, and the learning rate."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.train import DistillConfig
from foredraft.train.__main__ import main, parse_config
from foredraft.train.schedule import learning_rate

NEEDED: dict[str, Any] = {"target": "toy", "corpus": "toy"}


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("target", "", "a non-empty string"),
        ("layers", 0, "an integer of at least 1"),
        ("layers", True, "an integer of at least 1"),
        ("steps", 1.5, "an integer of at least 1"),
        ("head_tokens", 0, "an integer of at least 1"),
        ("micro_rows", -1, "an integer of at least 1"),
        ("max_length", 1, "an integer of at least 2"),
        ("seed", -1, "an integer of at least 0"),
        ("learning_rate", 0.0, "above 0 and finite"),
        ("temperature", math.nan, "above 0 and finite"),
        ("max_grad_norm", math.inf, "above 0 and finite"),
        ("max_seconds", 0.0, "above 0, or none"),
        ("teacher_cache_gb", -1.0, "at least 0"),
        ("weight_decay", -0.1, "at least 0"),
        ("state_weight", -0.1, "at least 0"),
        ("min_lr_ratio", 1.5, r"in \[0, 1\]"),
        ("warmup_ratio", 1.0, r"in \[0, 1\)"),
        ("betas", (0.9, 1.0), r"two numbers in \[0, 1\)"),
        ("mixed_precision", "fp16", "no or bf16"),
        ("loss", "js", "one of kl, rkl, jsd, skl, tv, nla, lk, ce"),
        ("jsd_beta", 1.1, r"in \[0, 1\]"),
        ("jsd_beta", math.nan, r"in \[0, 1\]"),
        ("skew", 0.0, r"in \(0, 1\); at 0 it would be kl"),
        ("skew", 1.0, r"in \(0, 1\); at 0 it would be kl"),
        ("lk_eta", -1.0, "at least 0 and finite"),
        ("lk_eta", math.inf, "at least 0 and finite"),
        ("eval_prompts", -1, "an integer of at least 0"),
        ("eval_gamma", 0, "an integer of at least 1"),
        ("eval_max_tokens", 1, "an integer of at least 2"),
        ("eval_temperatures", (), r"distinct numbers in \[0, inf\), one or more"),
        ("eval_temperatures", (1.0, 1.0), r"distinct numbers in \[0, inf\), one or more"),
        ("serving_temperatures", (0.0,), "distinct numbers above 0, or none"),
        ("lora_rank", -1, "an integer of at least 0"),
        ("lora_alpha", 0.0, "above 0 and finite"),
        ("lora_targets", (), "names of layers, one or more"),
        ("best_by", "loss", "alpha, or tau where eval_prompts is above 0"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_what_is_allowed(
    field: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be {allowed}, got "):
        DistillConfig(**{**NEEDED, field: value})


@pytest.mark.parametrize("start", [{"head_start": "target"}, {"draft": "other"}])
def test_a_loss_of_states_needs_an_aligned_head(start: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^state_weight must be 0 unless head_start is aligned"):
        DistillConfig(**{**NEEDED, "state_weight": 1.0, **start})


def test_the_command_line_goes_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "distill.yaml"
    file.write_text("target: toy\ncorpus: toy\nlearning_rate: 2e-3\nsteps: 7\nbetas: [0.8, 0.9]\n")
    config = parse_config(["--config", str(file), "--steps", "9", "--head_tokens", "null"])
    expected = DistillConfig(
        target="toy", corpus="toy", learning_rate=2e-3, steps=9, betas=(0.8, 0.9), head_tokens=None
    )
    assert config == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning-rat", "1"], "unrecognized arguments"),
        (["--steps", "many"], "steps"),
        (["--steps", "0"], "steps must be an integer of at least 1, got 0"),
    ],
)
def test_a_bad_flag_is_an_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_config(["--target", "toy", "--corpus", "toy", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_key_in_the_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "distill.yaml"
    file.write_text("target: toy\ncorpus: toy\nlearning_rat: 1\n")
    with pytest.raises(SystemExit):
        parse_config(["--config", str(file)])
    assert "learning_rat" in capsys.readouterr().err


def test_print_config_gives_a_file_that_is_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_config(["--target", "toy", "--corpus", "toy", "--layers", "3", "--print_config"])
    assert stop.value.code == 0
    file = tmp_path / "distill.yaml"
    file.write_text(capsys.readouterr().out)
    assert parse_config(["--config", str(file)]) == DistillConfig(**NEEDED, layers=3)


def test_help_tells_what_every_field_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Peak of the learning rate, AdamW." in shown
    for field in DistillConfig.__dataclass_fields__:
        described = re.search(rf" --{field} \S+ [A-Z\"]\S+ .*?\((required, )?type: ", shown)
        assert described is not None, field


def test_a_missing_corpus_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--target", str(tmp_path / "none"), "--corpus", "x", "--report_to", "none"]) == 2
    assert capsys.readouterr().err.startswith(f"error: tokenizer: there is no folder {tmp_path}")


def test_the_command_line_is_read_without_torch() -> None:
    script = "import sys, foredraft.train.__main__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def rates(seconds_per_step: float = 0.0, **fields: Any) -> list[float]:
    config = DistillConfig(**{**NEEDED, "learning_rate": 2.0, **fields})
    return [learning_rate(config, step, step * seconds_per_step) for step in range(config.steps)]


def test_the_rate_rises_to_its_peak_and_falls_to_its_end() -> None:
    found = rates(steps=100, warmup_ratio=0.1, min_lr_ratio=0.25)
    assert found[:3] == pytest.approx([0.2, 0.4, 0.6])
    assert max(found) == found[9] == pytest.approx(2.0)
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[54] == pytest.approx(2.0 * (0.25 + 0.75 * 0.5))  # the middle of the cosine
    assert found[-1] == pytest.approx(0.5)


def test_the_rate_ends_low_where_time_runs_out_first() -> None:
    slow = rates(steps=1000, max_seconds=50.0, seconds_per_step=1.0, min_lr_ratio=0.1)
    assert slow[50] == pytest.approx(0.2)
    assert slow[25] == pytest.approx(rates(steps=1000, min_lr_ratio=0.1)[499], rel=1e-2)
    # And time that is not short changes nothing.
    assert rates(steps=20, max_seconds=1e9, seconds_per_step=1.0) == rates(steps=20)
