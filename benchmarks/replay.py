"""Every lookahead on the same dense traces: who has how much of what there is to be had.

    python benchmarks/replay.py --fit DENSE_DEV --texts DENSE_TEST --latency LOOKAHEAD/latency.json

The predictor is fitted on the texts of --fit; the peers are tuned on --texts themselves, ours is not.
The order mixes the domains. Figures are tokens per second over those of plain decoding.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from foredraft.controller import (
    AcceptancePredictor,
    AdaptiveLookahead,
    FitConfig,
    LatencyTable,
    MachineFingerprint,
    RoundCosts,
    choose_predictor,
    fit_predictor_from_dense,
)
from foredraft.controller.dense_rows import score_depths
from foredraft.controller.families import FAMILIES
from foredraft.controller.informed import informed_bound
from foredraft.controller.judging import (
    Judged,
    after_switch,
    bandit,
    flat_costs,
    judge,
    judge_fixed,
    peers,
    priced,
    quickest,
)
from foredraft.controller.oracle import replay_oracle
from foredraft.data import DenseText, read_dense_traces

RATIOS = (0.05, 0.1, 0.2)


def compare(
    fit_on: Sequence[DenseText],
    texts: Sequence[DenseText],
    models: Mapping[str, RoundCosts],
    families: Sequence[str] = ("linear",),
) -> dict[str, Any]:
    """Return for each cost model the speedups of all policies, in total and by domain, and their settings.

    Args:
        families: of predictors; where there are several the quickest on the texts of the fit is taken.
    """
    family = families[0]
    if len(families) > 1:
        family = choose_predictor(fit_on, models, families=families).family
    report = fit_predictor_from_dense(fit_on, config=FitConfig(family=family))
    own = fit_predictor_from_dense(texts, config=FitConfig(family=family)).predictor
    looks = fit_predictor_from_dense([replace(text, prompt=()) for text in fit_on]).predictor
    most = min(costs.gamma_max for costs in models.values())
    any_costs = next(iter(models.values()))
    blind = {  # what they do does not depend on the costs
        name: [judge(make, texts, any_costs, setting=setting) for setting, make in makes.items()]
        for name, makes in peers(looks, most, echoing=report.predictor).items()
    }
    figures = {
        name: _of_costs(report.predictor, own, blind, texts, costs)
        for name, costs in models.items()
    }
    return {
        "fitted on": {
            "texts": len(fit_on),
            "family": family,
            "auc": report.auc,
            "log loss": report.log_loss,
            "log loss, raw": report.log_loss_raw,
            "ece": report.ece,
            "ece, raw": report.ece_raw,
        },
        "depths": [asdict(row) for row in score_depths(report.predictor, texts)],
        "texts": len(texts),
        "tokens": sum(len(text.tokens) for text in texts),
        "costs": figures,
    }


def table_of(costs: RoundCosts) -> LatencyTable:
    """Return the table that a measurement of these costs would give."""
    return LatencyTable(
        draft_step_seconds=costs.draft_step,
        verify_seconds=costs.verify,
        overhead_seconds=costs.plain_overhead,
        context_length=128,
        machine=MachineFingerprint.here("cpu"),
    )


def mixed(texts: Sequence[DenseText]) -> list[DenseText]:
    """Return the texts with the domains in turn."""
    seen: dict[str, int] = {}
    ranks = []
    for text in texts:
        ranks.append(seen.setdefault(text.domain, 0))
        seen[text.domain] += 1
    return [text for _, text in sorted(zip(ranks, texts, strict=True), key=lambda pair: pair[0])]


def _of_costs(
    predictor: AcceptancePredictor,
    own: AcceptancePredictor,
    blind: Mapping[str, Sequence[Judged]],
    texts: Sequence[DenseText],
    costs: RoundCosts,
) -> dict[str, Any]:
    most = costs.gamma_max
    runs: dict[str, Judged] = {"plain": judge_fixed(0, texts, costs)}
    fixed = [judge_fixed(gamma, texts, costs) for gamma in range(most + 1)]
    runs["best fixed γ"] = max(fixed, key=lambda run: run.total.tokens_per_second)
    runs["γ = 5"] = fixed[min(5, most)]
    for name, tried in blind.items():
        priced_runs = [priced(run, costs) for run in tried]
        runs[name] = priced_runs[0]
        runs[f"{name}, tuned"] = quickest(priced_runs)
    runs["bandit"] = judge(bandit(most), texts, costs)

    def ours() -> AdaptiveLookahead:
        return AdaptiveLookahead(predictor, table_of(costs), gamma_max=most)

    runs["ours"] = judge(ours, texts, costs)
    by_domain = {
        name: [text for text in texts if text.domain == name] for name in runs["plain"].domains
    }
    oracle = {name: replay_oracle(of_domain, costs) for name, of_domain in by_domain.items()}
    plain, best = runs["plain"], runs["best fixed γ"]
    top = replay_oracle(texts, costs).tokens_per_second
    base = best.total.tokens_per_second
    rows = {name: _row(run, plain) for name, run in runs.items()}
    for name, row in rows.items():
        row["share of gain"] = (runs[name].total.tokens_per_second - base) / (top - base)
    bounds = {
        "informed by the fit": informed_bound(texts, costs, predictor).tokens_per_second,
        "informed bound": informed_bound(texts, costs, own).tokens_per_second,
        "oracle": top,
    }
    for name, rate in bounds.items():
        rows[name] = {
            "total": rate / plain.total.tokens_per_second,
            "share of gain": (rate - base) / (top - base),
        }
    rows["oracle"]["domains"] = {
        name: run.tokens_per_second / plain.domains[name].tokens_per_second
        for name, run in oracle.items()
    }
    per_domain = {
        name: runs["ours"].domains[name].tokens_per_second
        / max(run.domains[name].tokens_per_second for run in fixed)
        for name in by_domain
    }
    return {
        "rows": rows,
        "ours over the best fixed γ of each domain": per_domain,
        "switch": _switches(ours, by_domain, costs),
    }


def _row(run: Judged, plain: Judged) -> dict[str, Any]:
    return {
        "setting": run.setting,
        "total": run.total.tokens_per_second / plain.total.tokens_per_second,
        "tokens per round": run.total.tokens_per_round,
        "domains": {
            name: each.tokens_per_second / plain.domains[name].tokens_per_second
            for name, each in run.domains.items()
        },
    }


def _switches(
    ours: Any, by_domain: Mapping[str, Sequence[DenseText]], costs: RoundCosts
) -> dict[str, dict[str, float]]:
    """Return the speed after each switch over the settled one: in the first 30 rounds, and after them."""
    names = list(by_domain)
    switches = {}
    for one, other in zip(names, names[1:] + names[:1], strict=True):
        first, rest = after_switch(ours, by_domain[one], by_domain[other], costs)
        switches[f"{one} → {other}"] = {"first 30 rounds": first, "after": rest}
    return switches


def render(figures: Mapping[str, Any]) -> str:
    """Return the figures as a table for each cost model."""
    fitted = figures["fitted on"]
    said = ", ".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in fitted.items()
    )
    lines = [f"fitted on: {said}", ""]
    lines.append("depth  tokens     ECE   floor  excess     S_k observed       ±")
    for row in figures["depths"]:
        names = ("ece", "ece_floor", "excess", "survival", "observed", "survival_error")
        shown = "".join(f"{row[name]:8.3f}" for name in names)
        lines.append(f"{row['depth']:5}{row['tokens']:8}{shown}")
    lines.append("")
    for name, content in figures["costs"].items():
        rows = content["rows"]
        domains = list(rows["plain"]["domains"])
        head = f"{name:28}" + "".join(f"{word[:8]:>9}" for word in ["total", "share", *domains])
        lines += [head]
        for policy, row in sorted(rows.items(), key=lambda pair: pair[1]["total"]):
            parts = [row["total"], row["share of gain"]]
            parts += [row.get("domains", {}).get(domain, float("nan")) for domain in domains]
            said = "".join(f"{part:9.3f}" for part in parts)
            lines.append(f"{policy[:28]:28}{said}  {row.get('setting', '')}")
        worst = min(content["ours over the best fixed γ of each domain"].values())
        lines.append(f"ours over the best fixed γ of a domain, the worst: {worst:.3f}")
        late = min(each["after"] for each in content["switch"].values())
        early = min(each["first 30 rounds"] for each in content["switch"].values())
        lines += [
            f"after a switch, the worst: {early:.3f} in the first 30 rounds, {late:.3f} later",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--fit", type=Path, nargs="+", required=True, help="folders of dense traces to fit on"
    )
    parser.add_argument("--texts", type=Path, required=True, help="dense traces to judge on")
    parser.add_argument("--latency", type=Path, help="a measured latency.json, of any machine")
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    parser.add_argument(
        "--families",
        nargs="+",
        choices=FAMILIES,
        default=["linear"],
        help="predictors to choose from",
    )
    options = parser.parse_args()
    texts = mixed(read_dense_traces(options.texts))
    most = min(text.gamma_max for text in texts)
    models = {f"flat, c = {ratio}": flat_costs(ratio, most) for ratio in RATIOS}
    if options.latency is not None:
        models["measured"] = _measured(options.latency, most)
    fit_on = mixed([text for folder in options.fit for text in read_dense_traces(folder)])
    figures = compare(fit_on, texts, models, options.families)
    print(render(figures))
    if options.output is not None:
        options.output.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


def _measured(path: Path, gamma_max: int) -> RoundCosts:
    """Return the costs of a table, whatever machine it is of: no model runs here."""
    machine = MachineFingerprint(**json.loads(path.read_text())["machine"])
    table = LatencyTable.load(path, machine=machine)
    return table.costs(min(gamma_max, table.gamma_max))


if __name__ == "__main__":
    main()
