"""`foredraft bench` on tiny models: every arm's figures, resuming, refusals, and the files it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foredraft.cli import bench_measuring
from foredraft.cli import main as cli
from foredraft.cli.bench_compare import read_bench
from foredraft.cli.bench_data import ALL, BenchReport, Cell
from toys import byte_tokenizer, noisy_copy, tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft near it, and prompts of two domains."""
    path = tmp_path_factory.mktemp("bench")
    target = tiny_llama()
    for name, model in (("target", target), ("draft", noisy_copy(target, scale=0.03))):
        model.save_pretrained(path / name)
        byte_tokenizer().save_pretrained(path / name)
    rows = [
        {"prompt": f"{domain} {i} ", "domain": domain} for i in range(30) for domain in ("a", "b")
    ]
    (path / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked(folder: Path, output: Path, *more: str) -> list[str]:
    return [
        "bench", "--target", str(folder / "target"), "--prompts", str(folder / "toy.jsonl"),
        "--drafters", f"[{folder / 'draft'}, prompt-lookup]", "--policies", "[2, bandit]",
        "--max_tokens", "[8]", "--output", str(output), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def report(folder: Path) -> BenchReport:
    """Greedy and sampled, alone and in a batch."""
    more = ["--batch_sizes", "[1, 2]", "--temperatures", "[0.0, 1.0]"]
    assert cli.main(asked(folder, folder / "out", *more)) == 0
    return read_bench(str(folder / "out" / "bench.json"))


def of(report: BenchReport, policy: str, **setting: Any) -> list[Cell]:
    """Return the cells over all domains of a policy."""
    return [
        cell
        for cell in report.cells
        if cell.setting.policy == policy
        and cell.setting.domain == setting.get("domain", ALL)
        and all(getattr(cell.setting, name) == value for name, value in setting.items())
    ]


def test_every_arm_has_its_figures_under_every_setting(report: BenchReport) -> None:
    assert (report.blocks, report.wanted) == (16, 16)
    assert len(report.cells) == 5 * 4 * 3  # arms, batch × temperature, domains and all
    for cell in of(report, "γ = 2"):
        assert set(cell.gammas) <= {0, 1, 2}
        assert cell.accepted <= cell.tested <= cell.drafted
        assert cell.ttft_ms > 0.0
        assert cell.speedup_low is not None
        assert cell.speedup_low <= cell.speedup
        assert cell.itl_ms is not None
        assert cell.itl_p99_ms is not None
        assert cell.itl_ms <= cell.itl_p99_ms
    for cell in of(report, "plain"):
        assert cell.speedup == 1.0
        assert set(cell.gammas) == {0}
        assert cell.acceptance_prob is None


def test_outputs_are_the_targets(report: BenchReport) -> None:
    for cell in report.cells:
        if cell.setting.temperature == 0.0:
            assert cell.equal == cell.outputs
        else:
            assert cell.equal is None
            assert cell.law_tokens == cell.tokens
            assert cell.law_odds is not None
            assert cell.law_odds > 1e-3


def test_a_draft_takes_memory_and_a_lookup_none(report: BenchReport, folder: Path) -> None:
    plain, alone = of(report, "plain", rows=1)[0], of(report, "γ = 2", rows=1)
    by_drafter = {cell.setting.drafter: cell for cell in alone}
    assert by_drafter["prompt-lookup"].memory == plain.memory
    draft = by_drafter[str(folder / "draft")]
    assert draft.memory.weights == 2 * plain.memory.weights
    assert draft.cache_bytes == 2 * plain.cache_bytes
    assert plain.peak_bytes > plain.memory.weights


def test_verify_latency_is_by_tokens_and_context(report: BenchReport) -> None:
    assert {cost.tokens for cost in report.verify} >= {1, 3}
    assert all(cost.context_low < cost.context_high for cost in report.verify)


def test_what_was_measured_is_not_measured_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    real = bench_measuring.measure_block

    def counted(arms: Any, block: Any, *rest: Any) -> Any:
        measured.append(block)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return real(arms, block, *rest)

    monkeypatch.setattr("foredraft.cli.bench.measure_block", counted)
    again = asked(folder, tmp_path / "out", "--prompts_per_domain", "1")
    assert cli.main(again) == 130
    assert cli.main(again) == 0
    assert len(measured) == 3  # two blocks, one of them cut off once
    assert cli.main(again) == 0
    assert len(measured) == 3
    assert cli.main([*again, "--seed", "1"]) == 0
    assert len(measured) == 5  # other draws, other figures


@pytest.mark.slow
def test_a_sampled_arm_that_breaks_the_law_is_called_broken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> bool:  # what is emitted is drawn from the residual alone
        return False

    monkeypatch.setattr("foredraft.spec.draws.GeneratorDraws.accepts", never)
    more = ["--temperatures", "[1.0]", "--prompts_per_domain", "4", "--max_tokens", "[32]"]
    assert cli.main(asked(folder, tmp_path / "out", *more)) == 0
    broken = read_bench(str(tmp_path / "out" / "bench.json"))
    odds = {cell.setting.drafter: cell.law_odds for cell in of(broken, "γ = 2")}
    assert odds[str(folder / "draft")] is not None
    assert odds[str(folder / "draft")] < 1e-3  # type: ignore[operator]
    assert of(broken, "plain")[0].law_odds > 1e-3  # type: ignore[operator]


def test_arms_that_cannot_run_are_named_and_the_others_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [
        "--policies", "[1, confidence]", "--drafters", f"[prompt-lookup, {folder / 'draft'}, ./no]",
        "--prompts_per_domain", "1", "--memory_gb", "0",
    ]  # fmt: skip
    assert cli.main(asked(folder, tmp_path / "out", *more)) == 0
    report = read_bench(str(tmp_path / "out" / "bench.json"))
    reasons = {(r.drafter, r.policy): r.reason for r in report.refusals}
    assert "logits" in reasons["prompt-lookup", "confidence"]
    assert "memory" in reasons[str(folder / "draft"), None]
    assert "no folder" in reasons["./no", None]
    assert {cell.setting.policy for cell in report.cells} == {"plain", "γ = 1"}
    assert "not run" in capsys.readouterr().out


def test_prompts_and_outputs_have_the_lengths_asked_for(folder: Path, tmp_path: Path) -> None:
    more = [
        "--prompt_tokens",
        "[20, 60]",
        "--prompts_per_domain",
        "1",
        "--drafters",
        "[prompt-lookup]",
    ]
    assert cli.main(asked(folder, tmp_path / "out", *more)) == 0
    rows = [
        json.loads(line) for line in (tmp_path / "out" / "cells.jsonl").read_text().splitlines()
    ]
    for row in rows:
        assert row["prompt_lengths"] == [row["setting"]["prompt_tokens"]]
        assert row["output_lengths"] == [8]


@pytest.mark.slow
def test_an_adaptive_policy_is_fitted_where_none_is_given(folder: Path, tmp_path: Path) -> None:
    more = ["--policies", "[adaptive]", "--prompts_per_domain", "1"]
    assert cli.main(asked(folder, tmp_path / "out", *more)) == 0
    report = read_bench(str(tmp_path / "out" / "bench.json"))
    about = {cell.setting.drafter: cell.about for cell in of(report, "adaptive")}
    assert "fitted for this run" in about[str(folder / "draft")]
    assert "what matches are worth" in about["prompt-lookup"]


def test_two_results_are_compared(
    folder: Path, report: BenchReport, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(folder / "out" / "bench.json")
    assert cli.main(["bench", "--compare", file, file]) == 0
    said = capsys.readouterr().out
    assert "as before" in said
    assert "differs" not in said
    assert cli.main(["bench", "--compare", file, "./no.json"]) == 2
    assert "./no.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "target must be"),
        (["--target", "t", "--policies", "[fast]"], "policies must be"),
        (["--target", "t", "--policies", "[2, 2]"], "policies must be distinct"),
        (["--target", "t", "--preset", "[nothing]"], "preset must be"),
        (["--target", "t", "--batch_sizes", "[0]"], "batch_sizes must be"),
        (["--target", "t", "--max_tokens", "[]"], "max_tokens must have"),
    ],
)
def test_bad_values_are_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err
