"""The report: its schema survives JSON, its page loads nothing and escapes all, both outputs agree.

Every figure here is made up.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from functools import cache
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from foredraft.cli.report_data import (
    Arm,
    Comparison,
    Corpus,
    CurvePoint,
    DomainSpeed,
    Draft,
    DraftQuality,
    Latency,
    LoopAlpha,
    Machine,
    Predictor,
    ReliabilityBin,
    Report,
    Stage,
    Target,
    Training,
    Versions,
)
from foredraft.cli.report_html import render_html, write_report
from foredraft.cli.report_table import print_table
from foredraft.cli.report_words import figures, headline, large, percent

DOMAINS = ("chat", "code", "japanese", "math", "rag_qa", "summarisation", "translation")
HOSTILE = "<script>alert('x')</script>\"&[bold red]$x_{y$\x1b[31m\x00 日本" + "w" * 60


def made_up_arm(name: str, gamma: Any, speed: float, accepted: dict[int, int]) -> Arm:
    """An arm whose counts agree with each other."""
    cap = 6 if gamma == "adaptive" else int(gamma)
    rounds = sum(accepted.values()) or 2304
    gammas = {cap: rounds}
    if gamma == "adaptive":
        gammas = {0: 301, 1: 402, 2: 333, 3: 164, 4: 131, 6: 47}
    hits = sum(length * count for length, count in accepted.items())
    drafted = sum(length * count for length, count in gammas.items())
    tested = hits + sum(count for length, count in accepted.items() if length < cap)
    rounds = sum(gammas.values())
    tokens = hits + rounds
    return Arm(
        name=name, gamma=gamma, tokens=tokens, seconds=tokens / (22.41 * speed), rounds=rounds,
        drafted=drafted, accepted=hits, tested=tested,
        acceptance_prob=hits / tested if tested else None,
        acceptance_rate=hits / drafted if drafted else None,
        block_efficiency=tokens / rounds, draft_ms=5.83 if drafted else None,
        verify_ms=44.6 + 4.21 * cap, tokens_per_second=22.41 * speed,
        speedup=speed, speedup_low=speed - 0.031, speedup_high=speed + 0.027,
        equal_outputs=28, outputs=28, accepted_lengths=accepted, gammas=gammas,
        domains={
            domain: DomainSpeed(
                tokens_per_second=22.41 * (speed + 0.04 * (i - 3) * (cap > 0)),
                speedup=speed + 0.04 * (i - 3) * (cap > 0),
                speedup_low=speed + 0.04 * (i - 3) - 0.05 if cap else None,
                speedup_high=speed + 0.04 * (i - 3) + 0.05 if cap else None,
            )
            for i, domain in enumerate(DOMAINS)
        },
    )  # fmt: skip


def made_up_report() -> Report:
    """Every part is there."""
    curve = [
        CurvePoint(
            step=step, tokens=step * 2048, seconds=step * 0.31, loss=2.6 - 0.003 * step,
            alpha=0.43 - 0.35 * 0.985**step if step % 40 == 0 else None,
            top1=0.47 - 0.38 * 0.985**step if step % 40 == 0 else None,
            kl=1.5 + 5 * 0.98**step if step % 40 == 0 else None,
        )
        for step in range(0, 401, 10)
    ]  # fmt: skip
    observed = (0.06, 0.14, 0.27, 0.33, 0.47, 0.52, 0.66, 0.74, 0.88, 0.95)
    return Report(
        created="2001-02-03T04:05:06+00:00",
        command="foredraft demo --target HuggingFaceTB/SmolLM2-135M-Instruct --output runs/demo",
        commit="0123456789abcdef0123456789abcdef01234567",
        machine=Machine(
            cpu="Example CPU @ 2.60GHz", cores=2, threads=2, memory_gb=23.4, device="cpu",
            platform="Linux-6.1-x86_64",
        ),
        versions=Versions(
            python="3.11.9", torch="2.13.0", transformers="5.24.0", foredraft="0.1.0"
        ),
        target=Target(
            name="HuggingFaceTB/SmolLM2-135M-Instruct", parameters=134_515_008, layers=30,
            vocabulary=49_152,
        ),
        draft=Draft(
            folder="runs/demo/draft/best", layers=2, parameters=16_515_072, head_tokens=12_288,
            coverage=0.9731,
        ),
        stages=[
            Stage(name="target", seconds=4.2, reused=True, summary="converted once, 30 layers"),
            Stage(name="corpus", seconds=221.8, reused=False, summary="1,204 rows, 1,071 complete"),
            Stage(name="draft", seconds=187.3, reused=False, summary="400 steps, α 0.081 → 0.429"),
            Stage(name="traces", seconds=48.1, reused=False, summary="9,412 drafted tokens"),
            Stage(name="latency", seconds=11.9, reused=False, summary="1 to 9 tokens"),
            Stage(name="compare", seconds=142.6, reused=False, summary="5 arms, 28 prompts"),
        ],
        corpus=Corpus(
            rows=1204, complete_rows=1071, tokens=148_211, prompts=301,
            domains=dict.fromkeys(DOMAINS, 172),
        ),
        training=Training(
            curve=curve,
            before=DraftQuality(alpha=0.0812, top1=0.0907, kl=6.412, coverage=0.9731),
            best=DraftQuality(alpha=0.4291, top1=0.4688, kl=1.503, coverage=0.9731),
            alpha_loop=LoopAlpha(
                alpha=0.4217, low=0.4033, high=0.4401, tested=2811, teacher_forced=0.4262
            ),
        ),
        latency=Latency(
            draft_step_ms=5.83, overhead_ms=1.12, context_length=192, contended=False,
            verify_ms=[43.1, 47.2, 51.4, 69.3, 71.8, 73.5, 75.9, 78.2, 80.4],
        ),
        predictor=Predictor(
            rows=4731, auc=0.8123, log_loss=0.5107, ece_raw=0.0714, ece=0.0198,
            reliability=[
                ReliabilityBin(predicted=0.05 + 0.1 * i, observed=seen, count=900 - 80 * i)
                for i, seen in enumerate(observed)
            ],
        ),
        comparison=Comparison(
            prompts=28, max_tokens=96, temperature=0.0, dtype="float32", repeats=3,
            interval="95 %, bootstrap over prompts",
            arms=[
                made_up_arm("plain", 0, 1.0, {}),
                made_up_arm("γ = 1", 1, 1.131, {0: 830, 1: 720}),
                made_up_arm("γ = 2", 2, 1.162, {0: 702, 1: 361, 2: 363}),
                made_up_arm("γ = 4", 4, 1.043, {0: 655, 1: 331, 2: 161, 3: 82, 4: 101}),
                made_up_arm(
                    "adaptive", "adaptive", 1.218, {0: 491, 1: 320, 2: 151, 3: 64, 4: 41, 6: 10}
                ),
            ],
        ),
    )  # fmt: skip


OPTIONAL = ("commit", "draft", "corpus", "training", "latency", "predictor", "comparison")


def without(*parts: str, report: Report) -> Report:
    nothing: dict[str, Any] = dict.fromkeys(parts)
    return replace(report, **nothing)


def bare_report() -> Report:
    return without(*OPTIONAL, report=replace(made_up_report(), stages=[]))


def with_speedup(value: float, low: float, high: float) -> Report:
    report = made_up_report()
    assert report.comparison is not None
    *others, arm = report.comparison.arms
    arm = replace(arm, speedup=value, speedup_low=low, speedup_high=high)
    return replace(report, comparison=replace(report.comparison, arms=[*others, arm]))


@cache
def whole_page() -> str:
    return render_html(made_up_report())


@pytest.fixture
def empty_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds the plots but does not render them, which is what takes the time."""
    whole_page()  # is kept, and has its plots
    monkeypatch.setattr("foredraft.cli.report_plots.svg_element", lambda *_: "<svg></svg>")


class Page(HTMLParser):
    """What a browser would load, the text that a reader sees, and the ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "path", "use", "rect", "br"):
            self.open.append(tag)
        for key, value in attrs:
            if key.rpartition(":")[2] in ("src", "href", "srcset", "data", "action", "poster"):
                self.addresses.append(value or "")
            if key == "id":
                self.ids.append(value or "")
            self.addresses += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "use", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.addresses += re.findall(r"url\(([^)]*)\)|@import (\S+)", data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def printed(report: Report, **console: Any) -> str:
    out = StringIO()
    print_table(report, Console(file=out, **console))
    return out.getvalue()


@pytest.mark.parametrize("report", [made_up_report(), bare_report()], ids=["whole", "bare"])
def test_json_gives_back_the_same_report(report: Report) -> None:
    text = report.to_json()
    assert Report.from_json(text) == report
    assert Report.from_json(text).to_json() == text


def test_json_keys_are_sorted_and_the_schema_is_named() -> None:
    content = json.loads(made_up_report().to_json())
    assert list(content) == sorted(content)
    assert content["schema"] == 1
    assert content["comparison"]["arms"][4]["accepted_lengths"]["6"] == 10


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 2}', '{"schema": "1"}'])
def test_another_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        Report.from_json(text)


def test_a_missing_or_wrong_field_is_named() -> None:
    content = json.loads(made_up_report().to_json())
    del content["machine"]["cores"]
    content["latency"]["draft_step_ms"] = "fast"
    with pytest.raises(ValueError, match=r"(?s)latency.draft_step_ms.*|machine.cores") as caught:
        Report.from_json(json.dumps(content))
    assert "machine.cores" in str(caught.value)


def test_a_number_that_json_lacks_is_refused() -> None:
    report = made_up_report()
    assert report.training is not None
    best = replace(report.training.best, alpha=float("nan"))
    report = replace(report, training=replace(report.training, best=best))
    with pytest.raises(ValueError, match="JSON"):
        report.to_json()


def test_both_files_are_written_and_nothing_else(tmp_path: Path) -> None:
    report = replace(bare_report(), latency=made_up_report().latency)
    page = write_report(report, tmp_path / "new" / "folder")
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "report.json"]
    assert Report.from_json((page.parent / "report.json").read_text(encoding="utf-8")) == report
    first = page.read_text(encoding="utf-8")
    assert "<svg" in first
    assert render_html(report) == first, "same report, another page"


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    page = write_report(bare_report(), tmp_path)
    before = page.read_bytes(), (tmp_path / "report.json").read_bytes()
    endless = replace(bare_report().machine, memory_gb=float("inf"))
    broken = replace(bare_report(), machine=endless)
    with pytest.raises(ValueError, match="JSON"):
        write_report(broken, tmp_path)
    assert (page.read_bytes(), (tmp_path / "report.json").read_bytes()) == before


def test_the_page_loads_nothing() -> None:
    page = Page(whole_page())
    assert page.addresses, "the plots refer to their own clip paths"
    ids = {f"#{name}" for name in page.ids}
    assert [address for address in page.addresses if address not in ids] == []
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert len(set(page.ids)) == len(page.ids)
    assert page.open == []


def test_the_page_and_the_terminal_show_every_number_of_the_arms() -> None:
    report = made_up_report()
    assert report.comparison is not None
    page, terminal = Page(whole_page()).text, printed(report)
    for arm in report.comparison.arms:
        line = next(line for line in terminal.splitlines() if line.startswith(f" {arm.name} "))
        shown = [
            f"{arm.tokens_per_second:.1f}",
            f"{arm.block_efficiency:.2f}",
            f"{arm.verify_ms:.1f}",
        ]
        shown += [f"{arm.equal_outputs}/{arm.outputs}"]
        if arm.drafted:
            shown += [f"{arm.speedup:.2f}× ({arm.speedup_low:.2f}–{arm.speedup_high:.2f})"]
            shown += [
                f"{arm.acceptance_prob:.3f}",
                f"{arm.acceptance_rate:.3f}",
                f"{arm.draft_ms:.2f}",
            ]
            assert f"{arm.accepted:,} of {arm.tested:,}" in page
            assert f"{arm.accepted:,} of {arm.drafted:,}" in page
        for number in shown:
            assert number in line
            assert number in page
        for domain, speed in arm.domains.items():
            if arm.drafted:
                cell = f"{speed.speedup:.2f}× ({speed.speedup_low:.2f}–{speed.speedup_high:.2f})"
                assert cell in page
                rows = [row for row in terminal.splitlines() if row.startswith(f" {domain} ")]
                assert cell in rows[0]


def test_every_plot_is_drawn_in_the_colours_of_the_page() -> None:
    plots = re.findall(r"(?s)<svg.*?</svg>", whole_page())
    assert len(plots) == 8
    for svg in plots:
        assert "var(--accent)" in svg
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#000000"}
        assert "xmlns" not in svg


@pytest.mark.usefixtures("empty_plots")
@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("draft", "Size of the draft"),
        ("corpus", "Text written by the target"),
        ("training", "The draft learns the target"),
        ("latency", "What a forward costs"),
        ("predictor", "Can acceptance be foretold?"),
        ("comparison", "Every arm, one run"),
        ("commit", "0123456789abcdef"),
    ],
)
def test_a_part_that_was_not_run_is_left_out(part: str, words: str) -> None:
    whole = made_up_report()
    less = without(part, report=whole)
    assert words in whole_page()
    page = Page(render_html(less))
    assert words not in page.text
    assert "None" not in page.text
    assert page.open == []
    assert "None" not in printed(less)


def test_a_bare_report_still_reads() -> None:
    page = Page(render_html(bare_report())).text
    assert "SmolLM2-135M-Instruct" in page
    assert "Example CPU" in page
    assert "None" not in page
    assert "No arms were compared" in printed(bare_report())


def test_every_optional_part_is_covered_here() -> None:
    may_be_none = {item.name for item in fields(Report) if item.default is None}
    assert may_be_none == set(OPTIONAL)


def hostile_report() -> Report:
    report = made_up_report()
    comparison, draft = report.comparison, report.draft
    assert comparison is not None
    assert draft is not None
    arms = [
        replace(arm, name=HOSTILE + arm.name, domains={HOSTILE: arm.domains["chat"]})
        for arm in comparison.arms
    ]
    report = without("training", "latency", "predictor", report=report)  # no strings there
    return replace(
        report,
        created=HOSTILE, command=HOSTILE, commit=HOSTILE,
        machine=replace(report.machine, cpu=HOSTILE, device=HOSTILE, platform="lone \ud800"),
        versions=Versions(python=HOSTILE, torch=HOSTILE, transformers=HOSTILE, foredraft=HOSTILE),
        target=replace(report.target, name=HOSTILE),
        draft=replace(draft, folder=HOSTILE),
        stages=[Stage(name=HOSTILE, seconds=0.0, reused=True, summary=HOSTILE)],
        corpus=Corpus(rows=0, complete_rows=0, tokens=0, prompts=0, domains={HOSTILE: 1}),
        comparison=replace(comparison, arms=arms, dtype=HOSTILE, interval=HOSTILE),
    )  # fmt: skip


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    page = Page(write_report(hostile_report(), tmp_path).read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert page.open == []
    assert page.text.count("<script>alert('x')</script>\"&") >= 15
    assert not set(page.text) & {"\x1b", "\x00", "\ud800"}
    assert Report.from_json((tmp_path / "report.json").read_text()) == hostile_report()


def test_hostile_names_do_not_reach_the_terminal() -> None:
    text = printed(hostile_report(), force_terminal=True, color_system=None, width=400)
    assert "[bold red]" in text
    assert "\x1b" not in text
    assert "\x00" not in text


@pytest.mark.usefixtures("empty_plots")
def test_the_headline_claims_no_more_than_the_interval() -> None:
    assert "1.22× as fast" in headline(made_up_report()).title
    slower = headline(with_speedup(0.941, 0.92, 0.96))
    assert "slower" in slower.title
    assert "0.94×" in slower.title
    even = headline(with_speedup(1.03, 0.99, 1.07))
    assert "equally fast" in even.title
    assert "1.03×" in even.detail
    assert headline(with_speedup(1.03, 1.004, 1.07)).title == even.title
    assert "faster" not in slower.title + even.title
    assert slower.title in Page(render_html(with_speedup(0.941, 0.92, 0.96))).text


def test_the_headline_says_when_outputs_differ() -> None:
    report = made_up_report()
    assert headline(report).equality == "All 112 outputs equal plain decoding, token for token."
    assert report.comparison is not None
    arms = list(report.comparison.arms)
    arms[2] = replace(arms[2], equal_outputs=25)
    differ = replace(report, comparison=replace(report.comparison, arms=arms))
    assert headline(differ).equality == "3 of 112 outputs differ from plain decoding."
    assert "3 of 112 outputs differ" in printed(differ)
    arms = [replace(arm, equal_outputs=0, outputs=0) for arm in arms]
    sampled = replace(report, comparison=replace(report.comparison, arms=arms))
    assert headline(sampled).equality is None
    assert "not compared" in printed(sampled)


@pytest.mark.usefixtures("empty_plots")
def test_without_an_adaptive_arm_the_fastest_draft_leads() -> None:
    report = made_up_report()
    assert report.comparison is not None
    fixed = replace(report, comparison=replace(report.comparison, arms=report.comparison.arms[:4]))
    assert headline(fixed).title == "Drafting γ = 2 decodes 1.16× as fast as plain decoding"
    assert "How far the adaptive arm drafted" not in render_html(fixed)
    plain = replace(report, comparison=replace(report.comparison, arms=report.comparison.arms[:1]))
    assert "Every arm, one run" in render_html(plain)
    assert "tokens/s" in printed(plain)


def test_a_pipe_gets_plain_lines_of_at_most_100_columns() -> None:
    lines = printed(made_up_report()).splitlines()
    assert 80 < max(map(len, lines)) <= 100
    assert not any("…" in line for line in lines)


def test_figures_are_short_and_never_flatter() -> None:
    assert [figures(value) for value in (0.0421, 5.834, 43.12, 1234.5, None)] == [
        "0.042", "5.83", "43.1", "1,234", "–",
    ]  # fmt: skip
    assert percent(0.9999) == "99.9 %"
    assert percent(1.0) == "100 %"
    assert [large(n) for n in (960, 49_152, 134_515_008, 7_000_000_000)] == [
        "960", "49.2k", "135M", "7.00B",
    ]  # fmt: skip
