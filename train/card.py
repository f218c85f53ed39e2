"""The model card of an exported draft: only figures that were measured, and how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from ..spec import DraftInfo

ALPHA_HERE = "export/T1/alpha_tf"
ALPHA_WHOLE = "export/T1/alpha_tf_whole_head"
_MEANINGS = {
    "eval/T1/alpha_tf": "α in training",
    "eval/T1/alpha_p10": "its tenth percentile over tokens",
    "eval/T1/top1": "share of tokens with the target's likeliest first",
    "eval/T1/kl": "KL from the target, nats, on what the draft can propose",
    "eval/T1/coverage": "target's mass on what the draft can propose",
    "eval/tau": "τ, tokens per target forward, in the loop on held-out prompts",
    ALPHA_HERE: "α of these weights, as foredraft loads them",
    ALPHA_WHOLE: "α of these weights with the whole head, as other engines load them",
}
GAMMA = 4  # drafted tokens in the examples

_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, draft-model, foredraft]
{base}---

# {name}

A draft for speculative decoding with **{target}**: it proposes tokens, the target accepts or replaces
them, and what is written follows the target's law. {shape}

## Measured

{figures}

## Use

{use}
Check it: `foredraft verify {name} --target {target}`.
"""


_USE = """\
With foredraft:

```python
from foredraft.spec import SamplingParams, SpeculativeDecoder

decoder = SpeculativeDecoder.from_pretrained("{target}", draft="{name}", lookahead={lookahead})
chat = [{{"role": "user", "content": "Name three fruits."}}]
print(decoder.chat([chat], SamplingParams(temperature=0, max_tokens=64))[0].text)
```

With transformers (written with {transformers}):

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{target}")
target = AutoModelForCausalLM.from_pretrained("{target}")
draft = AutoModelForCausalLM.from_pretrained("{name}")
draft.generation_config.num_assistant_tokens = {gamma}
draft.generation_config.num_assistant_tokens_schedule = "constant"
draft.generation_config.assistant_confidence_threshold = 0.0
inputs = tokenizer("Name three fruits.", return_tensors="pt")
output = target.generate(**inputs, assistant_model=draft, do_sample=False, max_new_tokens=64)
print(tokenizer.decode(output[0], skip_special_tokens=True))
```

With vLLM (spelling of its documentation for 0.25.0; not run here):

```sh
vllm serve {target} \\
    --speculative-config '{{"model": "{name}", "num_speculative_tokens": {gamma}, "method": "draft_model"}}'
```

With SGLang (spelling of its 0.5 series, April 2026; not run here):

```sh
python -m sglang.launch_server --model-path {target} \\
    --speculative-algorithm STANDALONE --speculative-draft-model-path {name} \\
    --speculative-num-steps {gamma} --speculative-eagle-topk 1 --speculative-num-draft-tokens {more}
```
"""


def model_card(name: str, info: DraftInfo | None, model: Any, dtype: str) -> str:
    """Return the README.md of an exported draft.

    Args:
        name: how the examples call its folder.
        info: None where the folder does not say what it was distilled from.
        model: the exported draft.
    """
    target = "TARGET" if info is None else info.target
    on_hub = target.count("/") == 1 and not Path(target).exists() and not target.startswith(".")
    return _CARD.format(
        name=name,
        target=target,
        base=f"base_model: {target}\n" if on_hub else "",
        shape=_shape(info, model, dtype),
        figures=_figures({} if info is None else info.metrics),
        use=usage(name, target, gamma=GAMMA),
    )


def usage(name: str, target: str, *, gamma: int, lookahead: str | None = None) -> str:
    """Return in Markdown how foredraft, transformers, vLLM and SGLang take a draft.

    Args:
        name, target: hub ids or folders.
        gamma: tokens that the others draft in a round.
        lookahead: what foredraft's decoder gets instead, as Python; None: `gamma`.
    """
    return _USE.format(
        name=name,
        target=target,
        gamma=gamma,
        more=gamma + 1,
        lookahead=gamma if lookahead is None else lookahead,
        transformers=transformers.__version__,
    )


def _shape(info: DraftInfo | None, model: Any, dtype: str) -> str:
    weights = sum(weight.numel() for weight in model.parameters())
    config = model.config.get_text_config()
    said = f"A `{config.model_type}` of {config.num_hidden_layers} layers and {weights:,} weights in {dtype}."
    if info is None or info.kept_tokens is None:
        return said
    return (
        f"{said}\nThe head is written for all {config.vocab_size:,} tokens and was trained on "
        f"{info.kept_tokens:,}: foredraft cuts it to them; other engines also propose the others, from the\n"
        "rows that training started with, so their α is another one."
    )


def _meaning(name: str) -> str:
    """Return what a metric is; those of the loop are of one temperature, and of a depth or a γ."""
    if name in _MEANINGS:
        return _MEANINGS[name]
    last = name.split("/", 2)[-1]
    if last.startswith("domains/"):
        *domain, metric = last.removeprefix("domains/").split("/")
        return f"of {'/'.join(domain)}: {_MEANINGS.get(f'eval/T1/{metric}', metric)}"
    if last == "alpha_loop":
        return "α in the loop, of the tokens that were tested"
    if last.startswith("accept_pos/"):
        return f"the same of the token {last.removeprefix('accept_pos/')} deep in its block"
    return f"τ with {last.removeprefix('tau@')} tokens drafted" if last.startswith("tau@") else ""


def _figures(metrics: dict[str, float]) -> str:
    if not metrics:
        return "Nothing: the folder it was exported from holds no figures."
    rows = [f"| {_meaning(name)} | `{name}` | {value:.4g} |" for name, value in metrics.items()]
    unmeasured = (
        ""
        if ALPHA_HERE in metrics
        else (
            "\n\nThe exported weights were not measured again (`foredraft export --target` does that)."
        )
    )
    head = (
        "α is Σ min(p, q), the chance that a drafted token is accepted, against the target's whole\n"
        "vocabulary; teacher-forced on held-out text the target wrote, both at temperature 1.\n\n"
        "| what | name | value |\n|---|---|---|\n"
    )
    return head + "\n".join(rows) + unmeasured
