"""Where a draft comes from, how its head is cut, and that a checkpoint is what was trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from foredraft.spec import DraftInfo, cut_head, load_kept_tokens
from foredraft.train import DistillConfig
from foredraft.train.batches import make_examples
from foredraft.train.checkpoint import TrainerState, save_checkpoint
from foredraft.train.draft import (
    Draft,
    best_tokens,
    choose_kept_tokens,
    first_layers,
    load_draft,
    prepare_draft,
    rank_tokens,
    starting_model,
)
from foredraft.train.heads import head_of
from foredraft.train.teacher import Teacher
from toy_corpus import random_rows
from toys import byte_tokenizer, tiny_gpt2, tiny_llama

IDS = torch.tensor([[1, 5, 9, 257, 30, 2, 77]])


def tied_llama() -> Any:
    """Return a target whose head is its embedding."""
    return tiny_llama(tie_word_embeddings=True, sharpness=1.0)


TARGETS = {"llama": tiny_llama, "gpt2": tiny_gpt2, "tied": tied_llama}


def config(**changes: Any) -> DistillConfig:
    return DistillConfig(target="toy", corpus="toy", **{"layers": 1, **changes})


@pytest.mark.parametrize("name", TARGETS)
def test_all_layers_and_the_whole_head_reproduce_the_target(name: str) -> None:
    target = TARGETS[name]()
    draft = first_layers(target, 2).eval()
    assert torch.equal(draft(IDS).logits, target(IDS).logits)
    assert draft.config.tie_word_embeddings is False
    head, embedding = draft.get_output_embeddings(), draft.get_input_embeddings()
    assert head.weight.data_ptr() != embedding.weight.data_ptr()
    assert head.weight.data_ptr() != target.get_output_embeddings().weight.data_ptr()


@pytest.mark.parametrize("name", TARGETS)
def test_fewer_layers_are_the_first_ones(name: str) -> None:
    target = TARGETS[name]()
    draft = first_layers(target, 1).eval()
    # The last hidden state is normed, so that of one layer is compared through a hook on its layer.
    seen = {}
    for role, model in (("target", target), ("draft", draft)):
        layers = model.transformer.h if name == "gpt2" else model.model.layers
        layers[0].register_forward_hook(lambda *call, role=role: seen.update({role: call[2]}))
        model(IDS)
    assert torch.equal(seen["target"], seen["draft"])
    assert draft.config.num_hidden_layers == 1


def test_a_list_with_an_entry_a_layer_is_cut_too() -> None:
    target = tiny_llama(layers=3)
    target.config.layer_types = ["full_attention"] * 3
    target.config.eos_token_id = [1, 2, 3]
    draft = first_layers(target, 2)
    assert draft.config.layer_types == ["full_attention"] * 2
    assert draft.config.eos_token_id == [1, 2, 3]


@pytest.mark.parametrize("layers", [0, 3])
def test_layers_the_target_does_not_have_are_refused(layers: int) -> None:
    with pytest.raises(ValueError, match=rf"layers must be in \[1, 2\].*got {layers}"):
        first_layers(tiny_llama(), layers)


def test_a_weight_that_the_target_lacks_is_named() -> None:
    target = tiny_llama()
    target.config.attention_bias = True  # the config now describes weights that are not there
    with pytest.raises(ValueError, match=r"no weight 'model\.layers\.0\.self_attn\.q_proj\.bias'"):
        first_layers(target, 1)


def test_building_a_draft_leaves_the_callers_random_stream_alone() -> None:
    target = tiny_llama()
    before = torch.get_rng_state()
    first_layers(target, 1)
    assert torch.equal(before, torch.get_rng_state())


def test_a_draft_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    other = byte_tokenizer()
    other.add_tokens(["<more>"])
    tiny_llama(seed=1).save_pretrained(tmp_path)
    other.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="id 260 is None to the target and '<more>' to the draft"):
        starting_model(config(draft=str(tmp_path)), Teacher(tiny_llama()), tokenizer)


@pytest.mark.parametrize("size", [4, 5, 9, 10])
def test_best_tokens_for_any_size(size: int) -> None:
    """Also more tokens than occur; `always` is in, low ids win ties, ascending."""
    scores = torch.tensor([0.0, 3.0, 0.0, 7.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    kept = best_tokens(scores, size, [8, 9, 12]).tolist()
    order = [8, 9, 3, 1, 5, 0, 2, 4, 6, 7]
    assert kept == sorted(order[:size])
    with pytest.raises(ValueError, match="head_tokens must be at least 2"):
        best_tokens(scores, 1, [8, 9])


def test_tokens_are_ranked_by_counts_and_by_the_target_law() -> None:
    """Each supervised position counts one for its token and spreads one by its law."""
    target = tiny_llama()
    examples = make_examples(random_rows(5), 100).examples
    teacher = Teacher(target)
    scores = rank_tokens(teacher, examples, seed=0, chunk_tokens=3)
    expected = torch.zeros(260, dtype=torch.float64)
    for example in examples:
        expected += torch.bincount(example.tokens[-example.supervised :], minlength=260)
        logits = target(example.input_ids[None]).logits[0, -example.supervised :]
        expected += logits.softmax(-1).sum(0).double()
    assert (scores - expected).abs().max() < 1e-4
    kept = choose_kept_tokens(
        config(head_tokens=40), teacher, byte_tokenizer(), tiny_llama(), examples
    )
    assert kept is not None
    assert len(kept) == 40
    assert {256, 257} <= set(kept.tolist())  # pad and EOS, whatever they score


@pytest.mark.parametrize("head_tokens", [None, 260, 1000])
def test_a_head_that_is_not_smaller_stays_whole(head_tokens: int | None) -> None:
    teacher, examples = Teacher(tiny_llama()), make_examples(random_rows(2), 100).examples
    wanted = config(head_tokens=head_tokens)
    assert choose_kept_tokens(wanted, teacher, byte_tokenizer(), tiny_llama(), examples) is None


def trained(draft: Draft) -> Draft:
    """Move every weight that is trained, each row of the head differently."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in draft.model.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return draft


def save(draft: Draft, output: Path) -> Path:
    info = DraftInfo(
        target="toy", target_fingerprint="f", tokenizer_hash="t",
        kept_tokens=None if draft.kept is None else len(draft.kept),
    )  # fmt: skip
    save_checkpoint(
        output, draft, byte_tokenizer(), info, TrainerState(), {}, [[torch.get_rng_state()]], keep=1
    )
    return output / "step-000000"


@pytest.mark.parametrize("name", TARGETS)
def test_a_cut_draft_reloads_as_trained_and_as_a_plain_model(name: str, tmp_path: Path) -> None:
    """B69, B84: trained rows in their places, the target's elsewhere, a config that says untied."""
    target = TARGETS[name]()
    kept = torch.tensor([2, 3, 50, 117, 257])
    draft = trained(prepare_draft(first_layers(target, 1), kept, config()))
    folder = save(draft, tmp_path)
    with torch.no_grad():
        logits = draft.model.eval()(IDS).logits
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert plain.config.tie_word_embeddings is False
    assert plain.config.vocab_size == 260
    head = plain.get_output_embeddings().weight
    assert torch.equal(head[kept], draft.model.get_output_embeddings().weight)
    others = [token for token in range(260) if token not in kept.tolist()]
    assert torch.equal(head[others], target.get_output_embeddings().weight[others])
    embedding = plain.get_input_embeddings().weight
    assert torch.equal(embedding, target.get_input_embeddings().weight)  # not trained
    assert (plain(IDS).logits[..., kept] - logits).abs().max() < 1e-5  # products of other shapes
    info = DraftInfo.load(folder)
    assert info is not None
    found = load_kept_tokens(folder, info)
    assert found is not None
    cut_head(plain, found)
    assert torch.equal(plain(IDS).logits, logits)
    # And once more, as a resumed run loads it.
    assert torch.equal(load_draft(folder, config()).model.eval()(IDS).logits, logits)


def test_a_tied_draft_from_the_hub_is_untied_and_reloads_as_trained(tmp_path: Path) -> None:
    """B69, B71: with the embedding trained as well, head and embedding go their own ways."""
    start = tmp_path / "start"
    tied_llama().save_pretrained(start)
    byte_tokenizer().save_pretrained(start)
    wanted = config(draft=str(start), train_embeddings=True, head_tokens=None)
    model = starting_model(wanted, Teacher(tiny_llama()), byte_tokenizer())
    draft = trained(prepare_draft(model, None, wanted))
    plain = AutoModelForCausalLM.from_pretrained(save(draft, tmp_path))
    assert torch.equal(plain(IDS).logits, draft.model.eval()(IDS).logits)
    assert not torch.equal(
        plain.get_output_embeddings().weight, plain.get_input_embeddings().weight
    )


def test_a_folder_that_no_trainer_wrote_cannot_be_resumed(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no foredraft\.json"):
        load_draft(tmp_path, config())


def test_what_is_trained() -> None:
    draft = prepare_draft(first_layers(tiny_llama(), 1), torch.tensor([1, 2]), config())
    frozen = [name for name, weight in draft.model.named_parameters() if not weight.requires_grad]
    assert frozen == ["model.embed_tokens.weight"]
    assert draft.model.training
    assert draft.columns(260).tolist() == [1, 2]


def test_padding_of_the_vocabulary_is_no_column() -> None:
    """B52: target rows 320, draft rows 300, tokenizer 260."""
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, hidden_size=8, num_hidden_layers=1,
        intermediate_size=8, num_attention_heads=1, num_key_value_heads=1))  # fmt: skip
    draft = prepare_draft(model, None, config())
    assert len(draft.columns(260)) == 260
    assert len(draft.columns(320)) == 300
    assert len(head_of(model).first(260).weight) == 260
