"""Which tokens are supervised, and which rows a step takes."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.train.batches import (
    make_examples,
    micro_batches,
    prompt_groups,
    rows_of_step,
    share,
)
from foredraft.train.heads import hidden_states
from foredraft.train.packing import collate
from toy_corpus import EOS, corpus_row, random_rows
from toys import tiny_gpt2, tiny_llama

CPU = torch.device("cpu")


def predicted_tokens(rows: list[Any], max_length: int = 100) -> list[list[int]]:
    """Return, for each example, the tokens that its supervised positions predict."""
    found = []
    for example in make_examples(rows, max_length).examples:
        batch = collate([example], CPU)
        found.append(example.tokens[batch.positions + 1].tolist())
        # The position before each of them is fed, and nothing after the last.
        assert batch.input_ids.shape[1] == len(example.tokens) - 1 == int(batch.positions[-1]) + 1
    return found


def test_the_response_is_supervised_from_its_first_token_to_its_end_token_and_nothing_else() -> (
    None
):
    """B80: also where the pad token is EOS, and EOS stands in prompt and response alike."""
    rows = [
        corpus_row("a", [EOS, 5, 6], [7, EOS]),
        corpus_row("b", [1], [EOS]),
        corpus_row("c", [EOS], [EOS, EOS, 3]),
    ]
    assert predicted_tokens(rows) == [[7, EOS], [EOS], [EOS, EOS, 3]]


def test_rows_without_a_supervised_token_are_skipped_and_long_ones_cut_from_the_end() -> None:
    """B55, B85: prompts that fill max_length, empty responses; both are counted."""
    rows = [
        corpus_row("full", [1, 2, 3, 4], [5]),
        corpus_row("overfull", [1, 2, 3, 4, 5, 6], [7]),
        corpus_row("empty", [1, 2], []),
        corpus_row("cut", [1, 2], [3, 4, 5, 6]),
        corpus_row("fits", [1, 2], [3, 4]),
        corpus_row("alone", [], [8, 9]),  # its first token has no position before it
    ]
    assert predicted_tokens(rows, max_length=4) == [[3, 4], [3, 4], [9]]
    made = make_examples(rows, 4)
    assert (made.skipped_rows, made.cut_rows, made.supervised_tokens) == (3, 3, 5)


@pytest.mark.parametrize("model", [tiny_llama(), tiny_gpt2()], ids=["llama", "gpt2"])
def test_padding_and_neighbours_change_no_hidden_state(model: Any) -> None:
    examples = make_examples(random_rows(6), 100).examples
    batch = collate(examples, CPU)
    assert len({len(example.tokens) for example in examples}) > 1
    together = hidden_states(model, batch.input_ids).flatten(0, 1)[batch.positions]
    alone = torch.cat(
        [
            hidden_states(model, example.input_ids[None])[0, -example.supervised :]
            for example in examples
        ]
    )
    assert (together - alone).abs().max() < 1e-5


def test_micro_batches_hold_each_example_once_at_most_so_many_at_a_time() -> None:
    examples = make_examples(random_rows(7), 100).examples
    parts = list(micro_batches(examples, 3))
    assert [len(part) for part in parts] == [3, 3, 1]
    assert Counter(id(example) for part in parts for example in part) == Counter(map(id, examples))
    assert [len(part) for part in micro_batches(examples, None)] == [7]
    assert micro_batches([], None) == []


def answered(*answers: int) -> list[Any]:
    """Return examples in which prompt i is answered so many times, the answers of a prompt apart."""
    rows = [
        corpus_row(f"{prompt}-{answer}", [9, prompt], [*range(1, 2 + prompt + answer)])
        for answer in range(max(answers))
        for prompt, count in enumerate(answers)
        if answer < count
    ]
    return make_examples(rows, 100).examples


def prompts_of(examples: list[Any]) -> list[int]:
    return [int(example.tokens[1]) for example in examples]


def test_answers_of_a_prompt_are_a_group_and_a_prompt_of_one_token_is_none() -> None:
    assert prompt_groups(answered(2, 1, 3)) == ((0, 3), (1,), (2, 4, 5))
    rows = [corpus_row("a", [9], [1, 2]), corpus_row("b", [9], [1, 3]), corpus_row("c", [], [9, 1])]
    assert prompt_groups(make_examples(rows, 100).examples) == ((0,), (1,), (2,))


def test_micro_batches_keep_the_answers_of_a_prompt_together() -> None:
    examples = answered(3, 1, 3, 2)
    parts = micro_batches(examples, 4)
    assert Counter(id(e) for part in parts for e in part) == Counter(map(id, examples))
    assert sorted(map(sorted, map(prompts_of, parts))) == [[0, 0, 0, 1], [2, 2, 2], [3, 3]]
    # A group that is too large is cut; what is left of it has company.
    assert [len(part) for part in micro_batches(answered(3, 3), 2)] == [2, 2, 2]


def test_processes_have_whole_prompts_and_as_many_rows_as_each_other() -> None:
    examples = answered(2, 2, 2, 2)
    parts = [share(examples, index, 2) for index in range(2)]
    assert [prompts_of(part) for part in parts] == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert [len(share(examples[:5], index, 3)) for index in range(3)] == [1, 2, 2]


def test_a_step_takes_the_answers_of_a_prompt_together() -> None:
    """Each row once an epoch, in an order of the epoch's own, also within a group."""
    groups = prompt_groups(answered(3, 1, 3, 2))
    group_of = {row: index for index, group in enumerate(groups) for row in group}
    sequence = [row for step in range(9) for row in rows_of_step(0, step, groups, 4)]
    epochs = [sequence[start : start + 9] for start in range(0, 36, 9)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(9))
        changes = [first != second for first, second in pairwise(group_of[row] for row in epoch)]
        assert sum(changes) == 3  # four groups, one after the other
    assert len({tuple(row for row in epoch if group_of[row] == 0) for epoch in epochs}) > 1
    assert len({tuple(dict.fromkeys(group_of[row] for row in epoch)) for epoch in epochs}) > 1


def test_without_shared_prompts_the_order_is_a_permutation_of_the_rows() -> None:
    """As it was before there were groups: the same seed gives the same run."""
    expected = np.random.default_rng([3, 0]).permutation(10).tolist()
    assert rows_of_step(3, 0, singles(10), 10) == expected


def singles(rows: int) -> tuple[tuple[int, ...], ...]:
    return tuple((row,) for row in range(rows))


def test_every_epoch_visits_every_row_once_in_an_order_of_its_own() -> None:
    """B74: a pure function of the step, so that a resumed run continues the same sequence."""
    rows, batch_rows = 10, 4  # epochs end inside batches
    sequence = [
        row for step in range(10) for row in rows_of_step(3, step, singles(rows), batch_rows)
    ]
    epochs = [sequence[start : start + rows] for start in range(0, 40, rows)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert all(first != second for first, second in pairwise(epochs))
    assert sequence[20:24] == rows_of_step(3, 5, singles(rows), batch_rows)
    assert rows_of_step(3, 0, singles(rows), batch_rows) != rows_of_step(
        4, 0, singles(rows), batch_rows
    )
