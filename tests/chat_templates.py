"""Chat templates in the manner of well-known models, over bytes; written anew, as short as they can be."""

from __future__ import annotations

from typing import Any

from tokenizers import processors

from toys import byte_tokenizer

_EACH = "{%- for m in messages -%}"
TEMPLATES: dict[str, str] = {
    "chatml": (
        _EACH + "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
    ),
    "llama3": (
        "{{- bos_token -}}" + _EACH + "{{ '<|start|>' + m.role + '<|end_header|>\n\n' + "
        "m.content | trim + '<|eot|>' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|start|>assistant<|end_header|>\n\n' }}{%- endif -%}"
    ),
    "mistral": (
        "{{- bos_token -}}" + _EACH + "{%- if m.role == 'user' -%}"
        "{{ '[INST] ' + m.content + ' [/INST]' }}{%- elif m.role == 'assistant' -%}"
        "{{ ' ' + m.content + eos_token }}{%- else -%}{{ raise_exception('no such role') }}"
        "{%- endif -%}{%- endfor -%}"
    ),
    "gemma": (
        "{{- bos_token -}}"
        + _EACH
        + "{%- set role = 'model' if m.role == 'assistant' else m.role -%}"
        "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
    ),
    # Writes the end of text after the whole conversation, unless more is asked for.
    "phi3": (
        _EACH + "{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- else -%}{{ eos_token }}"
        "{%- endif -%}"
    ),
    # Earlier turns lose what was thought.
    "qwen3": (
        _EACH + "{%- set c = m.content -%}"
        "{%- if m.role == 'assistant' and not loop.last -%}"
        "{%- set c = c.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}"
        "{{ '<|im_start|>' + m.role + '\n' + c + '<|im_end|>\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
    ),
    # The last turn ends with another token than those before it.
    "harmony": (
        _EACH + "{{ '<|start|>' + m.role }}{%- if m.role == 'assistant' -%}"
        "{{ '<|channel|>final' }}{%- endif -%}{{ '<|message|>' + m.content }}"
        "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}"
    ),
    # Asks for thinking, and drops it from what is rendered.
    "deepseek-r1": (
        "{{- bos_token -}}" + _EACH + "{%- if m.role == 'user' -%}{{ '<|user|>' + m.content }}"
        "{%- else -%}{{ '<|assistant|>' + m.content.split('</think>')[-1] + eos_token }}"
        "{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|assistant|><think>\n' }}{%- endif -%}"
    ),
    "alpaca": (
        _EACH + "{{ '### ' + m.role + ':\n' + m.content + '\n\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '### assistant:\n' }}{%- endif -%}"
    ),
}
_SPECIAL = [
    "<bos>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end_header|>", "<|eot|>",
    "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|channel|>", "<|message|>", "<|return|>",
    "<|user|>", "<|assistant|>", "<|system|>",
]  # fmt: skip


def chat_tokenizer(template: str | None) -> Any:
    """Return a tokenizer over bytes that adds a BOS to raw text, pads with its EOS, and has a template.

    Args:
        template: a name of TEMPLATES; None: none.
    """
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<bos>", "additional_special_tokens": _SPECIAL[1:]})
    tokenizer.pad_token = tokenizer.eos_token
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", bos)]
    )
    tokenizer.chat_template = None if template is None else TEMPLATES[template]
    return tokenizer
