"""The teacher and the metrics: α against the whole vocabulary, positions in line."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, LlamaConfig, LlamaForCausalLM

from foredraft.spec import cut_head
from foredraft.train import evaluate_draft
from foredraft.train.batches import make_examples
from foredraft.train.teacher import Teacher
from toy_corpus import corpus_row, random_rows
from toys import tiny_gpt2, tiny_llama


def successor_model(vocabulary: int = 40) -> Any:
    """Return a Llama that, seeing token x, is all but certain of x + 1 (of 0 after the last).

    Attention and MLP are off, embeddings are one-hot, and the head is shifted by one.
    """
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=vocabulary, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=64,
            bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()
        model.get_input_embeddings().weight.copy_(torch.eye(vocabulary))
        model.get_output_embeddings().weight.copy_(4.0 * torch.eye(vocabulary).roll(1, dims=0))
    return model


def table_of(target: Any, draft: Any, kept: torch.Tensor | None, rows: Any) -> dict[str, float]:
    """Return the metrics, computed row by row from the models' own logits."""
    alphas, top1, kl, coverage = [], [], [], []
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        start, end = len(row.prompt_ids) - 1, ids.shape[1] - 1
        with torch.no_grad():
            p = target(ids).logits[0, start:end].double().softmax(-1)
            cut = draft(ids).logits[0, start:end].double().softmax(-1)
        kept_ids = torch.arange(cut.shape[-1]) if kept is None else kept
        q = torch.zeros_like(p).index_copy(1, kept_ids, cut)
        alphas.append(torch.minimum(p, q).sum(-1))
        top1.append((p.argmax(-1) == q.argmax(-1)).double())
        mass = p[:, kept_ids].sum(-1, keepdim=True)
        inner = p[:, kept_ids] / mass
        kl.append((inner * (inner.log() - cut.log())).sum(-1))
        coverage.append(mass[:, 0])
    alpha = torch.cat(alphas)
    means = {"alpha_tf": alpha, "top1": torch.cat(top1), "kl": torch.cat(kl)}
    means["coverage"] = torch.cat(coverage)
    result = {f"eval/T1/{name}": values.mean().item() for name, values in means.items()}
    return result | {"eval/T1/alpha_p10": alpha.quantile(0.1).item()}


@pytest.mark.parametrize("kept", [None, torch.arange(0, 260, 3)], ids=["whole", "cut"])
def test_metrics_are_those_of_the_models_own_logits(kept: torch.Tensor | None) -> None:
    """Each of them, for unequal lengths in batches and chunks that do not divide them."""
    target, draft, rows = tiny_llama(), tiny_gpt2(seed=3), random_rows(7)
    if kept is not None:
        cut_head(draft, kept)
    metrics = evaluate_draft(target, draft, kept, rows, batch_rows=3, chunk_tokens=5)
    expected = table_of(target, draft, kept, rows)
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, abs=2e-5), name


def test_alpha_and_coverage_of_each_domain_are_those_of_its_rows_alone() -> None:
    """Whoever cuts a head sees which domain pays for it; rows of a process may lack a domain."""
    target, draft, kept = tiny_llama(), tiny_gpt2(seed=3), torch.arange(0, 260, 3)
    cut_head(draft, kept)
    rows = [replace(row, domain="ab"[index % 2]) for index, row in enumerate(random_rows(7))]
    metrics = evaluate_draft(target, draft, kept, rows)
    for domain in "ab":
        alone = evaluate_draft(target, draft, kept, [row for row in rows if row.domain == domain])
        assert not any("domains" in name for name in alone)
        for name in ("alpha_tf", "coverage"):
            found = metrics[f"eval/T1/domains/{domain}/{name}"]
            assert found == pytest.approx(alone[f"eval/T1/{name}"], abs=2e-6)


def test_alpha_is_not_that_of_the_renormalised_target() -> None:
    """Where q is the target renormalised on what is kept, α is the coverage, not 1."""
    target, kept = tiny_llama(), torch.arange(130)
    draft = tiny_llama()
    cut_head(draft, kept)
    metrics = evaluate_draft(target, draft, kept, random_rows(5))
    assert metrics["eval/T1/kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["eval/T1/alpha_tf"] == pytest.approx(metrics["eval/T1/coverage"], abs=1e-5)
    assert 0.05 < metrics["eval/T1/coverage"] < 0.95


def test_the_target_is_its_own_best_draft_on_a_successor_text() -> None:
    """A shift of inputs, labels or states by one would show: α falls from 1 to next to nothing."""
    model = successor_model()
    rows = [corpus_row("a", [3, 4], [5, 6, 7, 8]), corpus_row("b", [20], [21, 22])]
    examples = make_examples(rows, 64).examples
    _, best = Teacher(model).summary(examples, Teacher(model).hidden(examples), 4)
    assert best.tolist() == [5, 6, 7, 8, 21, 22]  # what the response really says
    assert evaluate_draft(model, model, None, rows)["eval/T1/alpha_tf"] == pytest.approx(1.0)
    late = successor_model()
    with torch.no_grad():
        head = late.get_output_embeddings().weight
        head.copy_(head.roll(-1, dims=0))  # says x after x
    assert evaluate_draft(model, late, None, rows)["eval/T1/alpha_tf"] < 0.01


def test_padding_of_the_target_vocabulary_is_cut_off() -> None:
    """B52: with `width` the law is what the decode loop uses; a draft of fewer rows still fits."""
    target, draft, rows = (
        tiny_llama(vocabulary=300),
        tiny_llama(seed=1, vocabulary=280),
        random_rows(4),
    )
    narrow = evaluate_draft(target, draft, None, rows, width=260)
    assert narrow["eval/T1/coverage"] == pytest.approx(1.0, abs=1e-5)
    wide = evaluate_draft(target, draft, None, rows)
    assert 0.5 < wide["eval/T1/coverage"] < 0.9999
    with torch.no_grad():
        target.get_output_embeddings().weight[260:] = 9.0
    assert evaluate_draft(target, draft, None, rows, width=260) == pytest.approx(narrow)


def test_evaluation_puts_the_draft_back_in_training_mode() -> None:
    draft = tiny_llama(seed=1)
    for training in (True, False):
        draft.train(training)
        evaluate_draft(tiny_llama(), draft, None, random_rows(2))
        assert draft.training is training


def test_rows_without_a_response_are_refused() -> None:
    with pytest.raises(ValueError, match="rows must hold at least one response token, got 1 rows"):
        evaluate_draft(tiny_llama(), tiny_llama(), None, [corpus_row("a", [1], [])])


def test_a_model_that_changes_logits_after_the_head_is_refused_by_name() -> None:
    model = CohereForCausalLM(
        CohereConfig(
            vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, logit_scale=0.1,
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"CohereForCausalLM \(model type 'cohere'\)"):
        evaluate_draft(model, tiny_llama(vocabulary=40), None, [corpus_row("a", [1], [2, 3])])


class Counting:
    """Counts the forwards of a model's body."""

    def __init__(self, model: Any) -> None:
        self.rows = 0
        model.base_model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: Any, kwargs: Any) -> None:
        self.rows += len(kwargs["input_ids"])


def test_the_teacher_computes_a_row_once_while_there_is_room() -> None:
    target = tiny_llama()
    examples = make_examples(random_rows(6), 100).examples
    calls = Counting(target)
    fresh = Teacher(target, cache_gb=0.0)
    first = fresh.hidden(examples)
    assert torch.equal(fresh.hidden(examples), first)
    assert calls.rows == 12
    calls.rows = 0
    roomy = Teacher(target, cache_gb=1.0)
    assert torch.equal(roomy.hidden(examples), first)
    mixed = roomy.hidden([examples[4], examples[0], examples[4]])  # order is the caller's
    sizes = [example.supervised for example in examples]
    parts: Any = torch.split(first, sizes)
    assert torch.equal(mixed, torch.cat([parts[4], parts[0], parts[4]]))
    assert calls.rows == 6
    calls.rows = 0
    bytes_of_two = sum(example.supervised for example in examples[:2]) * 32 * 4
    tight = Teacher(target, cache_gb=bytes_of_two / 1e9)
    tight.hidden(examples[:2])
    tight.hidden(examples)
    assert torch.equal(tight.hidden(examples), first)
    assert calls.rows == 2 + 4 + 4


def test_the_teacher_takes_no_gradient_and_leaves_training_mode() -> None:
    """B62."""
    target = tiny_llama().train().requires_grad_(True)
    hidden = Teacher(target).hidden(make_examples(random_rows(2), 100).examples)
    assert not hidden.requires_grad
    assert not target.training
    assert not any(weight.requires_grad for weight in target.parameters())
