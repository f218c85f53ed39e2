"""Shared rows: a prompt is fed once for all its answers, and nothing is said otherwise for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM

from families import FAMILIES, WINDOW, build
from foredraft.data import CorpusRow
from foredraft.train.batches import Example, make_examples
from foredraft.train.divergences import forward_kl
from foredraft.train.evaluation import evaluate
from foredraft.train.heads import LogitHead
from foredraft.train.losses import DraftLoss
from foredraft.train.packing import (
    Batch,
    collate,
    collate_for,
    packing_obstacle,
    shared_rows,
    supervised_states,
)
from foredraft.train.teacher import Teacher
from toy_corpus import corpus_row, random_rows
from toys import tiny_gpt2, tiny_llama

CPU = torch.device("cpu")
EXACT = 1e-10  # in float64

PROMPT = [5, 6, 7, 8, 9]
CASES: dict[str, list[CorpusRow]] = {
    "one answer": [corpus_row("a", PROMPT, [1, 2, 3]), corpus_row("b", [5, 6], [1, 2, 3, 4])],
    "two answers": [corpus_row("a", PROMPT, [1, 2, 3]), corpus_row("b", PROMPT, [4, 2, 3, 1])],
    "three answers": [
        corpus_row("a", PROMPT, [1, 2, 3]),
        corpus_row("b", PROMPT, [1, 2, 9, 1]),  # begins as the first does
        corpus_row("c", PROMPT, [4]),
    ],
    "several prompts": [
        corpus_row("a", PROMPT, [1, 2, 3]),
        corpus_row("b", [5, 6], [1, 2]),  # in a row with the next: begins like another prompt
        corpus_row("c", PROMPT, [4, 2, 3, 1, 8, 9, 2]),
        corpus_row("d", [5, 7], [1, 4]),
        corpus_row("e", [5, 6], [3]),
    ],
    "prompts of one token": [corpus_row(n, [5], [1, 2, int(n)]) for n in "123"],
    "no prompt": [corpus_row(n, [], [5, 1, 2, int(n)]) for n in "123"],
    "cut": [  # at 7 tokens
        corpus_row("a", PROMPT, [1, 2, 3, 4, 5]),
        corpus_row("b", PROMPT, [1, 3, 3, 4, 5]),
        corpus_row("c", PROMPT, [2]),
    ],
    "equal": [*[corpus_row(n, PROMPT, [1, 2, 3]) for n in "12"], corpus_row("3", PROMPT, [1, 2])],
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": tiny_llama,
    "gpt2": tiny_gpt2,
    "qwen3": lambda: build("qwen3").requires_grad_(True),
    # Windows of 8 tokens; every row has as many before its end, wherever in a shared one it lies.
    "gemma3": lambda: build("gemma3").requires_grad_(True),
    "mistral with a window": lambda: build("mistral-sliding").requires_grad_(True),
}


def in_float64(model: Any) -> Any:
    """Return the model in float64, its norms too: transformers rounds theirs to float32."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                norm: Any = torch.nn.RMSNorm(child.weight.shape[0], eps=1e-6)
                # Gemma's multiply by 1 + weight.
                norm.weight.data = child.weight.detach() + type(child).__name__.startswith("Gemma")
                setattr(parent, name, norm)
    return model.double()


def examples_of(case: str) -> list[Example]:
    return make_examples(CASES[case], 7 if case == "cut" else 100).examples


def fed(batch: Batch) -> int:
    return batch.input_ids.numel()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model_name", MODELS)
def test_loss_and_gradients_are_those_of_rows_of_their_own(model_name: str, case: str) -> None:
    model = in_float64(MODELS[model_name]())
    examples = examples_of(case)
    batches = [collate(examples, CPU), collate_for(model)(examples)]
    assert packing_obstacle(model) is None
    generator = torch.Generator().manual_seed(0)
    width = model.get_output_embeddings().weight.shape[0]
    target_head = LogitHead(
        torch.randn(width, 6, generator=generator, dtype=torch.float64), None, None
    )
    target_hidden = torch.randn(
        len(batches[0].positions), 6, generator=generator, dtype=torch.float64
    )
    loss = DraftLoss(model, target_head, forward_kl, temperature=1.0, chunk_tokens=3)
    found = []
    for batch in batches:
        model.zero_grad()
        value = loss(batch, target_hidden)[0]
        value.backward()
        grads = {name: weight.grad.clone() for name, weight in model.named_parameters()}
        found.append((value.item(), supervised_states(model, batch).detach(), grads))
    (padded, padded_states, padded_grads), (packed, packed_states, packed_grads) = found
    assert packed == pytest.approx(padded, rel=EXACT)
    assert (packed_states - padded_states).abs().max() < EXACT * padded_states.abs().max()
    for name, grad in padded_grads.items():
        assert grad.abs().max() > 0, name
        assert (packed_grads[name] - grad).abs().max() < EXACT * grad.abs().max(), name


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        ("one answer", (2, 7)),  # of 7 and 5 tokens: nothing to share, no room for both
        ("two answers", (1, 5 + 2 + 3)),
        # All three end at the prompt or go on with [1, 2], and one has [9] after that.
        ("three answers", (1, 5 + 2 + 1)),
        ("several prompts", (2, 5 + 2 + 6)),  # the second row holds the two short prompts
        ("equal", (1, 5 + 2)),
    ],
)
def test_what_examples_begin_with_is_fed_once(case: str, shape: tuple[int, int]) -> None:
    """The last token of an answer is not fed."""
    assert collate_for(tiny_llama())(examples_of(case)).input_ids.shape == shape


def test_a_row_of_one_chain_is_left_to_plain_causal_attention() -> None:
    """Where nothing is shared, the batch is the padded one; equal examples are a chain too."""
    for case in ("one answer", "equal"):
        batch = collate_for(tiny_llama())(examples_of(case))
        assert (batch.mask, batch.position_ids) == (None, None)
    examples = examples_of("one answer")
    packed, padded = collate_for(tiny_llama())(examples), collate(examples, CPU)
    assert sorted(packed.input_ids.tolist()) == sorted(padded.input_ids.tolist())


def test_short_prompts_fill_the_row_beside_a_long_one() -> None:
    rows = [
        corpus_row("a", [7, *range(20)], [1, 2]),
        *[corpus_row(f"b{n}", [6, n], [1, 2, 3]) for n in range(6)],
    ]
    examples = make_examples(rows, 100).examples
    placed = shared_rows(examples)
    assert [len(row) for row in placed] == [1, 5, 1]  # 22 tokens: five of 4, and one more
    assert {id(e) for row in placed for e in row} == set(map(id, examples))
    model = tiny_llama()
    batch = collate_for(model)(examples)
    assert batch.input_ids.shape == (3, 22)
    off = supervised_states(model, batch) - supervised_states(model, collate(examples, CPU))
    assert off.abs().max() < 1e-5


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        # The trainer cannot split Llama 4's text model into body and head.
        *((name, family.attention[0]) for name, family in FAMILIES.items() if name != "llama4"),
        *((name, "eager") for name in ("llama", "gpt2", "gemma3", "mistral-sliding")),
    ],
)
def test_every_family_reads_shared_rows_or_is_padded(name: str, attention: str) -> None:
    """In float32, with answers that reach beyond the windows of 8 tokens."""
    model = build(name, attention=attention)
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, 100, (6, 2 * WINDOW), generator=generator).tolist()
    prompts = [texts[0][:6], texts[0][:6], texts[0][:6], texts[1][:3], texts[1][:3], [1, 2]]
    rows = [
        corpus_row(str(index), prompt, text)
        for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    examples = make_examples(rows, 100).examples
    packed, padded = collate_for(model)(examples), collate(examples, CPU)
    assert (fed(packed) < fed(padded)) == (name != "gpt-neo")
    before, after = supervised_states(model, padded), supervised_states(model, packed)
    assert (after - before).abs().max() < 1e-4 * before.abs().max()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: build("llama4"), "layers of kind chunked_attention"),
        (lambda: build("gpt-neo", attention="eager"), "takes positions from the length"),
        (lambda: _with_attention(tiny_llama(), "flash_attention_2"), "uses flash_attention_2"),
        (
            lambda: BloomForCausalLM(
                BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2)
            ),
            "takes no mask and positions of its own",
        ),
        (
            lambda: MambaForCausalLM(
                MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4)
            ),
            "Mamba",
        ),
        (lambda: _deaf_to_positions(tiny_gpt2()), "has other states in a shared row"),
    ],
    ids=["chunked", "gpt-neo", "flash", "alibi", "recurrent", "deaf"],
)
def test_a_model_that_cannot_read_shared_rows_gets_padded_ones(model: Any, reason: str) -> None:
    made = model()
    assert reason in str(packing_obstacle(made))
    examples = examples_of("three answers")
    batch = collate_for(made)(examples)
    assert (batch.mask, batch.position_ids) == (None, None)
    assert torch.equal(batch.input_ids, collate(examples, CPU).input_ids)


def _with_attention(model: Any, name: str) -> Any:
    model.config._attn_implementation_internal = name
    return model


def _deaf_to_positions(model: Any) -> Any:
    """Take positions out of what the body is told: it counts through the row."""

    def drop(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "position_ids": None}

    model.base_model.register_forward_pre_hook(drop, with_kwargs=True)
    return model


def test_evaluation_is_that_of_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every metric, from fewer tokens fed."""
    target, draft = tiny_llama().double(), tiny_gpt2(seed=3).double()
    rows = [*CASES["three answers"], *random_rows(5), *CASES["several prompts"]]
    examples = make_examples(rows, 100).examples
    sizes: list[int] = []
    draft.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )

    def measure() -> tuple[dict[str, float], int]:
        sizes.clear()
        metrics = evaluate(
            Teacher(target),
            draft,
            torch.arange(260),
            examples,
            collate=collate_for(draft),
            batch_rows=6,
            chunk_tokens=7,
        )
        return metrics, sum(sizes)

    packed, packed_size = measure()
    monkeypatch.setattr("foredraft.train.packing.packing_obstacle", lambda model: "a test")
    padded, padded_size = measure()
    assert packed == pytest.approx(padded, rel=EXACT)
    assert packed_size < padded_size
