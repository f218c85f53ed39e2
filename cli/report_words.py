"""Numbers and findings as text, shared by the page and the terminal so that both say the same."""

from __future__ import annotations

from dataclasses import dataclass

from .report_data import Arm, Comparison, Report

NOT_MEASURED = "–"


def clean(text: str, limit: int | None = None) -> str:
    """Return the text with control characters made visible, cut to `limit` characters."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def short_name(name: str) -> str:
    """Return the last part of a hub id or of a folder."""
    return clean(name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or name)


def figures(value: float | None) -> str:
    """Return the value with three figures, never in exponent form."""
    if value is None:
        return NOT_MEASURED
    decimals = next((n for n, bound in enumerate((100, 10, 1)) if abs(value) >= bound), 3)
    return f"{value:,.{decimals}f}"


def share(value: float | None) -> str:
    """Return a share of 1 with three decimals."""
    return NOT_MEASURED if value is None else f"{value:.3f}"


def percent(value: float) -> str:
    """Return a share of 1 in percent, never rounded up to all."""
    shown = f"{100 * value:.1f}"
    return f"{'99.9' if shown == '100.0' and value < 1 else shown.removesuffix('.0')} %"


def large(count: int) -> str:
    """Return a count in thousands, millions or billions."""
    for bound, sign in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if count >= bound:
            return f"{figures(count / (1e3 if sign == 'k' else bound))}{sign}"
    return f"{count:,}"


def duration(seconds: float) -> str:
    """Return a time in the unit one would say."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def speedup(value: float, low: float | None = None, high: float | None = None) -> str:
    """Return a speedup with its interval where there is one."""
    spread = "" if low is None or high is None else f" ({low:.2f}–{high:.2f})"
    return f"{value:.2f}×{spread}"


def arm_speedup(arm: Arm) -> str:
    """Return the arm's speedup; plain decoding is the unit and has no interval."""
    if arm.gamma == 0:
        return "1.00×"
    return speedup(arm.speedup, arm.speedup_low, arm.speedup_high)


def domain_speedup(arm: Arm, domain: str) -> str:
    """Return the arm's speedup on one domain."""
    found = arm.domains.get(domain)
    if found is None:
        return NOT_MEASURED
    return speedup(found.speedup, found.speedup_low, found.speedup_high)


def equal_outputs(equal: int, outputs: int) -> str:
    """Return how many outputs equal plain decoding, of those compared."""
    return f"{equal}/{outputs}" if outputs else "not compared"


def domains_of(comparison: Comparison) -> list[str]:
    """Return the domains in the order in which the arms name them."""
    return list(dict.fromkeys(domain for arm in comparison.arms for domain in arm.domains))


def drafting_arms(comparison: Comparison) -> list[Arm]:
    """Return the arms that may draft."""
    return [arm for arm in comparison.arms if arm.gamma != 0]


def leading_arm(comparison: Comparison) -> Arm | None:
    """Return the headline's arm: the fastest adaptive one, else the fastest that drafts."""
    arms = drafting_arms(comparison)
    adaptive = [arm for arm in arms if arm.gamma == "adaptive"]
    return max(adaptive or arms, key=lambda arm: arm.speedup, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What a hurried reader takes home."""

    title: str
    detail: str
    equality: str | None  # whether the outputs stayed the same; None where nothing was compared
    exact: bool


def headline(report: Report) -> Headline:
    """Return the finding in words no stronger than its interval allows."""
    draft = "" if report.draft is None else f" with a {report.draft.layers}-layer draft"
    name = short_name(report.target.name)
    arm = None if report.comparison is None else leading_arm(report.comparison)
    if report.comparison is None or arm is None:
        return Headline(title=name, detail=f"Measured{draft}.", equality=None, exact=True)
    way = "Adaptive drafting" if arm.gamma == "adaptive" else f"Drafting γ = {arm.gamma}"
    interval = f"interval {arm.speedup_low:.2f}–{arm.speedup_high:.2f}"
    if round(arm.speedup_low, 2) > 1:  # as it is shown
        title = f"{way} decodes {arm.speedup:.2f}× as fast as plain decoding"
        detail = f"{name}{draft}; {interval}."
    elif round(arm.speedup_high, 2) < 1:
        title = f"{way} is slower here: {arm.speedup:.2f}× the speed of plain decoding"
        detail = f"{name}{draft}; {interval}. On this machine the draft does not pay."
    else:
        title = f"{way} and plain decoding are equally fast here, as far as measured"
        detail = f"{name}{draft}; {arm.speedup:.2f}×, and the {interval} includes 1."
    sentence, exact = _equality(report.comparison)
    return Headline(title=title, detail=detail, equality=sentence, exact=exact)


def _equality(comparison: Comparison) -> tuple[str | None, bool]:
    arms = drafting_arms(comparison)
    equal = sum(arm.equal_outputs for arm in arms)
    outputs = sum(arm.outputs for arm in arms)
    if not outputs:
        return None, True
    if equal == outputs:
        return f"All {outputs} outputs equal plain decoding, token for token.", True
    return f"{outputs - equal} of {outputs} outputs differ from plain decoding.", False
