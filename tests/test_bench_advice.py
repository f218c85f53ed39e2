"""`foredraft advise` says no more than was measured, and its settings run; losing conditions are planned."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_bench_figures import DRAFT, made_up_report

from foredraft.cli import main as cli
from foredraft.cli.bench_advice import advice_text, advise, break_even, settings_text
from foredraft.cli.bench_compare import read_bench
from foredraft.cli.bench_config import LOSING, BenchCommand
from foredraft.cli.bench_data import ALL, BenchReport, Cell, VerifyCost
from foredraft.cli.bench_losing import OTHER_TOKENIZER, TARGET_ITSELF
from foredraft.cli.bench_plan import blocks_of, make_plans
from toys import byte_tokenizer, noisy_copy, tiny_llama


def report_with(speedup: float, low: float, high: float, **setting: object) -> BenchReport:
    """Return a report in which the drafting arm has this speedup over all domains."""
    report = made_up_report()
    wanted = replace(DRAFT, domain=ALL, **setting)  # type: ignore[arg-type]
    cells = [
        replace(cell, setting=wanted, speedup=speedup, speedup_low=low, speedup_high=high, equal=3)
        if cell.setting == replace(DRAFT, domain=ALL)
        else cell
        for cell in report.cells
    ]
    return replace(report, cells=cells)


def test_an_arm_is_advised_where_its_interval_lies_above_plain() -> None:
    advice = advise(report_with(1.5, 1.2, 1.8))
    assert advice.best is not None
    assert advice.finding.startswith("Use b>/best, γ = 2: 1.50× (1.20–1.80)")
    assert any("On b it gave 0.50×" in line for line in advice.not_here)
    assert any("3 of 4 blocks" in line for line in advice.not_here)


@pytest.mark.parametrize(("speedup", "more"), [(1.2, True), (0.8, False)])
def test_plain_decoding_is_advised_where_it_does_not(speedup: float, more: bool) -> None:
    report = report_with(speedup, 0.7, 1.4)
    advice = advise(report)
    assert advice.best is None
    assert advice.finding.startswith("Do not bother")
    assert ("More prompts" in advice.finding) == more
    assert "draft=" not in settings_text(advice.best, report, "t")


def test_an_arm_with_other_outputs_is_not_advised() -> None:
    report = report_with(1.5, 1.2, 1.8)
    cells = [replace(cell, equal=0) for cell in report.cells]
    assert "Nothing can be said" in advise(replace(report, cells=cells)).finding


@pytest.mark.parametrize(
    ("drafter", "policy", "said"),
    [
        ("runs/draft", "γ = 2", ['draft="runs/draft", lookahead=2', '"num_speculative_tokens": 2']),
        (
            "runs/draft",
            "heuristic",
            ["lookahead=HeuristicSchedule()", "controller import Heuristic"],
        ),
        ("runs/draft", "adaptive", ['lookahead="runs/la"', "fixed γ"]),
        ("prompt-lookup", "adaptive", ['lookahead="runs/la"', '"ngram"']),
        ("chain:runs/draft", "adaptive", ['draft="chain:runs/draft"', '"model": "runs/draft"']),
        ("prompt-lookup", "bandit", ["GammaBandit()", '"ngram"', "prompt_lookup_num_tokens=4"]),
    ],
)
def test_settings_name_the_arm(drafter: str, policy: str, said: list[str]) -> None:
    report = report_with(1.5, 1.2, 1.8, drafter=drafter, policy=policy)
    best = next(cell for cell in report.cells if cell.setting.drafter == drafter)
    text = settings_text(replace(best, about="fitted for this run: runs/la"), report, "tgt")
    for words in said:
        assert words in text
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        ast.parse(block)
    for found in re.findall(r"config '(.*?)'", text):
        assert json.loads(found)["num_speculative_tokens"] in (2, 4)


def test_break_even_weighs_a_draft_step_and_a_longer_forward() -> None:
    report = report_with(1.5, 1.2, 1.8)
    cell: Cell = next(cell for cell in report.cells if cell.setting.domain == ALL)
    costs = [
        VerifyCost(
            condition="as asked", tokens=tokens, context_low=0, context_high=128, count=9, ms=ms
        )
        for tokens, ms in ((1, 40.0), (3, 60.0))
    ]
    assert break_even(replace(cell, draft_ms=6.0), costs) == pytest.approx((6 + 50) / 40 - 1)
    assert break_even(cell, costs[:1]) is None


def test_each_losing_condition_changes_what_it_is_about() -> None:
    asked = BenchCommand(target="t", drafters=("d",), preset=("losing",))
    plans = {plan.condition.name: plan for plan in make_plans(asked, ["chat", "japanese"])}
    assert tuple(plans) == LOSING
    assert plans["other-domain"].domains == ("japanese",)
    assert plans["large-draft"].drafters == (TARGET_ITSELF,)
    assert plans["long-candidates"].policies == (8, 16, "adaptive")
    assert plans["short-outputs"].max_tokens == (2, 4)
    assert plans["large-batches"].batch_sizes == (8,)
    assert plans["two-models-memory"].prompt_tokens == (512,)
    assert OTHER_TOKENIZER in plans["other-tokenizer"].drafters
    assert all("adaptive" in plan.policies for plan in plans.values())
    blocks = blocks_of(list(plans.values()), 2, 1)
    first = blocks[: len(blocks) // 2]
    assert {block.condition for block in first} == set(LOSING)  # cut short, all are there


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("advice")
    target = tiny_llama()
    for name, model in (("target", target), ("draft", noisy_copy(target, scale=0.03))):
        model.save_pretrained(path / name)
        byte_tokenizer().save_pretrained(path / name)
    rows = "".join(json.dumps({"prompt": f"number {i}"}) + "\n" for i in range(30))
    (path / "toy.jsonl").write_text(rows)
    return path


@pytest.mark.slow
def test_losing_conditions_run_and_say_what_was_refused(folder: Path) -> None:
    asked = [
        "bench", "--target", str(folder / "target"), "--drafters", f"[{folder / 'draft'}]",
        "--policies", "[2, bandit]", "--prompts", str(folder / "toy.jsonl"), "--preset",
        "[large-draft, short-outputs, two-models-memory, other-tokenizer]", "--prompt_tokens", "[60]",
        "--max_tokens", "[4]", "--prompts_per_domain", "1", "--output", str(folder / "losing"),
    ]  # fmt: skip
    assert cli.main(asked) == 0
    report = read_bench(str(folder / "losing" / "bench.json"))
    by_condition = {
        condition.name: [c for c in report.cells if c.setting.condition == condition.name]
        for condition in report.conditions
    }
    large = [cell for cell in by_condition["large-draft"] if cell.setting.drafter != "none"]
    assert {cell.acceptance_prob for cell in large} <= {1.0, None}
    assert all(cell.memory == by_condition["large-draft"][0].memory for cell in large)
    assert {cell.setting.max_tokens for cell in by_condition["short-outputs"]} == {2, 4}
    refused = {refusal.drafter: refusal.reason for refusal in report.refusals}
    assert "its tokenizer differs" in refused[OTHER_TOKENIZER]
    page = (folder / "losing" / "bench.html").read_text()
    assert "its tokenizer differs" in page


def test_advise_measures_and_writes_what_it_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "advise", "--target", str(folder / "target"), "--drafters", f"[{folder / 'draft'}]",
        "--policies", "[2]", "--prompts", str(folder / "toy.jsonl"), "--max_tokens", "8",
        "--output", str(folder / "advise"),
    ]  # fmt: skip
    assert cli.main(asked) == 0
    written = (folder / "advise" / "advice.md").read_text()
    report = read_bench(str(folder / "advise" / "bench.json"))
    assert written == advice_text(advise(report), report, str(folder / "target"))
    assert written in capsys.readouterr().out
