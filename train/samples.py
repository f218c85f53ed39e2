"""Answers of the decode loop to look at: each token coloured by how it came, as HTML and in W&B."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from accelerate import Accelerator

from .in_loop import Fate, LoopAnswer

TABLE = "eval/samples"
COLUMNS = ("prompt", "temperature", "answer", "tokens per forward")
_SAID: dict[Fate, tuple[str, str]] = {  # colour and meaning
    "accepted": ("#bfe8c9", "drafted and accepted"),
    "corrected": ("#f6c3bd", "the draft was rejected here; the target's"),
    "free": ("#dcdcf2", "the target's own, after a block that was accepted whole"),
}


def answer_html(answer: LoopAnswer, tokenizer: Any) -> str:
    """Return an answer as a piece of HTML, a coloured span a token."""
    spans = []
    for piece, fate in zip(_pieces(tokenizer, answer.tokens), answer.fates, strict=True):
        colour, meaning = _SAID[fate]
        style = f"background:{colour};border-radius:3px;color:#111"
        spans.append(f'<span style="{style}" title="{meaning}">{escape(piece)}</span>')
    return f'<div style="white-space:pre-wrap;line-height:1.7">{"".join(spans)}</div>'


def samples_page(answers: Sequence[LoopAnswer], tokenizer: Any) -> str:
    """Return answers as a page of their own."""
    legend = " ".join(
        f'<span style="background:{colour};border-radius:3px">{escape(meaning)}</span>'
        for colour, meaning in _SAID.values()
    )
    parts = [
        f"<h2>{escape(_prompt(answer, tokenizer))}</h2>\n<p>temperature {answer.temperature:g}, "
        f"τ {_tau(answer):.2f}</p>\n{answer_html(answer, tokenizer)}"
        for answer in answers
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>foredraft: held-out '
        "answers</title>\n<style>body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem "
        "auto;padding:0 1rem;background:#fff;color:#111}h2{font-size:1rem;white-space:pre-wrap}</style>"
        f"</head><body>\n<p>{legend}</p>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def log_samples(
    accelerator: Accelerator, step: int, answers: Sequence[LoopAnswer], tokenizer: Any
) -> None:
    """Put a table of answers into W&B, where it is the tracker; others get none."""
    for tracker in accelerator.trackers:
        if tracker.name == "wandb" and accelerator.is_main_process:
            import wandb  # slow to import, so only where it is used

            rows = [
                [
                    _prompt(answer, tokenizer),
                    answer.temperature,
                    wandb.Html(answer_html(answer, tokenizer), data_is_not_path=True),
                    _tau(answer),
                ]
                for answer in answers
            ]
            tracker.log({TABLE: wandb.Table(columns=list(COLUMNS), data=rows)}, step=step)


def _prompt(answer: LoopAnswer, tokenizer: Any) -> str:
    return str(tokenizer.decode(answer.prompt))


def _tau(answer: LoopAnswer) -> float:
    return answer.stats.block_efficiency or 1.0


def _pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Return each token's own text; a character of several tokens stands at the last of them."""
    pieces, shown = [], ""
    for end in range(1, len(tokens) + 1):
        whole = tokenizer.decode(tokens[:end])
        half = whole.endswith("\ufffd") and end < len(tokens)
        pieces.append("" if half else whole[len(shown) :])
        shown = shown if half else whole
    return pieces
