"""What a lookup tells a policy before a round, against a search by force, and its cost in long contexts."""

from __future__ import annotations

import functools
import random

import pytest
from test_spec_length import calls_of

from foredraft.spec import Look, Match, PromptLookupDrafter
from foredraft.spec.looks import RUN_MAX, Looker
from foredraft.spec.ngrams import NgramIndex


def run_by_force(tokens: list[int], follows: int) -> int:
    run = 0
    while run < follows and tokens[follows - run - 1] == tokens[-run - 1]:
        run += 1
    return min(run, RUN_MAX)


@pytest.mark.parametrize("alphabet", [1, 2, 3, 9])
def test_a_look_tells_the_run_and_what_came_of_the_look_before(alphabet: int) -> None:
    choice = random.Random(alphabet)
    index = NgramIndex(4, 1)
    looker = Looker(index)
    candidates: list[int] = []  # of the look before
    tokens: list[int] = []
    for _ in range(60):
        new = [choice.randrange(alphabet) for _ in range(choice.randint(1, 6))]
        tokens += new
        index.extend(new)
        look = looker.look()
        hits = [candidate == token for candidate, token in zip(candidates, new, strict=False)]
        expected = hits[: hits.index(False) + 1] if False in hits else hits
        assert look.came == tuple(expected)
        assert look.match == index.match
        candidates = []
        if look.match is not None:
            assert look.run == run_by_force(tokens, look.match.follows) >= look.match.length
            for _ in range(8):
                candidates.append(index.following(candidates))
        else:
            assert look.run == 0


def test_tokens_taken_back_are_no_judgement() -> None:
    drafter = PromptLookupDrafter(max_ngram=2, min_ngram=1)
    assert drafter.look([1, 2, 1]) == Look(Match(1, 1, 1), run=1)
    drafter.roll_back(2)
    assert drafter.look([1, 2, 2, 1]).came == ()
    assert drafter.look([1, 2, 2, 1, 2]).came == (True,)
    drafter.reset(9)
    assert drafter.look([1, 1]).came == ()


def test_how_many_occurrences_agree_is_counted_back_from_the_latest() -> None:
    index = NgramIndex(1, 1)
    index.extend([1])
    for after, agreed in ((2, 0), (3, 0), (3, 1), (3, 2), (2, 0)):
        index.extend([after, 1])
        assert index.match is not None
        assert (index.match.agreed, index.tokens[index.match.follows]) == (agreed, after)


def test_a_look_costs_the_same_in_1k_and_in_32k_tokens() -> None:
    work: dict[int, list[int]] = {}
    for length in (1_000, 32_000):
        choice = random.Random(0)
        drafter = PromptLookupDrafter()
        tokens = [choice.randrange(9) for _ in range(length)] + [7, 1] * 200
        drafter.reset(length + 500)
        drafter.look(tokens)  # the index reads the prompt
        work[length] = []
        for _ in range(6):
            tokens += [7, 1] * 4
            work[length].append(calls_of(functools.partial(drafter.look, tokens)))
        assert drafter.look(tokens).run == RUN_MAX
    assert work[32_000] == work[1_000]
