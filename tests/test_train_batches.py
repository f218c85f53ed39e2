"""Which tokens are supervised, and which rows a step takes."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from foredraft.train.batches import collate, make_examples, micro_batches, rows_of_step
from foredraft.train.heads import hidden_states
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


def test_every_epoch_visits_every_row_once_in_an_order_of_its_own() -> None:
    """B74: a pure function of the step, so that a resumed run continues the same sequence."""
    rows, batch_rows = 10, 4  # epochs end inside batches
    sequence = [row for step in range(10) for row in rows_of_step(3, step, rows, batch_rows)]
    epochs = [sequence[start : start + rows] for start in range(0, 40, rows)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert all(first != second for first, second in pairwise(epochs))
    assert sequence[20:24] == rows_of_step(3, 5, rows, batch_rows)
    assert rows_of_step(3, 0, rows, batch_rows) != rows_of_step(4, 0, rows, batch_rows)
