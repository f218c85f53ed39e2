"""Echoes: what the text said before after the same tokens, told to policies before each draw."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from controller_dense_sim import dense

from foredraft.controller.dense_rows import dense_columns
from foredraft.controller.judging import flat_costs, join
from foredraft.controller.replay import replay
from foredraft.data.echoes import NO_ECHO, Echo, EchoIndex, LookReader
from foredraft.spec import (
    BatchDecoder,
    FixedLookahead,
    ModelDrafter,
    Said,
    SamplingParams,
    SpeculativeDecoder,
)
from toys import greedy, noisy_copy, tiny_llama

TEXT = [1, 2, 3, 9, 1, 2, 3, 8, 5, 2, 3]


@pytest.mark.parametrize(
    ("committed", "drafted", "token", "echo"),
    [
        (TEXT, [], 8, Echo(2, 0)),  # 2 3 was last followed by 8
        (TEXT, [], 9, Echo(0, 2)),
        (TEXT[:7], [], 9, Echo(3, 0)),  # 1 2 3 by 9
        (TEXT, [1], 2, Echo(1, 0)),
        ([*TEXT, 1], [2, 3], 8, Echo(3, 0)),  # across what is drafted
        (TEXT, [7], 2, Echo(0, 0)),  # 7 never stood here
        ([], [], 1, Echo(0, 0)),
    ],
)
def test_an_echo_is_what_followed_the_longest_match_the_last_time(
    committed: list[int], drafted: list[int], token: int, echo: Echo
) -> None:
    assert EchoIndex().echo(committed, drafted, token) == echo
    index = EchoIndex()
    for length in range(len(committed)):
        index.echo(
            committed[:length], [4], 4
        )  # a text that grows; what was drafted leaves no trace
    assert index.echo(committed, drafted, token) == echo


class Watching(LookReader, FixedLookahead):
    """Keeps what it was shown before each look."""

    def __init__(self, gamma: int) -> None:
        LookReader.__init__(self)
        FixedLookahead.__init__(self, gamma)
        self.shown: list[tuple[list[int], list[int], int]] = []
        self.echoes: list[Echo] = []

    def read(self, said: Said) -> None:
        super().read(said)
        self.shown.append((list(said.committed), list(said.drafted), 0))

    def begin_request(self, params: SamplingParams) -> None:
        self.begin_text()

    def wants_token(self, depth: int, draft_logits: torch.Tensor) -> bool:
        assert len(self.shown[-1][1]) == depth - 1
        self.echoes.append(self.see(draft_logits)[1])
        return True


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.usefixtures("one_thread")
def test_the_loop_tells_the_tokens_before_each_draw(batch: bool) -> None:
    target = tiny_llama(seed=1)
    drafter = ModelDrafter(noisy_copy(target, scale=0.02), width=260)
    watching = Watching(3)
    prompt = [5, 6, 7, 5, 6]
    if batch:
        watching.for_rows = lambda count: [watching]  # type: ignore[method-assign]
    decoder = SpeculativeDecoder(target, drafter=drafter, lookahead=watching)
    made = BatchDecoder(decoder, rows=1) if batch else decoder
    tokens = made.generate([prompt], greedy(max_tokens=12))[0].token_ids
    whole = [*prompt, *tokens]
    assert watching.shown[0][:2] == (prompt, [])
    for committed, drafted, _ in watching.shown:
        assert committed == whole[: len(committed)]
        assert len(drafted) < 3
    assert any(drafted for _, drafted, _ in watching.shown)
    assert not any(math.isnan(echo.agrees) for echo in watching.echoes)


def test_a_cut_head_is_told_by_its_tokens() -> None:
    reader = LookReader()
    reader.read(Said([4, 200, 4], [], torch.tensor([3, 200])))
    assert reader.see(torch.tensor([0.0, 1.0]))[1] == Echo(1, 0)
    reader.read(Said([4, 200, 4], [], torch.tensor([3, 200])))
    assert reader.see(torch.tensor([1.0, 0.0]))[1] == Echo(0, 1)
    assert all(map(math.isnan, reader.see(torch.tensor([1.0, 0.0]))[1])), "not told: not known"


def test_replay_and_columns_tell_the_same_echoes() -> None:
    prompt = (1, 1, 2, 3, 4, 5, 6)
    text = replace(dense(40, seed=3), prompt=prompt, tokens=np.array([1, 2] * 20))
    watching = Watching(4)
    replay(watching, [text], flat_costs(0.1, 6))
    columns = dense_columns([text])
    at = {
        (place, depth): Echo(*pair)
        for place, depth, *pair in zip(
            *(columns[name] for name in ("round", "depth", "echo_agrees", "echo_differs")),
            strict=True,
        )
    }
    for (committed, drafted, _), echo in zip(watching.shown, watching.echoes, strict=True):
        assert echo == at[len(committed) - 7, len(drafted) + 1]
    assert {echo.agrees > 0 for echo in watching.echoes} == {True, False}


def test_without_a_prompt_echoes_are_not_known() -> None:
    columns = dense_columns([dense(10)])
    assert np.isnan(columns["echo_agrees"]).all()
    watching = Watching(2)
    watching.read = lambda said: pytest.fail("not to be told")  # type: ignore[method-assign]
    watching.shown.append(([], [], 0))
    watching.wants_token = lambda depth, draft_logits: True  # type: ignore[method-assign]
    replay(watching, [dense(10)], flat_costs(0.1, 6))
    assert NO_ECHO.agrees != NO_ECHO.agrees


def test_texts_that_are_joined_have_all_prompts_before_them() -> None:
    one, other = (replace(dense(9, seed=s), prompt=tuple(range(s, s + 7))) for s in (1, 2))
    joined = join([one, other])
    assert joined.prompt == (*one.prompt, *other.prompt)
    assert joined.prompt_length == 14
