"""The lookup benchmark on a tiny model: its arms say the same, and both sides' lookups draft."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from decode_figures import print_table
from lookup import PROMPTS, LookupBenchmark, run
from toys import byte_tokenizer, tiny_llama


def test_all_arms_say_the_same_and_are_compared(tmp_path: Path) -> None:
    model = tiny_llama(context=1024)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    config = LookupBenchmark(
        target=str(tmp_path), gammas=(3,), min_ngram=1, max_tokens=24, repeats=1, threads=1
    )
    figures = {arm.name: arm for arm in run(config)}
    assert list(figures) == ["generate", "plain", "lookup 3", "ours 3"]
    for arm in figures.values():
        assert (arm.equal_outputs, arm.outputs) == (len(PROMPTS), 6)
    assert figures["plain"].block_efficiency == 1.0
    assert figures["ours 3"].rounds < figures["plain"].rounds
    assert {ratio.over for ratio in figures["ours 3"].ratios} == {"generate", "plain", "lookup 3"}
    print_table(list(figures.values()), Console(quiet=True))
