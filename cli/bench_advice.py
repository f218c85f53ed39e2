"""What a measurement advises: which arm, what it gives, where it does not pay, and how to set it up."""

from __future__ import annotations

from dataclasses import dataclass

from ..spec.chain import CHAIN
from ..train.card import usage
from .bench_data import ALL, PLAIN, BenchReport, Cell, VerifyCost
from .bench_policies import FITTED, FITTED_BEFORE
from .bench_words import arm_words, cell_speedup, equality_words, exact, totals
from .report_words import share

LOOKUP = "prompt-lookup"
DEFAULT_GAMMA = 4  # for engines that take a fixed γ, where none was measured
_OBJECTS = {
    "bandit": "GammaBandit()",
    "confidence": "ConfidenceThreshold()",
    "heuristic": "HeuristicSchedule()",
}

_LOOKUP_USE = """\
With foredraft:

```python
from foredraft.spec import SamplingParams, SpeculativeDecoder

decoder = SpeculativeDecoder.from_pretrained("{target}", draft="prompt-lookup", lookahead={lookahead})
chat = [{{"role": "user", "content": "Name three fruits."}}]
print(decoder.chat([chat], SamplingParams(temperature=0, max_tokens=64))[0].text)
```

With transformers:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{target}")
target = AutoModelForCausalLM.from_pretrained("{target}")
inputs = tokenizer("Name three fruits.", return_tensors="pt")
output = target.generate(**inputs, prompt_lookup_num_tokens={gamma}, do_sample=False, max_new_tokens=64)
print(tokenizer.decode(output[0], skip_special_tokens=True))
```

With vLLM (spelling of its documentation; not run here):

```sh
vllm serve {target} \\
    --speculative-config '{{"method": "ngram", "num_speculative_tokens": {gamma}, "prompt_lookup_max": 5}}'
```
"""

_PLAIN_USE = """\
With foredraft:

```python
from foredraft.spec import SpeculativeDecoder

decoder = SpeculativeDecoder.from_pretrained("{target}")
```

With transformers: `generate` without `assistant_model`. With vLLM: `vllm serve {target}` without
`--speculative-config`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do, why, and where not."""

    best: Cell | None  # the arm to use; None: decode plainly
    finding: str
    reasons: list[str]
    not_here: list[str]  # where it does not pay, or is not known to


def advise(report: BenchReport) -> Advice:
    """Return the arm whose interval has the highest lower end, if that is above plain decoding."""
    cells = totals(report, report.conditions[0].name)
    drafting = [cell for cell in cells if cell.setting.policy != PLAIN]
    sound = [cell for cell in drafting if exact(cell) and cell.speedup_low is not None]
    best = max(sound, key=_low, default=None)
    if best is None:
        finding = (
            "Nothing can be said: no arm was measured on two prompts or more with sound outputs."
        )
        return Advice(best=None, finding=finding, reasons=[], not_here=_doubts(report, None))
    pays = _low(best) > 1.0
    words = f"{arm_words(best.setting)}: {cell_speedup(best)} the speed of plain decoding"
    finding = f"Use {words}." if pays else f"Do not bother: at best {words}. Decode plainly."
    if not pays and best.speedup > 1.0:
        finding += " More prompts may settle it."
    return Advice(
        best=best if pays else None,
        finding=finding,
        reasons=_reasons(report, best, drafting),
        not_here=_doubts(report, best),
    )


def advice_text(advice: Advice, report: BenchReport, target: str) -> str:
    """Return the advice in Markdown, the settings included.

    Args:
        target: hub id or folder, as engines load it.
    """
    lines = ["# Advice", "", advice.finding, ""]
    for title, entries in (("Why", advice.reasons), ("When not", advice.not_here)):
        if entries:
            lines += [f"## {title}", "", *(f"- {entry}" for entry in entries), ""]
    return "\n".join([*lines, "## Settings", "", settings_text(advice.best, report, target)])


def settings_text(best: Cell | None, report: BenchReport, target: str) -> str:
    """Return how foredraft, transformers and vLLM are told to decode so."""
    if best is None:
        return _PLAIN_USE.format(target=target)
    drafter, policy = best.setting.drafter, best.setting.policy
    gamma = _gamma(best, report)
    lookahead = str(gamma)
    if policy == "adaptive" and drafter == LOOKUP and _folder(best) is None:
        lookahead = '"adaptive"'
    elif policy in _OBJECTS or (policy == "adaptive" and _folder(best) is None):
        lookahead = _OBJECTS.get(policy, "GammaBandit()")
    elif policy == "adaptive":
        lookahead = f'"{_folder(best)}"'
    if drafter == LOOKUP:
        text = _LOOKUP_USE.format(target=target, gamma=gamma, lookahead=lookahead)
    else:
        model = drafter.removeprefix(CHAIN)  # other engines have no chain
        text = usage(model, target, gamma=gamma, lookahead=lookahead)
        text = text.replace(f'draft="{model}"', f'draft="{drafter}"', 1)
    name = lookahead.removesuffix("()")
    if name != lookahead:
        text = text.replace(
            "from foredraft.spec import",
            f"from foredraft.controller import {name}\nfrom foredraft.spec import",
            1,
        )
    if policy != f"γ = {gamma}":
        text += f"\nThe others take a fixed γ: {gamma}, the best of those measured.\n"
    return text


def _gamma(best: Cell, report: BenchReport) -> int:
    """Return the fixed γ for engines that know no other policy: the best measured with this drafter."""
    fixed = [
        cell
        for cell in totals(report, best.setting.condition)
        if cell.setting.drafter == best.setting.drafter and cell.setting.policy.startswith("γ = ")
    ]
    if not fixed:
        return DEFAULT_GAMMA
    return int(max(fixed, key=lambda cell: cell.speedup).setting.policy.removeprefix("γ = "))


def _folder(cell: Cell) -> str | None:
    """Return the folder of an adaptive arm's lookahead."""
    for words in (FITTED, FITTED_BEFORE):
        if cell.about.startswith(words):
            return cell.about.removeprefix(words)
    return None


def _reasons(report: BenchReport, best: Cell, drafting: list[Cell]) -> list[str]:
    others = [cell for cell in drafting if cell is not best]
    lines = [
        f"{best.requests} outputs, {best.tokens} tokens; α {share(best.acceptance_prob)}, "
        f"{best.block_efficiency:.2f} tokens a target forward; outputs: {equality_words(best)}.",
        *(
            f"{arm_words(cell.setting)}: {cell_speedup(cell)}"
            for cell in sorted(others, key=lambda cell: -cell.speedup)
        ),
    ]
    needed = break_even(best, report.verify)
    if needed is not None:
        lines.append(
            f"A first candidate pays here above α = {share(max(0.0, needed))}; measured: "
            f"{share(best.acceptance_prob)}."
        )
    lines += [f"not run: {refusal.drafter}: {refusal.reason}" for refusal in report.refusals]
    return lines


def break_even(cell: Cell, verify: list[VerifyCost]) -> float | None:
    """Return the α above which one drafted token pays: (t_draft + t(2)) / t(1) − 1. None: not measured.

    t(2) is read off between the verify latencies that were measured.
    """
    own = [cost for cost in verify if cost.condition == cell.setting.condition]
    if not own or cell.setting.rows > 1:
        return None
    bucket = max(own, key=lambda cost: cost.count)
    times = {cost.tokens: cost.ms for cost in own if cost.context_low == bucket.context_low}
    more = min((tokens for tokens in times if tokens > 1), default=None)
    if 1 not in times or more is None:
        return None
    second = times[1] + (times[more] - times[1]) / (more - 1)
    return ((cell.draft_ms or 0.0) + second) / times[1] - 1.0


def _doubts(report: BenchReport, best: Cell | None) -> list[str]:
    lines = []
    if best is not None:
        for cell in report.cells:
            mine = (cell.setting.drafter, cell.setting.policy) == (
                best.setting.drafter, best.setting.policy,
            )  # fmt: skip
            if mine and cell.setting.domain != ALL and cell.speedup < 1.0:
                lines.append(f"On {cell.setting.domain} it gave {cell_speedup(cell)}.")
        rows = best.setting.rows
        lines.append(
            f"Measured at {rows} {'prompt' if rows == 1 else 'prompts'} at once and temperature "
            f"{best.setting.temperature:g}: in larger batches a candidate costs more and pays less, at "
            "higher temperatures α is lower."
        )
        if best.setting.drafter != LOOKUP:
            lines.append(
                "Outputs of a few tokens do not pay: the draft reads the whole prompt first (whole calls "
                f"here: {best.call_speedup:.2f}×)."
            )
    lines.append(
        "The arm was chosen on the prompts it was measured on; on others expect a little less."
    )
    if report.blocks < report.wanted:
        lines.append(f"{report.blocks} of {report.wanted} blocks were measured in the time given.")
    return lines


def _low(cell: Cell) -> float:
    assert cell.speedup_low is not None
    return cell.speedup_low
