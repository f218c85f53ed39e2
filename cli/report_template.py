"""The page of report.html as a Jinja2 template.

Every value is escaped, plots come as finished SVG.
"""

TEMPLATE = """\
{%- macro plot(name, title) -%}
{% if name in plots %}
<figure class="card">
<h3>{{ title }}</h3>
{{ plots[name] }}
<figcaption>{{ caller() }}</figcaption>
</figure>
{% endif %}
{%- endmacro -%}
{%- macro counted(rate, part, whole) -%}
{{ rate | share }}
{%- if rate is not none %}<small>{{ "{:,} of {:,}".format(part, whole) }}</small>{% endif %}
{%- endmacro -%}
{%- macro fact(name, value) -%}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{%- endmacro -%}
{%- macro tile(name, value, note) -%}
<div class="tile"><dt>{{ name }}</dt><dd class="figure">{{ value }}</dd><dd class="note">{{ note
}}</dd>
</div>
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>foredraft: {{ r.target.name | short_name }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<header>
<p class="kicker">foredraft report · {{ r.created[:16] | replace("T", " ") | clean }}</p>
<h1>{{ head.title }}</h1>
<p class="lead">{{ head.detail }}</p>
{% if head.equality %}
<p class="verdict{% if not head.exact %} differs{% endif %}">{{ head.equality }}</p>
{% endif %}
<dl class="tiles">
{% if lead %}
{{ tile("Speedup, " ~ lead.name | clean(24), "%.2f×" | format(lead.speedup),
   "interval %.2f–%.2f" | format(lead.speedup_low, lead.speedup_high)) }}
{{ tile("Tokens per second", lead.tokens_per_second | figures,
   "plain decoding " ~ plain.tokens_per_second | figures if plain else "of text decoded") }}
{{ tile("Tokens/forward, τ", "%.2f" | format(lead.block_efficiency),
   "plain gives 1") }}
{% endif %}
{% if r.training %}
{{ tile("Acceptance, α", r.training.best.alpha | share,
   "held-out text; " ~ r.training.before.alpha | share ~ " before training") }}
{% endif %}
{% if lead and lead.outputs %}
{{ tile("Outputs equal to plain", equal, "over all arms that draft") }}
{% endif %}
</dl>
</header>

{% if c and c.arms %}
<section>
<h2>Every arm, one run</h2>
<p>{{ c.prompts }} held-out prompts, up to {{ c.max_tokens }} tokens each, temperature
{{ "%g" | format(c.temperature) }},
{{ c.dtype | clean }}, {{ c.repeats }} {{ "repeat" if c.repeats == 1 else "repeats" }}. All arms
decode the same prompts on the same machine; plain decoding is the same loop with γ&nbsp;=&nbsp;0.
{% if c.interval %}Intervals: {{ c.interval | clean }}.{% endif %}</p>
<div class="card scroll" tabindex="0">
<table>
<thead><tr>
<th scope="col">arm</th><th scope="col">tokens/s</th>
<th scope="col">speedup<small>low–high</small></th>
<th scope="col">α<small>of tested tokens</small></th>
<th scope="col">acceptance rate<small>of drafted tokens</small></th>
<th scope="col">τ<small>tokens/forward</small></th>
<th scope="col">draft<small>ms/step</small></th><th scope="col">verify<small>ms/forward</small></th>
<th scope="col">outputs<small>equal to plain</small></th>
</tr></thead>
<tbody>
{% for arm in c.arms %}
<tr{% if arm.gamma == "adaptive" %} class="adaptive"{% endif %}>
<th scope="row">{{ arm.name | clean(40) }}</th>
<td>{{ arm.tokens_per_second | figures }}</td>
<td>{{ arm | arm_speedup }}</td>
<td>{{ counted(arm.acceptance_prob, arm.accepted, arm.tested) }}</td>
<td>{{ counted(arm.acceptance_rate, arm.accepted, arm.drafted) }}</td>
<td>{{ "%.2f" | format(arm.block_efficiency) }}</td>
<td>{{ arm.draft_ms | figures }}</td>
<td>{{ arm.verify_ms | figures }}</td>
<td{% if arm.equal_outputs != arm.outputs %} class="differs"{% endif %}>
{{- equal_outputs(arm.equal_outputs, arm.outputs) }}</td>
</tr>
{% endfor %}
</tbody>
</table>
</div>
<div class="plots">
{% call plot("speedups", "Speedup over plain decoding") %}
Seconds of plain decoding divided by seconds of the arm. The dot is the whole run, the bar its
interval;
right of the dashed line is faster than plain.
{% endcall %}
{% call plot("gammas", "How far the adaptive arm drafted") %}
Share of rounds, in percent, by the tokens drafted. The controller weighs the predicted acceptance
against the measured latencies before every draw, so γ changes from round to round.
{% endcall %}
{% call plot("lengths", "Accepted length") %}
Share of rounds, in percent, by how many drafted tokens the target accepted before it spoke itself.
Rounds without a draft are left out.
{% endcall %}
{% call plot("domains", "Speedup by domain") %}
The same measure on the prompts of each domain alone. Bars are intervals, where there are enough
prompts
for one. Plain decoding is 1.
{% endcall %}
</div>
{% if domains %}
<div class="card scroll" tabindex="0">
<table>
<thead><tr><th scope="col">speedup by domain</th>
{% for arm in drafting %}<th scope="col">{{ arm.name | clean(24) }}</th>{% endfor %}</tr></thead>
<tbody>
{% for domain in domains %}
<tr><th scope="row">{{ domain | clean(40) }}</th>
{% for arm in drafting %}<td>{{ arm | domain_speedup(domain) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endif %}
</section>
{% endif %}

{% if r.training %}
<section>
<h2>The draft learns the target</h2>
<p>Both models read held-out text that the target wrote, at temperature 1, and are compared at every
position over the whole vocabulary.</p>
<div class="plots">
{% call plot("acceptance", "Acceptance over training") %}
α is the mean of Σ min(p, q). The dashed line is the draft as it was before the first step
{%- if r.training.curve %}; the last point is after
{{ r.training.curve[-1].tokens | large }} tokens and {{ r.training.curve[-1].seconds | duration }}
{%- endif %}.
{% if loop %}The diamond is α as the decode loop saw it, {{ loop.alpha | share }}
({{ loop.low | share }}–{{ loop.high | share }}, {{ "{:,}".format(loop.tested) }} tested tokens)
{%- if loop.teacher_forced is not none %}, against {{ loop.teacher_forced | share }} teacher forced
on
the same text{% endif %}.{% endif %}
{% endcall %}
<div>
{% call plot("divergence", "Loss over training") %}
The training loss as logged, and KL from the target to the draft on held-out text, in nats per
token.
{% endcall %}
<div class="card scroll" tabindex="0">
<table>
<thead><tr><th scope="col">held-out text</th><th scope="col">before</th><th
scope="col">best</th></tr>
</thead>
<tbody>
<tr><th scope="row">α</th><td>{{ r.training.before.alpha | share }}</td>
<td>{{ r.training.best.alpha | share }}</td></tr>
<tr><th scope="row">same top token</th><td>{{ r.training.before.top1 | share }}</td>
<td>{{ r.training.best.top1 | share }}</td></tr>
<tr><th scope="row">KL to the target, nats</th><td>{{ r.training.before.kl | figures }}</td>
<td>{{ r.training.best.kl | figures }}</td></tr>
{% if r.training.best.coverage is not none %}
<tr><th scope="row">target's mass on the draft's tokens</th>
<td>{{ r.training.before.coverage | share }}</td><td>{{ r.training.best.coverage | share
}}</td></tr>
{% endif %}
</tbody>
</table>
</div>
</div>
</div>
</section>
{% endif %}

{% if r.latency or r.predictor %}
<section>
<h2>What the controller knows</h2>
<p>It spends a draft step only where the expected tokens are worth the time.</p>
<div class="plots">
{% if r.latency %}
{% call plot("latency", "What a forward costs") %}
Measured here with {{ r.latency.context_length }} tokens in the cache, low quantiles of repeated
runs.
A draft step takes {{ r.latency.draft_step_ms | figures }} ms, c =
{{ (r.latency.draft_step_ms / r.latency.verify_ms[0]) | figures }} of a one-token target step. A
round
is its draft steps, one verify forward and {{ r.latency.overhead_ms | figures }} ms around them.
{% if r.latency.contended %}<b class="differs">The machine was busy with other work, so these times
may
be too long.</b>{% endif %}
{% endcall %}
{% endif %}
{% if r.predictor %}
{% call plot("reliability", "Can acceptance be foretold?") %}
Each point is a group of held-out drafted tokens with about the same predicted chance; on the
diagonal
the prediction holds. {{ "{:,}".format(r.predictor.rows) }} tokens, AUC {{ r.predictor.auc | share
}},
log loss {{ r.predictor.log_loss | share }} nats, calibration error {{ r.predictor.ece | share }}
({{ r.predictor.ece_raw | share }} before calibration).
{% endcall %}
{% endif %}
</div>
</section>
{% endif %}

{% if r.stages %}
<section>
<h2>Stages</h2>
<p>{{ total | duration }} in all{% if r.stages | selectattr("reused") | list %}; stages marked
“reused”
were found finished from an earlier run{% endif %}.</p>
<div class="card scroll" tabindex="0">
<table>
<thead><tr><th scope="col">stage</th><th scope="col">time</th><th scope="col" class="bars"></th>
<th scope="col" class="text">what was done</th></tr></thead>
<tbody>
{% for stage in r.stages %}
<tr><th scope="row">{{ stage.name | clean(40) }}</th>
<td>{{ stage.seconds | duration }}{% if stage.reused %}<small>reused</small>{% endif %}</td>
<td class="bars"><span class="bar" style="width: {{ (100 * stage.seconds / longest)
   | round(1) }}%"></span></td>
<td class="text">{{ stage.summary | clean }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
</section>
{% endif %}

<section>
<h2>Models, text and machine</h2>
<dl class="card facts">
{{ fact("Target", r.target.name | clean) }}
{{ fact("Size of the target", "%s parameters, %d layers, %s tokens" | format(
   r.target.parameters | large, r.target.layers, "{:,}".format(r.target.vocabulary))) }}
{% if r.draft %}
{{ fact("Draft", r.draft.folder | clean) }}
{{ fact("Size of the draft", "%s parameters, %d %s" | format(
   r.draft.parameters | large, r.draft.layers,
   "layer" if r.draft.layers == 1 else "layers")) }}
{% if r.draft.head_tokens is not none %}
{{ fact("Vocabulary of the draft", "{:,} most frequent tokens".format(r.draft.head_tokens)
   ~ (", %s of the target's mass" | format(r.draft.coverage | percent)
      if r.draft.coverage is not none else "")) }}
{% endif %}
{% endif %}
{% if r.corpus %}
{{ fact("Text written by the target", "{:,} tokens in {:,} rows from {:,} prompts".format(
   r.corpus.tokens, r.corpus.rows, r.corpus.prompts)) }}
{{ fact("Complete rows, used for training", "{:,}".format(r.corpus.complete_rows)) }}
{{ fact("Rows by domain", r.corpus.domains | rows_by_domain) }}
{% endif %}
{{ fact("Processor", r.machine.cpu | clean) }}
{{ fact("Cores and threads", "%d cores, %d threads" | format(r.machine.cores, r.machine.threads)) }}
{{ fact("Memory", "%.0f GB" | format(r.machine.memory_gb)) }}
{{ fact("Device", r.machine.device | clean) }}
{{ fact("System", r.machine.platform | clean) }}
{{ fact("Versions", "Python %s, torch %s, transformers %s, foredraft %s" | format(
   r.versions.python | clean, r.versions.torch | clean, r.versions.transformers | clean,
   r.versions.foredraft | clean)) }}
{% if r.commit %}{{ fact("Commit", r.commit | clean(40)) }}{% endif %}
</dl>
<div class="card"><pre>{{ r.command | clean }}</pre></div>
</section>

<section>
<h2>Words</h2>
<dl class="card words">
<dt>round</dt><dd>γ draft steps, then one target forward that verifies all γ tokens and gives one
more.</dd>
<dt>α</dt><dd>The chance that one tested token is accepted: Σ min(p, q) over the vocabulary, with p
of the
target and q of the draft after the sampling settings. In the table of arms: accepted / tested. It
depends
on the temperature, so values at different temperatures are not comparable.</dd>
<dt>acceptance rate</dt><dd>Accepted / drafted. Lower than α, since tokens drafted after a
rejection are
never tested.</dd>
<dt>τ</dt><dd>Tokens emitted per target forward; plain decoding gives 1.</dd>
<dt>c</dt><dd>Seconds of a draft step / seconds of a one-token target step.</dd>
<dt>speedup</dt><dd>Seconds of plain decoding / seconds of the arm, for the same prompts, lengths,
number
format and device in one run.</dd>
</dl>
</section>
<footer>The same figures as numbers: <code>report.json</code>, beside this page.</footer>
</main>
</body>
</html>
"""
