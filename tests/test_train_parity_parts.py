"""What the parity gate is made of: tested positions, bounds of chance, transformers' counts, held-out rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.data import Prompt
from foredraft.train import parity
from foredraft.train.assisted import Greedy, with_foredraft, with_transformers
from foredraft.train.batches import make_examples
from foredraft.train.held_out import FILE, load_held_out, save_held_out
from foredraft.train.parity_figures import surprise
from foredraft.train.traced import Traced, decode_traced
from toy_corpus import random_rows
from toys import byte_tokenizer, make_decoder, noisy_copy, tiny_llama

PROMPTS = [Prompt(f"p{i}", "toy", text) for i, text in enumerate(["one", "two!", "a b c", "Why?"])]


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama()


def test_tested_positions_are_those_of_the_answer(target: Any) -> None:
    """All tokens of an answer but bonus tokens were tested, once each, in order."""
    decoder = make_decoder(target, None)
    for one in decode_traced(decoder, PROMPTS, gamma=3, max_tokens=20, seed=0):
        places = [one.place(row) for row in one.tested]
        assert places == sorted(set(places))
        assert places[0] == 0
        bonus = {one.place(row) + 1 for row in one.tested if row.depth == 3 and row.accepted}
        inside = set(range(one.example.supervised - 1))  # the last round may be cut short
        assert inside - set(places) <= bonus


def test_a_verifier_that_accepts_too_often_is_found(target: Any) -> None:
    draft = noisy_copy(target, scale=0.3)
    decoder = make_decoder(target, None, draft=draft)
    traced = decode_traced(decoder, PROMPTS, gamma=3, max_tokens=20, seed=0)
    accepted, expected, chance = surprise(traced, false_alarms=1e-4)
    assert abs(accepted - expected) < chance
    always = [
        Traced(one.example, [replace(row, accepted=True) for row in one.tested]) for one in traced
    ]
    accepted, expected, chance = surprise(always, false_alarms=1e-4)
    assert accepted - expected > chance


def test_the_bound_of_chance_is_one_and_not_far_from_the_normal_one(target: Any) -> None:
    """Against the exact law of a sum of 400 draws of probability 0.7, and of 3 of probability 0.99."""
    for count, alpha in ((400, 0.7), (3, 0.99)):
        row = decode_traced(make_decoder(target, None), PROMPTS[:1], gamma=1, max_tokens=3, seed=0)
        rows = [replace(row[0].tested[0], acceptance_prob=alpha)] * count
        _, expected, bound = surprise([Traced(row[0].example, rows)], false_alarms=1e-3)
        law = [
            math.comb(count, hits) * alpha**hits * (1 - alpha) ** (count - hits)
            for hits in range(count + 1)
        ]
        outside = sum(p for hits, p in enumerate(law) if abs(hits - expected) > bound)
        assert outside < 1e-3
        assert bound < 5.5 * math.sqrt(count * alpha * (1 - alpha)) + 6


def test_transformers_accepts_what_our_loop_accepts(target: Any) -> None:
    """Of prompts with any token in them: "!" is id 0."""
    draft = noisy_copy(target, scale=0.1)
    asked: Any = (target, byte_tokenizer(), draft, PROMPTS[1:], 3, 12)
    ours, theirs = with_foredraft(*asked), with_transformers(*asked)
    assert ours == theirs  # without an end token in it, drafted tokens too
    assert 0 < sum(one.accepted for one in ours) < sum(one.drafted for one in ours)
    other = with_transformers(target, byte_tokenizer(), noisy_copy(target, scale=0.3), *asked[3:])
    assert [one.tokens for one in other] == [one.tokens for one in ours]
    assert not parity.check_transformers(ours, other, target).passed


def test_other_greedy_outputs_fail_unless_two_logits_tie(target: Any) -> None:
    one = Greedy("p", [1, 2], [3, 4, 5], 2, 3)
    with torch.no_grad():
        best, second = target(torch.tensor([[1, 2]])).logits[0, -1].topk(2).indices.tolist()
    ours, theirs = replace(one, tokens=[best]), replace(one, tokens=[second])
    check = parity.check_transformers([one, ours], [one, theirs], target)
    assert check.passed is False
    assert "outputs differ on p" in check.said
    assert parity.check_transformers([one], [one], target).passed


def test_held_out_rows_are_read_back_and_broken_ones_named(
    tmp_path: Path,
) -> None:
    held_out = make_examples(random_rows(3), 100).examples
    save_held_out(tmp_path, held_out)
    for before, after in zip(held_out, load_held_out(tmp_path), strict=True):
        assert torch.equal(before.tokens, after.tokens)
        assert (before.supervised, before.row_id) == (after.supervised, after.row_id)
    (tmp_path / FILE).write_text('{"row_id": "a", "tokens": [1, 2], "supervised": 2}\n')
    with pytest.raises(ValueError, match="line 1: not a held-out row"):
        load_held_out(tmp_path)
