"""The page of a fitted lookahead: `fit.html`, which loads nothing."""

from __future__ import annotations

from typing import Any

from .fit_figures import FitFigures
from .report_style import STYLE
from .report_words import clean, large, share

TEMPLATE = """\
{%- macro plot(name, title) -%}
<figure class="card">
<h3>{{ title }}</h3>
{{ plots[name] }}
<figcaption>{{ caller() }}</figcaption>
</figure>
{%- endmacro -%}
{%- macro tile(name, value, note) -%}
<div class="tile"><dt>{{ name }}</dt><dd class="figure">{{ value }}</dd><dd class="note">{{ note
}}</dd></div>
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>foredraft: lookahead</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<header>
<p class="kicker">foredraft lookahead · {{ folder | clean }}</p>
<h1>{{ "%.2f" | format(f.adaptive) }}× plain decoding in replay,
{{ "%+.1f" | format(100 * (f.adaptive / best - 1)) }} % against the best fixed γ</h1>
<p class="lead">{{ f.texts }} greedy texts, {{ f.tokens | large }} tokens, every policy decoding the same
ones at this machine's measured times{{ "; the predictor was fitted on these very texts" if in_sample }}.</p>
<dl class="tiles">
{{ tile("Adaptive", "%.3f×" | format(f.adaptive), "over plain decoding") }}
{{ tile("Best fixed γ", "%.3f×" | format(best), "γ = " ~ f.gamma ~ ", chosen in hindsight") }}
{{ tile("Oracle", "%.3f×" | format(f.oracle), "the best γ at every position, in hindsight") }}
{{ tile("Share of the oracle's gain", f.share | share, "over the best fixed γ") }}
{% if fit %}
{{ tile("AUC", "%.2f" | format(fit.auc), "draft's own probability: %.2f" | format(fit.auc_raw)) }}
{{ tile("ECE", "%.3f" | format(fit.ece),
   "before calibration %.3f; prompts not fitted on" | format(fit.ece_raw)) }}
{% endif %}
</dl>
</header>
<section>
<h2>How fast, and how far from the best there is</h2>
<div class="plots">
{% call plot("speeds", "Speed by γ") %}Where the line of the fixed γ is low a wrong choice costs most; the
adaptive lookahead is not told which is best.{% endcall %}
{% call plot("domains", "Speed by domain") %}The best fixed γ is
 each domain's own, chosen in hindsight.{% endcall %}
{% call plot("regret", "Regret") %}
Time lost to the oracle, in plain steps: flat is as good as can be.{% endcall %}
{% call plot("gammas", "What it drafts") %}Share of rounds, in percent.{% endcall %}
{% call plot("rounds", "γ over a text") %}
Text {{ f.text | clean(24) }}: each bar is a round; after it comes the
target's own token.{% endcall %}
</div>
</section>
<section>
<h2>Can the predictions be trusted?</h2>
<p>Floor: the error that luck alone would show if every chance were right. Excess: a root mean square without
it. S is the chance that all tokens up to a depth are accepted.</p>
<div class="card scroll"><table>
<thead><tr><th>Depth</th><th>Tokens</th><th>ECE</th><th>Floor</th><th>Excess</th><th>S predicted</th>
<th>S observed</th><th>±</th></tr></thead>
<tbody>
{% for row in f.depths %}
<tr><th>{{ row.depth }}</th><td>{{ row.tokens }}</td>
{% for value in (row.ece, row.ece_floor, row.excess, row.survival, row.observed, row.survival_error) %}
<td>{{ "%.3f" | format(value) if value == value else "–" }}</td>
{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
<div class="plots">
{% call plot("reliability", "Reliability by depth") %}
On the diagonal what is predicted is what happens.{% endcall %}
</div>
</section>
<section>
<h2>By domain</h2>
<div class="card scroll"><table>
<thead><tr><th>Domain</th><th>Tokens</th><th>Adaptive</th><th>Best fixed γ</th><th>Oracle</th></tr></thead>
<tbody>
{% for one in f.domains %}
<tr><th>{{ one.name | clean(40) }}</th><td>{{ one.tokens | large }}</td>
<td>{{ "%.3f×" | format(one.adaptive) }}</td>
<td>{{ "%.3f×" | format(one.best_fixed) }}<small>γ = {{ one.gamma }}</small></td>
<td>{{ "%.3f×" | format(one.oracle) }}</td></tr>
{% endfor %}
</tbody></table></div>
</section>
</main>
</body>
</html>
"""


def render_fit(
    figures: FitFigures, fit: dict[str, Any] | None, *, folder: str, in_sample: bool
) -> str:
    """Return the page as one self-contained text.

    Args:
        fit: what fit.json holds; None: its tiles are left out.
        in_sample: the predictor was fitted on these texts.
    """
    # Not at import: `foredraft --help` does without.
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from .fit_plots import fit_plots

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {filter_.__name__: filter_ for filter_ in (clean, large, share)}
    return environment.from_string(TEMPLATE).render(
        f=figures,
        fit=fit,
        folder=folder,
        in_sample=in_sample,
        best=max(figures.fixed),
        style=Markup(STYLE),
        plots={name: Markup(svg) for name, svg in fit_plots(figures).items()},
    )
