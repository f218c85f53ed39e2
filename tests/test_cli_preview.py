"""The preview of what is trained on."""

import json
from pathlib import Path

import pytest
from chat_templates import chat_tokenizer
from rich.console import Console

from foredraft.cli.config import PreviewCommand
from foredraft.cli.preview import CONTEXT, SPECIAL, SUPERVISED, coloured, preview
from foredraft.data.conversations import load_conversations
from foredraft.train.reading import conversation_examples
from toy_corpus import corpus_row, write_corpus_folder
from toys import byte_tokenizer, tiny_llama


def shown(config: PreviewCommand, tokenizer: object) -> str:
    console = Console(record=True, width=120, force_terminal=True)
    preview(config, tokenizer, console)
    return console.export_text()


def conversations(path: Path, count: int = 20) -> str:
    rows = [{"prompt": f"日本{n}", "response": f"はい{n}"} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_colours_say_what_is_supervised_and_special_tokens_are_seen(tmp_path: Path) -> None:
    tokenizer = chat_tokenizer("chatml")
    source = conversations(tmp_path / "talk.jsonl", 1)
    sets = conversation_examples(tokenizer, load_conversations(source), 100)
    (example,) = [one for part in sets.values() for one in part.examples]
    text = coloured(example, tokenizer)
    assert [(text.plain[span.start : span.end], span.style) for span in text.spans] == [
        ("<|im_start|>", CONTEXT + SPECIAL),
        ("user\n日本0", CONTEXT),
        ("<|im_end|>", CONTEXT + SPECIAL),
        ("\n", CONTEXT),
        ("<|im_start|>", CONTEXT + SPECIAL),
        ("assistant\n", CONTEXT),
        ("はい0", SUPERVISED),
        ("<|im_end|>", SUPERVISED + SPECIAL),
    ]


@pytest.mark.parametrize("max_length", [100, 20])
def test_counts_say_what_is_dropped(tmp_path: Path, max_length: int) -> None:
    source = conversations(tmp_path / "talk.jsonl")
    config = PreviewCommand(data=source, target="toy", rows=2, max_length=max_length)
    text = shown(config, chat_tokenizer("chatml"))
    train = next(line for line in text.splitlines() if line.startswith("train: "))
    kept = int(train.split()[1])
    dropped = int(train.split(" dropped")[0].split()[-1])
    assert kept + dropped > 8
    assert (dropped == 0) == (max_length == 100) == (kept > 0)
    assert text.count("tokens supervised\n") <= 2
    assert ("はい" in text) == (max_length == 100)


def test_a_corpus_is_shown_as_it_is_trained_on(tmp_path: Path) -> None:
    answer = [*b"abc", 257]
    rows = [corpus_row(f"{i}", [*b"q"], answer, split=s) for i, s in enumerate(("train", "dev"))]
    folder = write_corpus_folder(tmp_path / "corpus", tiny_llama(), rows)
    text = shown(PreviewCommand(data=folder, target="toy"), byte_tokenizer())
    assert "train: 1 examples, 4 of 5 tokens supervised (80 %)" in text
    assert "4 of 5 tokens supervised" in text
    with pytest.raises(ValueError, match="written with another tokenizer"):
        shown(PreviewCommand(data=folder, target="toy"), chat_tokenizer("chatml"))


@pytest.mark.parametrize(("name", "value"), [("rows", -1), ("max_length", 1)])
def test_a_bad_field_is_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        PreviewCommand(data="x", target="y", **{name: value})
