"""A bench's arithmetic on samples made by hand, its law test, its files, and its page."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from foredraft.cli.bench_columns import rows_of
from foredraft.cli.bench_compare import Change
from foredraft.cli.bench_data import (
    ALL,
    BenchReport,
    Cell,
    Condition,
    Memory,
    Refusal,
    Rounds,
    Sample,
    Setting,
)
from foredraft.cli.bench_figures import make_cells, verify_costs
from foredraft.cli.bench_law import law_distance, token_ranks
from foredraft.cli.bench_page import render_bench, write_bench
from foredraft.cli.bench_prompts import prompt_tokens, prompts_of_block
from foredraft.cli.bench_script import SCRIPT
from foredraft.cli.bench_table import print_bench
from foredraft.cli.bench_words import equality_words, exact, floor_words
from foredraft.cli.report_data import Machine, Target, Versions
from foredraft.data import Prompt
from foredraft.spec import SamplingParams
from toys import byte_tokenizer, tiny_llama

SETTING = Setting(
    condition="as asked", drafter="none", policy="plain", domain="a", prompt_tokens=None,
    max_tokens=4, rows=1, temperature=0.0,
)  # fmt: skip
DRAFT = replace(SETTING, drafter="runs/<b>x</b>/best", policy="γ = 2")
MEMORY = Memory(weights=4_000_000, packed=0)
ARMS = {("as asked", s.drafter, s.policy): ("about it", MEMORY) for s in (SETTING, DRAFT)}


def sample(setting: Setting, index: int, seconds: float, repeat: int = 0, equal: int = 1) -> Sample:
    """Six tokens in three rounds; the draft has 2 of 4 drafted accepted, one round after a rejection."""
    drafts = setting.policy != "plain"
    return Sample(
        setting=setting, index=index, repeat=repeat, prompt_lengths=[9], output_lengths=[6],
        seconds=seconds + 1.0, decode_seconds=seconds,
        rounds=Rounds(
            context=[9, 11, 200], drafted=[2, 2, 0] if drafts else [0, 0, 0],
            accepted=[1, 1, 0] if drafts else [0, 0, 0],
            draft_steps=[2, 2, 0] if drafts else [0, 0, 0],
            draft_seconds=[0.9, 0.2, 0.0] if drafts else [0.0] * 3,
            verify_seconds=[0.1, 0.3, 0.2], ended=[1.5, 2.5, 4.5], gap=[None, 1.0, 2.0],
        ),
        equal=equal, ties=0, ranks=[], cache_bytes=1000 + index, peak_bytes=5000,
    )  # fmt: skip


def made_up_cells() -> list[Cell]:
    other = replace(DRAFT, domain="b")
    samples = [
        sample(SETTING, 0, 2.0), sample(SETTING, 1, 4.0), sample(DRAFT, 0, 1.0),
        sample(DRAFT, 1, 2.0), sample(replace(SETTING, domain="b"), 0, 2.0),
        sample(other, 0, 4.0, equal=0),
    ]  # fmt: skip
    return make_cells(samples, ARMS)


def made_up_report() -> BenchReport:
    return BenchReport(
        created="2001-02-03T04:05:06+00:00", command="foredraft bench", commit=None,
        machine=Machine(
            cpu="C", cores=1, threads=1, memory_gb=1.0, device="cpu", platform="Linux"
        ),
        versions=Versions(python="3", torch="2", transformers="5", foredraft="0"),
        target=Target(name="x/y", parameters=9, layers=1, vocabulary=9),
        settings={"dtype": "float32", "seed": 0, "repeats": 1},
        conditions=[Condition(name="as asked", about="<i>About</i>.")], blocks=3, wanted=4,
        cells=made_up_cells(), verify=verify_costs([sample(DRAFT, 0, 1.0)]),
        refusals=[Refusal(condition="as asked", drafter="d", policy=None, reason="no <u>such</u>")],
    )  # fmt: skip


def cell_of(cells: list[Cell], setting: Setting) -> Cell:
    return next(cell for cell in cells if cell.setting == setting)


def test_figures_of_a_cell() -> None:
    cells = made_up_cells()
    one = cell_of(cells, DRAFT)
    assert (one.drafted, one.accepted, one.tested, one.rounds) == (8, 4, 8, 6)
    assert one.acceptance_rate == one.acceptance_prob == 0.5
    assert one.block_efficiency == pytest.approx(10 / 6)
    assert one.accepted_lengths == {1: 4}
    assert one.gammas == {0: 2, 2: 4}
    assert one.draft_ms == pytest.approx(100.0)  # the first round, which reads the prompt, is out
    assert one.ttft_ms == 1500.0
    assert one.itl_ms == 1500.0
    assert one.itl_p99_ms == pytest.approx(2000.0)
    assert one.tokens_per_second == pytest.approx(12 / 3)
    assert one.cache_bytes == 1001


def test_speedups_are_paired_and_all_domains_weigh_by_their_seconds() -> None:
    cells = made_up_cells()
    one = cell_of(cells, DRAFT)
    assert (one.speedup, one.speedup_low, one.speedup_high) == (2.0, 2.0, 2.0)
    assert one.call_speedup == pytest.approx(8 / 5)
    single = cell_of(cells, replace(DRAFT, domain="b"))
    assert (single.speedup, single.speedup_low) == (0.5, None)
    whole = cell_of(cells, replace(DRAFT, domain=ALL))
    assert whole.speedup == pytest.approx(8 / 7)
    assert whole.speedup_low is not None
    assert whole.speedup_low < whole.speedup
    assert (whole.equal, whole.outputs) == (2, 3)


def test_the_median_of_repeats_counts() -> None:
    plain = [sample(SETTING, 0, 2.0, repeat) for repeat in range(3)]
    ours = [sample(DRAFT, 0, seconds, i) for i, seconds in enumerate((1.0, 1.0, 50.0))]
    assert cell_of(make_cells([*plain, *ours], ARMS), DRAFT).speedup == 2.0


def test_verify_costs_are_by_tokens_and_doubling_contexts() -> None:
    costs = verify_costs([sample(DRAFT, 0, 1.0)])
    found = {(cost.tokens, cost.context_low, cost.context_high): cost.ms for cost in costs}
    assert found == pytest.approx({(1, 128, 256): 200.0, (3, 0, 128): 200.0})


def test_a_floor_says_no_more_than_is_known() -> None:
    cell = cell_of(made_up_cells(), DRAFT)
    assert floor_words(cell) == "keeps up"
    assert floor_words(replace(cell, speedup=0.9, speedup_high=1.0)) == "unclear"
    assert floor_words(replace(cell, speedup=0.9, speedup_high=0.95)) == "loses"


def test_changes_need_intervals_that_are_apart() -> None:
    cell = replace(cell_of(made_up_cells(), DRAFT), speedup_low=1.9, speedup_high=2.1)
    faster = replace(cell, speedup=2.4, speedup_low=2.2, speedup_high=2.6)
    assert Change(before=cell, after=faster).verdict == "faster"
    assert Change(before=faster, after=cell).verdict == "slower"
    overlapping = replace(faster, speedup_low=2.05)
    assert Change(before=cell, after=overlapping).verdict == "as before"


def test_ranks_of_a_law_are_uniform_and_of_another_are_not() -> None:
    model = tiny_llama(sharpness=2.0)
    params = SamplingParams(temperature=1.0)
    draws, prompt = torch.Generator().manual_seed(0), [1, 2, 3]
    for temperature, fits in ((1.0, True), (0.6, False)):
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(200):
                logits = model(torch.tensor([tokens])).logits[0, -1] / temperature
                tokens.append(int(torch.multinomial(logits.softmax(-1), 1, generator=draws)))
        ranks = token_ranks(model, 260, params, prompt, tokens[3:], "seed")
        assert len(ranks) == 200
        assert (law_distance(ranks)[1] > 1e-3) == fits


def test_the_odds_bound_false_alarms() -> None:
    draws = random.Random(0)
    runs = [law_distance([draws.random() for _ in range(40)]) for _ in range(400)]
    assert sum(odds < 0.05 for _, odds in runs) <= 0.05 * 400
    distance, odds = law_distance([0.5] * 40)
    assert distance == 0.5
    assert odds == pytest.approx(0.0, abs=1e-8)


def test_a_broken_law_shows() -> None:
    cell = replace(cell_of(made_up_cells(), DRAFT), equal=None, law_odds=1e-4)
    assert (exact(cell), equality_words(cell)) == (False, "law broken")
    assert exact(replace(cell, law_odds=0.5))


def test_prompts_are_cut_and_filled_to_a_length() -> None:
    tokenizer = byte_tokenizer()
    prompt = Prompt("i", "d", "abcdefghij")
    filled = prompt_tokens(tokenizer, prompt, 40, [prompt])
    assert len(filled) == 40
    assert tokenizer.decode(filled, skip_special_tokens=True).endswith("abcdefghij")
    assert len(prompt_tokens(tokenizer, prompt, 7, [prompt])) == 7
    others = [Prompt(str(i), "d", str(i)) for i in range(3)]
    assert [p.text for p in prompts_of_block(others, 1, 2)] == ["2", "0"]


def test_the_page_escapes_loads_nothing_and_runs_one_script() -> None:
    page = render_bench(made_up_report())
    assert "<b>x</b>" not in page
    assert "<i>About" not in page
    assert "no &lt;u&gt;such" in page
    assert not re.search(r"(?:src|href)=[\"'](?!#)", page)
    assert page.count("<script>") == 1
    assert SCRIPT in page
    assert page.count("<svg") == 4


def test_the_files_hold_all_figures(tmp_path: Path) -> None:
    report = made_up_report()
    write_bench(report, tmp_path)
    assert BenchReport.from_json((tmp_path / "bench.json").read_text()) == report
    parquet: Any = import_module("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "bench.parquet")
    assert table.to_pylist() == rows_of(report)
    assert len(table) == len(report.cells)


def test_the_terminal_says_what_differs_and_what_is_left() -> None:
    out = StringIO()
    print_bench(made_up_report(), Console(file=out, force_terminal=False))
    said = out.getvalue()
    assert "2/3" in said
    assert "not run: d: no <u>such</u>" in said
    assert "3 of 4 blocks" in said
