"""Training on conversations: what is supervised, what is dropped, and that rows may be shared."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from chat_templates import chat_tokenizer

from foredraft.data.conversations import Conversation
from foredraft.spec import render_chat
from foredraft.train import DistillConfig, distill
from foredraft.train.batches import Example, prompt_groups
from foredraft.train.divergences import forward_kl
from foredraft.train.draft import Draft
from foredraft.train.heads import LogitHead, hidden_states
from foredraft.train.held_out import load_held_out, save_held_out
from foredraft.train.in_loop import LoopProbe
from foredraft.train.losses import DraftLoss
from foredraft.train.packing import collate, collate_for, supervised_states
from foredraft.train.reading import (
    conversation_examples,
    read_training_data,
    sample_conversations,
)
from foredraft.train.teacher import Teacher
from toys import tiny_llama

CPU = torch.device("cpu")
WIDTH = 280  # of the models: the byte tokenizer with its chat tokens


def talk(*contents: str) -> Conversation:
    """Return a conversation in which user and assistant speak in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return Conversation("here", "toy", messages)


def made(*talks: Conversation, template: str = "chatml", max_length: int = 100) -> Any:
    """Return tokenizer, all examples, and how many were skipped and cut."""
    tokenizer = chat_tokenizer(template)
    sets = conversation_examples(tokenizer, talks, max_length).values()
    examples = [example for part in sets for example in part.examples]
    counts = [sum(p.skipped_rows for p in sets), sum(p.cut_rows for p in sets)]
    return tokenizer, examples, counts


def read_by(example: Example) -> list[int]:
    """Return the tokens that a draft's supervised positions predict, by way of a batch."""
    batch = collate([example], CPU)
    flat = torch.cat([batch.input_ids.flatten(), example.tokens[-1:]])
    return list(map(int, flat[batch.positions + 1]))


def test_b80_a_real_end_is_supervised_and_padding_is_not_though_they_are_one_token() -> None:
    tokenizer, examples, _ = made(talk("a", "b"), talk("c", "long answer"), template="mistral")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    batch = collate(examples, CPU)
    assert [read_by(e)[-1] for e in examples] == [tokenizer.eos_token_id] * 2
    assert len(batch.positions) == sum(e.supervised for e in examples) == len(" b long answer") + 2
    lengths = [len(e.input_ids) for e in examples]
    assert lengths[0] != lengths[1]
    inside = torch.arange(batch.input_ids.shape[1]) < torch.tensor(lengths)[:, None]
    assert inside.flatten()[batch.positions].all()


@pytest.mark.parametrize("template", ["chatml", "llama3", "mistral", "gemma", "phi3", "qwen3"])
def test_b61_b80_first_and_last_token_of_every_turn_are_predicted(template: str) -> None:
    tokenizer, examples, _ = made(talk("q", "first", "r", "second"), template=template)
    text = tokenizer.decode([token for example in examples for token in read_by(example)])
    for word in ("first", "second"):
        assert word + tokenizer.decode(examples[0].tokens[-1:]) in text
    assert "assistant" not in text
    assert "model" not in text
    assert "q" not in text


@pytest.mark.parametrize("beyond", [0, 1])
def test_b85_a_conversation_is_cut_at_max_length_by_whole_tokens(beyond: int) -> None:
    tokenizer, (whole,), _ = made(talk("q", "ab", "r", "cd"))
    length = len(whole.tokens)
    _, (cut,), counts = made(talk("q", "ab", "r", "cd"), max_length=length - beyond)
    assert counts == [0, beyond]
    assert cut.tokens.tolist() == whole.tokens.tolist()[: length - beyond]
    assert tokenizer.decode(read_by(cut)) == (
        "ab<|im_end|>cd<|im_end|>" if not beyond else "ab<|im_end|>cd"
    )


def test_b55_b85_a_conversation_whose_first_question_fills_max_length_is_dropped_and_counted() -> (
    None
):
    _, examples, counts = made(talk("q" * 90, "answer"), talk("q", "answer"), max_length=60)
    assert (len(examples), counts) == (1, [1, 1])
    # Cut in the second question: nothing after the first answer predicts anything.
    tokenizer, (example,), counts = made(talk("q", "ab", "r" * 90, "cd"), max_length=60)
    assert (counts, tokenizer.decode(read_by(example))) == ([0, 1], "ab<|im_end|>")
    assert tokenizer.decode(example.tokens).endswith("ab<|im_end|>")


def test_equal_conversations_are_one_example() -> None:
    assert len(made(talk("a", "b"), talk("a", "b"))[1]) == 1


def test_a_conversation_that_cannot_be_rendered_is_named() -> None:
    with pytest.raises(ValueError, match="here: no message by an assistant comes after"):
        made(Conversation("here", "toy", [{"role": "assistant", "content": "x"}]))


def test_teacher_states_are_those_before_each_predicted_token() -> None:
    target = tiny_llama(vocabulary=WIDTH)
    _, (example,), _ = made(talk("q", "ab", "r", "cd"))
    states = Teacher(target).hidden([example])
    every = hidden_states(target, example.tokens[None])[0]
    where = [at for first, end in example.spans for at in range(first - 1, end - 1)]
    assert len(example.spans) == 2
    assert torch.allclose(states, every[where], atol=1e-5)
    assert example.predicted.tolist() == [int(example.tokens[at + 1]) for at in where]


def test_shared_rows_of_conversations_have_the_loss_and_gradients_of_rows_of_their_own() -> None:
    """Documents of several turns in one row: neither attention nor positions go across them."""
    talks = [talk("q", "ab", "r", "cd"), talk("q", "ab"), talk("x", "y"), talk("q", "b" * 30)]
    _, examples, _ = made(*talks)
    assert len(prompt_groups(examples)) == 2
    model = tiny_llama(vocabulary=WIDTH).double()
    packing = collate_for(model)
    apart, shared = collate(examples, CPU), packing(examples)
    assert shared.input_ids.shape[0] < len(examples)
    assert shared.mask is not None
    generator = torch.Generator().manual_seed(0)
    head = LogitHead(torch.randn(WIDTH, 6, generator=generator).double(), None, None)
    hidden = torch.randn(len(apart.positions), 6, generator=generator).double()
    loss = DraftLoss(model, head, forward_kl, temperature=1.0, chunk_tokens=16)
    found = []
    for batch in (apart, shared):
        model.zero_grad()
        value = loss(batch, hidden)[0]
        value.backward()
        found.append((value, [w.grad.clone() for w in model.parameters() if w.grad is not None]))
    assert found[0][0].item() == pytest.approx(found[1][0].item(), rel=1e-6)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(one, other, atol=1e-5 * float(one.abs().max()))


def test_a_token_of_one_document_changes_nothing_in_another_of_its_row() -> None:
    model = tiny_llama(vocabulary=WIDTH)
    packing = collate_for(model)

    def states(word: str) -> list[torch.Tensor]:
        examples = [made(talk(*t))[1][0] for t in ((word, "ab"), ("x", "yz"), ("k", "c" * 60))]
        batch = packing(examples)
        assert batch.input_ids.shape[0] == 2  # the two short ones share a row
        return list(torch.split(supervised_states(model, batch), [e.supervised for e in examples]))

    before, after = states("q"), states("r")
    assert not torch.allclose(before[0], after[0], atol=1e-3)
    assert torch.allclose(before[1], after[1], atol=1e-5)


def test_the_loop_is_asked_what_comes_after_the_first_question() -> None:
    """Of a conversation with several answers too: its first answer is no part of the prompt."""
    tokenizer, (example,), _ = made(talk("q", "ab", "r", "cd"))
    config = DistillConfig(target="toy", corpus="toy", eval_max_tokens=3, eval_temperatures=(0.0,))
    target = tiny_llama(vocabulary=WIDTH)
    draft = Draft(tiny_llama(vocabulary=WIDTH, seed=1), None, None)
    accelerator, teacher = Accelerator(cpu=True), Teacher(target, width=len(tokenizer))
    probe = LoopProbe(config, accelerator, teacher, tokenizer, draft, [example])
    probe.measure()
    (answer,) = probe.answers
    question = [{"role": "user", "content": "q"}]
    assert answer.prompt == render_chat(tokenizer, question)


def test_held_out_conversations_are_read_back_as_they_were(tmp_path: Path) -> None:
    _, examples, _ = made(talk("q", "ab", "r", "cd"), talk("x", "y"))
    save_held_out(tmp_path, examples)
    again = load_held_out(tmp_path)
    assert [e.positions.tolist() for e in again] == [e.positions.tolist() for e in examples]
    assert [(e.supervised, e.spans) for e in again] == [(e.supervised, e.spans) for e in examples]
    path = tmp_path / "held_out.jsonl"
    path.write_text(path.read_text().replace('"supervised": 6', '"supervised": 5'))
    with pytest.raises(ValueError, match="not a held-out row"):
        load_held_out(tmp_path)


@pytest.fixture
def chats(tmp_path: Path) -> dict[str, Any]:
    """Return the fields of a short run on conversations in a file."""
    path = tmp_path / "talk.jsonl"
    rows = [
        {"prompt": f"question {n}", "response": "".join(chr(97 + (n * k) % 7) for k in range(9))}
        for n in range(30)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "target": "toy", "corpus": str(path), "output": str(tmp_path / "run"), "layers": 1,
        "head_tokens": None, "steps": 12, "batch_rows": 6, "learning_rate": 1e-2,
        "report_to": "none", "eval_every": 12, "max_length": 64, "eval_prompts": 2,
        "eval_max_tokens": 4, "head_start": "target",
    }  # fmt: skip


def test_a_draft_is_trained_on_the_answers_of_a_data_set(chats: dict[str, Any]) -> None:
    target, tokenizer = tiny_llama(vocabulary=WIDTH), chat_tokenizer("chatml")
    result = distill(DistillConfig(**chats), target=target, tokenizer=tokenizer)
    losses = [row["train/loss"] for row in result.curve if "train/loss" in row]
    assert losses[-1] < 0.9 * losses[0]
    held_out = load_held_out(result.folder)
    assert held_out
    assert all(one.tokens[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>") for one in held_out)


def test_the_order_of_the_file_changes_nothing_and_its_rows_are_bound(
    chats: dict[str, Any],
) -> None:
    tokenizer, path = chat_tokenizer("chatml"), Path(chats["corpus"])
    config = DistillConfig(**chats)
    first = read_training_data(config, tokenizer, context=512)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    assert read_training_data(config, tokenizer, context=512).sources == first.sources
    path.write_text("".join(lines[:-1]))
    assert read_training_data(config, tokenizer, context=512).sources != first.sources


def test_of_many_conversations_those_are_rendered_that_a_run_can_see() -> None:
    talks = [talk(f"question {n}", "yes") for n in range(200)]
    wanted = {"train": 9, "dev": 4}
    some = sample_conversations(talks, wanted)
    assert Counter(one.split for one in some) == wanted
    assert sample_conversations([*reversed(talks), *talks], wanted) == some
    more = sample_conversations(talks, {"train": 20, "dev": 4})
    assert more[:9] == some[:9]
    assert some[:9] != [one for one in talks if one.split == "train"][:9]


def test_b55_a_source_without_supervision_is_refused_by_name(chats: dict[str, Any]) -> None:
    config = DistillConfig(**chats | {"max_length": 4})
    with pytest.raises(ValueError, match="max_length = 4 leaves no supervised token"):
        read_training_data(config, chat_tokenizer("chatml"), context=512)
