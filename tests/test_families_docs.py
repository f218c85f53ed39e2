"""docs/models.md lists what tests/families.py builds, no more and no less."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_families_refused import REFUSED

from families import FAMILIES, WINDOW, Family, build
from foredraft.spec import CachedModel, rope_switch

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
HEAD = ["| family | cache | KV heads | attention | transformers |", "|---|---|---|---|---|"]


def row(family: Family) -> str:
    ways = ", ".join(family.attention)
    model = family.config.removesuffix("Config")
    return f"| {family.title} | {family.cache} | {family.heads} | {ways} | {model} |"


def table() -> list[str]:
    # One row a title: Llama is in the table of tests three times, for its kinds of heads.
    return (
        HEAD
        + [*{family.title: row(family) for family in reversed(FAMILIES.values())}.values()][::-1]
    )


def test_the_table_is_that_of_the_tests() -> None:
    page = PAGE.read_text()
    written = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 6]
    assert written == [HEAD[0], *table()[2:]]


def test_every_refusal_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [name for name in REFUSED if name.replace(" with ALiBi", "") not in page] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_the_table_says_what_the_models_are(name: str) -> None:
    family = FAMILIES[name]
    config = build(name, attention=family.attention[0]).config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = {"sliding_attention", "chunked_attention"}
    if name == "gpt-neo":
        assert set(config.attention_layers) == {"global", "local"}
    elif name in ("mistral-sliding", "phi3-sliding", "starcoder2"):
        assert family.cache == "sliding"
        assert config.sliding_window == WINDOW
    else:
        wanted = {"full": {"full_attention"}}.get(family.cache, kinds)
        assert kinds == wanted
        assert (len(kinds) == 2 and bool(kinds & windowed)) == (family.cache == "mixed")
    heads = getattr(config, "num_key_value_heads", None)
    if family.heads == "GQA":
        assert heads in range(2, config.num_attention_heads)
    if family.heads == "MQA":
        assert config.multi_query if name in ("falcon", "gpt-bigcode") else heads == 1
    assert rope_switch(CachedModel(build(name, attention=family.attention[0])).model) is None
