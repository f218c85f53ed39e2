"""The page of a fitted lookahead, and what a fit says of itself: by replay, no model is loaded."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from controller_dense_sim import GAMMA, dense

from foredraft.cli.config import FitCommand, ReportCommand
from foredraft.cli.fit_figures import fit_figures
from foredraft.cli.fit_report import run_report
from foredraft.cli.fit_summary import choice_content, fit_line, fit_metrics, write_fit
from foredraft.controller import (
    AdaptiveLookahead,
    FitConfig,
    LatencyTable,
    MachineFingerprint,
    choose_predictor,
    fit_predictor_from_dense,
)
from foredraft.controller.judging import flat_costs
from foredraft.controller.oracle import yardsticks
from foredraft.data import DenseConfig, DenseManifest, DenseText
from foredraft.data.dense_traces import _write_part

pytestmark = pytest.mark.usefixtures("one_thread")
COSTS = flat_costs(0.08, GAMMA)


@pytest.fixture(scope="module")
def texts() -> list[DenseText]:
    return [
        replace(
            dense(60, seed=seed, mean=mean, id=f"{name}<{seed}>", domain=name),
            prompt=(1, 2, 3, 1, 2, 3, 1),
        )
        for seed, (name, mean) in enumerate([("easy", 1.4), ("hard & dear", -0.6)] * 2)
    ]


def folder_of(texts: list[DenseText], folder: Path, *, measured_on: str = "cpu elsewhere") -> Path:
    """Write a lookahead folder with traces, as `foredraft fit` leaves one."""
    traces = folder / "traces" / "dense"
    traces.mkdir(parents=True)
    _write_part(texts, 0, traces / "part-00000.parquet")
    manifest = DenseManifest(
        target_fingerprint="t", draft_fingerprint="d", texts_hash="h",
        config=DenseConfig(gamma_max=GAMMA), complete=True,
    )  # fmt: skip
    (traces / "manifest.json").write_text(json.dumps(asdict(manifest)))
    report = fit_predictor_from_dense(texts)
    table = LatencyTable(
        draft_step_seconds=COSTS.draft_step, verify_seconds=COSTS.verify, overhead_seconds=0.0,
        context_length=16, machine=replace(MachineFingerprint.here("cpu"), device=measured_on),
    )  # fmt: skip
    AdaptiveLookahead(report.predictor, table, gamma_max=GAMMA).save(folder)
    write_fit(report, None, folder)
    return folder


def test_the_page_shows_what_was_replayed_and_loads_nothing(
    texts: list[DenseText], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(texts, tmp_path)
    run_report(ReportCommand(lookahead=str(folder)))
    page = (folder / "fit.html").read_text()
    figures = json.loads((folder / "fit_figures.json").read_text())
    assert f"adaptive {figures['adaptive']:.3f}× plain" in capsys.readouterr().out
    assert f"{figures['adaptive']:.3f}×" in page
    assert page.count("<svg") == 6
    assert "easy&lt;0&gt;" in page or "hard &amp; dear&lt;1&gt;" in page
    assert "fitted on these very texts" in page
    assert not re.search(r"<script|(?:src|href)=\"(?!#)", page)
    run_report(ReportCommand(lookahead=str(folder), texts=str(folder / "traces" / "dense" / ".")))
    assert "fitted on these very texts" in (folder / "fit.html").read_text()


def test_the_figures_agree_with_each_other(texts: list[DenseText]) -> None:
    report = fit_predictor_from_dense(texts)
    table = LatencyTable(
        draft_step_seconds=COSTS.draft_step, verify_seconds=COSTS.verify, overhead_seconds=0.0,
        context_length=16, machine=MachineFingerprint.here("cpu"),
    )  # fmt: skip
    found = fit_figures(AdaptiveLookahead(report.predictor, table, gamma_max=GAMMA), texts, COSTS)
    assert found.fixed[0] == 1.0
    assert found.fixed[found.gamma] == max(found.fixed) < found.oracle
    assert found.adaptive < found.oracle
    share = (found.adaptive - max(found.fixed)) / (found.oracle - max(found.fixed))
    assert found.share == pytest.approx(share)
    tokens = sum(one.tokens for one in found.domains)
    assert tokens == found.tokens == found.regret.tokens[-1] == 240
    lost = found.tokens / found.adaptive - found.tokens / found.oracle
    assert found.regret.adaptive[-1] == pytest.approx(lost)
    assert np.diff(found.regret.best_fixed).min() >= 0.0
    assert {row.depth for row in found.depths} == set(range(1, GAMMA + 1))
    position = 0
    for one in found.rounds:
        assert one.position == position
        assert one.accepted <= one.drafted
        position += one.accepted + 1


def test_a_fit_says_what_it_came_to(texts: list[DenseText]) -> None:
    choice = choose_predictor(
        texts, {"measured": COSTS}, families=["linear"], folds=2, config=FitConfig(folds=2)
    )
    content = choice_content(choice, COSTS, yardsticks(texts, COSTS))
    line = fit_line(choice.report, content)
    assert f"AUC {choice.report.auc:.2f}, log-loss {choice.report.log_loss_raw:.3f} before" in line
    assert f"ECE {choice.report.ece_raw:.3f} before and {choice.report.ece:.3f} after" in line
    assert "adaptive on a linear logit" in line
    assert "of the oracle's gain" in line
    metrics = fit_metrics(choice.report, content)
    assert metrics["fit/auc"] == choice.report.auc
    assert metrics["fit/speedup"] == content["speedup"]
    assert metrics["fit/family"] == "linear"
    assert {"fit/ece/depth_1", "fit/ece_floor/depth_1", "fit/survival_gap/depth_1"} < set(metrics)
    assert "policy" not in fit_line(choice.report, None)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no fitted lookahead: it has no latency\.json"):
        run_report(ReportCommand(lookahead=str(tmp_path)))
    with pytest.raises(ValueError, match='report_to must be "none" or "wandb", got'):
        FitCommand(target="t", draft="d", report_to="mlflow")
