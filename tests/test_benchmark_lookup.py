"""The lookup benchmark on a tiny model: its arms say the same, and both sides' lookups draft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lookup import PROMPTS, LookupBenchmark, copied_share, print_result, run
from toys import byte_tokenizer, tiny_llama


def test_all_arms_say_the_same_and_are_compared(tmp_path: Path) -> None:
    model = tiny_llama(context=1024)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    config = LookupBenchmark(
        target=str(tmp_path), gammas=(3,), min_ngram=1, max_tokens=24, repeats=1, threads=1
    )
    result = run(config)
    figures = {arm.name: arm for arm in result.arms}
    assert list(figures) == ["generate", "plain", "lookup 3", "ours 3", "ours adaptive"]
    for arm in figures.values():
        assert (arm.equal_outputs, arm.outputs) == (len(PROMPTS), len(PROMPTS))
    assert figures["plain"].block_efficiency == 1.0
    assert figures["ours 3"].rounds < figures["plain"].rounds
    assert {ratio.over for ratio in figures["ours 3"].ratios} == {"generate", "plain", "lookup 3"}
    assert figures["ours adaptive"].rounds < figures["plain"].rounds
    assert len(result.copied) == len(PROMPTS)
    assert list(result.microseconds) == [1_000, 8_000, 32_000]
    print_result(result, Console(quiet=True))
    with pytest.raises(ValueError, match=r"least_copied: no output is copied to 100%, at most"):
        run(replace(config, least_copied=1.0, max_tokens=4))


def test_copied_is_what_stands_in_the_prompt_in_runs() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    assert copied_share(prompt, [2, 3, 4, 5, 9, 5, 6, 7]) == 0.5
    assert copied_share(prompt, prompt) == 1.0
    assert copied_share(prompt, [1, 2, 3]) == 0.0
