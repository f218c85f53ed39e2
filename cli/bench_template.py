"""The page of a bench as a Jinja2 template. Every value is escaped, plots come as finished SVG."""

TEMPLATE = """\
{%- macro head(names) -%}
<thead><tr>{% for name, note in names %}
<th scope="col"><button type="button">{{ name }}</button>{% if note %}<small>{{ note }}</small>{% endif
%}</th>{% endfor %}
</tr></thead>
{%- endmacro -%}
{%- macro num(value, shown) -%}
<td data-v="{{ "" if value is none else value }}">{{ shown }}</td>
{%- endmacro -%}
{%- macro fact(name, value) -%}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{%- endmacro -%}
{%- macro tile(name, value, note) -%}
<div class="tile"><dt>{{ name }}</dt><dd class="figure">{{ value }}</dd><dd class="note">{{ note
}}</dd>
</div>
{%- endmacro -%}
{%- macro plot(plots, name, title) -%}
{% if name in plots %}
<figure class="card"><h3>{{ title }}</h3>
{{ plots[name] }}
<figcaption>{{ caller() }}</figcaption></figure>
{% endif %}
{%- endmacro -%}
{%- macro cells_table(cells, with_domain) -%}
{% set several = cells | map(attribute="setting") | map("varied_words") | unique | list | length > 1 %}
<div class="card scroll" tabindex="0">
<table class="sortable">
{{ head([("arm", "")] + ([("domain", "")] if with_domain else []) + [
   ("speedup", "95 %, over plain"), (floor ~ "× plain", "kept?"),
   ("tokens/s", "decoding"), ("whole calls", "speedup"),
   ("α", "of tested"), ("rate", "of drafted"), ("τ", "tokens/forward"), ("draft", "ms/step"),
   ("verify", "ms/forward"), ("TTFT", "ms"), ("ITL", "median ms"), ("ITL 95 %", "ms"),
   ("ITL 99 %", "ms"), ("TPOT", "ms/token"), ("outputs", "equal, or law")]) }}
<tbody>
{% for cell in cells %}
<tr{% if cell.setting.policy in controllers %} class="adaptive"{% endif %}>
<th scope="row">{{ cell.setting | arm_words }}{% if several %}<small>{{ cell.setting | varied_words
}}</small>{% endif %}</th>
{% if with_domain %}<td>{{ cell.setting.domain | clean(30) }}</td>{% endif %}
{{ num(cell.speedup, cell | cell_speedup) }}
<td class="{{ {"keeps up": "keeps", "loses": "loses"}.get(cell | floor_words, "") }}">{{
 cell | floor_words }}</td>
{{ num(cell.tokens_per_second, cell.tokens_per_second | figures) }}
{{ num(cell.call_speedup, "%.2f×" | format(cell.call_speedup)) }}
{{ num(cell.acceptance_prob, cell.acceptance_prob | share) }}
{{ num(cell.acceptance_rate, cell.acceptance_rate | share) }}
{{ num(cell.block_efficiency, "%.2f" | format(cell.block_efficiency)) }}
{{ num(cell.draft_ms, cell.draft_ms | figures) }}
{{ num(cell.verify_ms, cell.verify_ms | figures) }}
{{ num(cell.ttft_ms, cell.ttft_ms | figures) }}
{{ num(cell.itl_ms, cell.itl_ms | figures) }}
{{ num(cell.itl_p95_ms, cell.itl_p95_ms | figures) }}
{{ num(cell.itl_p99_ms, cell.itl_p99_ms | figures) }}
{{ num(cell.tpot_ms, cell.tpot_ms | figures) }}
<td{% if not cell | exact %} class="differs"{% endif %}>{{ "" if cell.setting.policy == "plain" and
 cell.equal is not none else cell | equality_words }}</td>
</tr>
{% endfor %}
</tbody></table></div>
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src '{{ digest }}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>foredraft bench: {{ r.target.name | short_name }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<header>
<p class="kicker">foredraft bench · {{ r.created[:16] | replace("T", " ") | clean }}</p>
<h1>{{ title }}</h1>
<p class="lead">{{ detail }}</p>
{% if wrong %}<p class="verdict differs">{{ wrong }} of {{ compared }} cells gave other outputs than
 the target's law allows.</p>
{% elif compared %}<p class="verdict">Nothing speaks against the outputs of all {{ compared }}
 drafting cells.</p>{% endif %}
{% if best %}
<dl class="tiles">
{{ tile("Best speedup", "%.2f×" | format(best.speedup), best.setting | arm_words) }}
{{ tile("Tokens per second", best.tokens_per_second | figures, "of that arm") }}
{{ tile("Acceptance, α", best.acceptance_prob | share, "of tested tokens") }}
{{ tile("Arms that keep " ~ floor ~ "×", kept, "over all domains of a condition") }}
{{ tile("Blocks measured", r.blocks ~ "/" ~ r.wanted, "a block: all arms, one prompt or batch") }}
</dl>
{% endif %}
</header>

{% for condition in r.conditions %}
{% set own = plots[loop.index0] %}
<section>
<h2>{{ condition.name | capitalize }}</h2>
<p>{{ condition.about }} All arms decode each prompt in turn, in a new order each time.
{% set words = by_condition[loop.index0] | map(attribute="setting") | map("varied_words") | unique | list %}
{% if words | length == 1 %}Settings: {{ words[0] }}.{% endif %}</p>
{% if by_condition[loop.index0] %}
{{ cells_table(by_condition[loop.index0], domain_names[loop.index0] | length > 0
   and not has_totals[loop.index0]) }}
{% endif %}
{% for refusal in r.refusals if refusal.condition == condition.name %}
{% if loop.first %}<ul class="refused">{% endif %}
<li><b>{{ refusal.drafter | drafter_words }}{% if refusal.policy %}, {{ refusal.policy }}{% endif
%}</b> did not run: {{ refusal.reason | refused }}</li>
{% if loop.last %}</ul>{% endif %}
{% endfor %}
<div class="plots">
{% call plot(own, "speedups", "Speedup over plain decoding") %}
Seconds per token of plain decoding over the arm's, prompts not read in them. The bar is the 95 %
interval, by bootstrap over prompts, paired; there is none for one prompt.
{% endcall %}
{% call plot(own, "gaps", "Inter-token latency") %}
What a reader of the stream waits for: dot median, bar 95 %, diamond 99 %. Tokens
of one round come together, so a longer wait may bring
more of them.
{% endcall %}
{% call plot(own, "verify", "What a verification costs") %}
Median of a target forward over so many tokens, of prompts decoded alone.
{% endcall %}
{% call plot(own, "lengths", "Accepted length") %}
Share of rounds that drafted, by how many drafted tokens the target accepted.
{% endcall %}
</div>
{% if has_totals[loop.index0] %}
<details class="card"><summary>Each domain by itself</summary>
{{ cells_table(each_domain[loop.index0], true) }}
</details>
{% endif %}
</section>
{% endfor %}

<section>
<h2>Memory</h2>
<p>Weights and caches by their sizes, copies of weights in a faster layout apart. The peak is the
 process's (the card's on CUDA) while the arm ran; all drafters of the run are loaded in it.</p>
<div class="card scroll" tabindex="0">
<table class="sortable">
{{ head([("arm", ""), ("condition", ""), ("weights", "MB"), ("copies", "MB"), ("caches", "MB"),
   ("peak", "MB")]) }}
<tbody>
{% for cell in memory %}
<tr><th scope="row">{{ cell.setting | arm_words }}</th><td>{{ cell.setting.condition }}</td>
{{ num(cell.memory.weights, megabytes(cell.memory.weights)) }}
{{ num(cell.memory.packed, megabytes(cell.memory.packed)) }}
{{ num(cell.cache_bytes, megabytes(cell.cache_bytes)) }}
{{ num(cell.peak_bytes, megabytes(cell.peak_bytes)) }}</tr>
{% endfor %}
</tbody></table></div>
</section>

{% if r.verify %}
<section>
<h2>Verify latency</h2>
<p>By the tokens in the target's forward and by the context before it.</p>
<div class="card scroll" tabindex="0">
<table class="sortable">
{{ head([("condition", ""), ("tokens", "γ + 1"), ("context", "tokens"), ("ms", "median"),
   ("forwards", "")]) }}
<tbody>
{% for cost in r.verify %}
<tr><th scope="row">{{ cost.condition }}</th>{{ num(cost.tokens, cost.tokens) }}
{{ num(cost.context_low, "%d–%d" | format(cost.context_low, cost.context_high - 1)) }}
{{ num(cost.ms, cost.ms | figures) }}{{ num(cost.count, cost.count) }}</tr>
{% endfor %}
</tbody></table></div>
</section>
{% endif %}

<section>
<h2>Models and machine</h2>
<dl class="card facts">
{{ fact("Target", r.target.name | clean) }}
{{ fact("Size of the target", "%s parameters, %d layers, %s tokens" | format(
   r.target.parameters | large, r.target.layers, "{:,}".format(r.target.vocabulary))) }}
{{ fact("Number format", r.settings.dtype) }}
{{ fact("Seed and repeats", "%s, %s" | format(r.settings.seed, r.settings.repeats)) }}
{{ fact("Processor", r.machine.cpu | clean) }}
{{ fact("Cores and threads", "%d cores, %d threads" | format(r.machine.cores, r.machine.threads)) }}
{{ fact("Memory", "%.0f GB" | format(r.machine.memory_gb)) }}
{{ fact("Device", r.machine.device | clean) }}
{{ fact("System", r.machine.platform | clean) }}
{{ fact("Versions", "Python %s, torch %s, transformers %s, foredraft %s" | format(
   r.versions.python | clean, r.versions.torch | clean, r.versions.transformers | clean,
   r.versions.foredraft | clean)) }}
{% if r.commit %}{{ fact("Commit", r.commit | clean(40)) }}{% endif %}
{% for about in abouts %}{{ fact(about[0], about[1] | clean) }}{% endfor %}
</dl>
<div class="card"><pre>{{ r.command | clean }}</pre></div>
</section>

<section>
<h2>Words</h2>
<dl class="card words">
<dt>speedup</dt><dd>Seconds per token of plain decoding over the arm's, same prompts, in this run. It
leaves out the reading of prompts; “whole calls” has it in.</dd>
<dt>α</dt><dd>Accepted / tested tokens: the chance that one tested token is accepted.</dd>
<dt>rate</dt><dd>Accepted / drafted. Lower than α: tokens after a rejection are never tested.</dd>
<dt>τ</dt><dd>Tokens that a target forward emits for a request; plain decoding gives 1.</dd>
<dt>TTFT</dt><dd>From the call to a request's first token, the reading of its prompt included.</dd>
<dt>ITL</dt><dd>Between two deliveries to a reader of the stream.</dd>
<dt>TPOT</dt><dd>Seconds of decoding per output token of a request.</dd>
<dt>outputs</dt><dd>Greedy: outputs with plain decoding's tokens; a tie differs where two logits lie
within rounding of each other. Sampled: the target reads each output again, and the ranks of its tokens
in the target's law must be uniform; a law that is right is called broken once in {{ alarms }} arms at
most.</dd>
</dl>
</section>
<footer>The same figures as numbers: <code>bench.json</code> and <code>bench.parquet</code>; every
 decoded block: <code>cells.jsonl</code>.</footer>
</main>
<script>{{ script }}</script>
</body>
</html>
"""
