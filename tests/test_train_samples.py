"""Answers as HTML: nothing of the text is lost or run as code; colours say how each token came."""

import re
from html import unescape

from foredraft.spec import DecodeStats
from foredraft.train.in_loop import Fate, LoopAnswer
from foredraft.train.samples import answer_html, samples_page
from toys import byte_tokenizer

FATES: list[Fate] = ["accepted", "corrected", "free"]


def answer(text: str) -> LoopAnswer:
    tokens = byte_tokenizer()(text)["input_ids"]
    fates = [FATES[index % 3] for index in range(len(tokens))]
    prompt = byte_tokenizer()("<b>why?")["input_ids"]
    return LoopAnswer(0, 0.5, prompt, tokens, fates, [], DecodeStats(rounds=4, accepted=6))


def spans(html: str) -> list[tuple[str, str]]:
    """Return (colour, text) of each span."""
    found = re.findall(
        r'background:(#\w+);border-radius:3px;color:#111"[^>]*>(.*?)</span>', html, re.S
    )
    return [(colour, unescape(text)) for colour, text in found]


def test_the_text_is_all_there_and_each_fate_has_a_colour() -> None:
    text = "a <script>alert('x')</script> & 日本 é\n\n  end"
    html = answer_html(answer(text), byte_tokenizer())
    assert "<script>" not in html
    found = spans(html)
    assert "".join(piece for _, piece in found) == text
    colours = [colour for colour, _ in found]
    assert colours[:3] == colours[3:6]
    assert len(set(colours)) == 3


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    whole = answer("日")
    cut = LoopAnswer(0, 0.0, [1], whole.tokens[:2], whole.fates[:2], [], DecodeStats())
    assert [piece for _, piece in spans(answer_html(cut, byte_tokenizer()))] == ["", "\ufffd"]


def test_a_page_has_each_answer_with_its_prompt_and_tau() -> None:
    page = samples_page([answer("one"), answer("two")], byte_tokenizer())
    assert page.count("&lt;b&gt;why?") == 2
    assert page.count("temperature 0.5, τ 2.50") == 2  # 4 rounds, 6 accepted
