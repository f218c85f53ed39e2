"""Adapters: they alone move, the folder has them merged, and a resumed run goes on with them exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.draft import first_layers, prepare_draft
from foredraft.train.loop import Run
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_gpt2, tiny_llama

ROWS = [*random_rows(20), *random_rows(4, split="dev", seed=1)]
RANK = 3
IDS = torch.tensor([[5, 6, 7, 8]])


def lora(**changes: Any) -> DistillConfig:
    fields = {"target": "toy", "corpus": "toy", "layers": 1, "lora_rank": RANK}
    return DistillConfig(**{**fields, **changes})


def run(folder: Path, name: str = "run", **changes: Any) -> DistillResult:
    target = tiny_llama()
    if not (folder / "corpus").exists():
        write_corpus_folder(folder / "corpus", target, ROWS)
    config = lora(
        corpus=str(folder / "corpus"), output=str(folder / name), head_tokens=120, steps=4,
        batch_rows=4, learning_rate=3e-2, eval_every=4, save_every=2, eval_prompts=1, keep=9,
        eval_max_tokens=4, serving_temperatures=(), train_head=False, report_to="none", **changes,
    )  # fmt: skip
    return distill(config, target=target, tokenizer=byte_tokenizer())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return state


def move(model: Any) -> None:
    """Let the adapters be other than zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))


@pytest.mark.parametrize("kept", [None, torch.arange(0, 260, 2)])
@pytest.mark.parametrize("family", [tiny_llama, tiny_gpt2])
def test_the_merged_model_says_what_the_trained_one_does(
    family: Any, kept: torch.Tensor | None
) -> None:
    """Also where the weights of linear layers stand transposed, and where the head is cut."""
    target = family()
    draft = prepare_draft(first_layers(target, 1), kept, lora())
    draft.model.eval()
    with torch.no_grad():
        start = draft.model(IDS).logits
        move(draft.model)
        trained = draft.model(IDS).logits
    plain = first_layers(target, 1)
    assert plain.state_dict().keys() == draft.whole_state_dict().keys()
    plain.load_state_dict(draft.whole_state_dict())
    with torch.no_grad():
        merged = plain(IDS).logits if kept is None else plain(IDS).logits[..., kept]
    assert torch.allclose(merged, trained, atol=1e-4)
    assert not torch.allclose(start, trained, atol=1e-1)
    draft.whole_state_dict()
    with torch.no_grad():
        assert torch.equal(draft.model(IDS).logits, trained)  # merging left it as it was


def test_what_is_trained_is_the_adapters_and_what_the_fields_say() -> None:
    for head, embeddings in ((True, False), (False, True)):
        config = lora(train_head=head, train_embeddings=embeddings)
        model = prepare_draft(first_layers(tiny_llama(), 1), None, config).model
        trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
        adapters = {name for name in trained if "lora_" in name}
        assert len(adapters) == 2 * 7  # q, k, v, o, gate, up, down
        assert trained - adapters == ({"lm_head.weight"} if head else {"model.embed_tokens.weight"})


def test_only_adapters_move_and_by_their_rank(tmp_path: Path) -> None:
    run(tmp_path)
    before, after = (weights(tmp_path / "run" / f"step-00000{step}") for step in (0, 4))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        linear = "_proj" in name
        assert torch.equal(weight, after[name]) != linear, name
        if linear:
            sizes = torch.linalg.svdvals((after[name] - weight).double())
            assert sizes[RANK - 1] > 1e-4 > 1e-6 > sizes[RANK], name


def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = run(tmp_path, "straight")
    original = Run.step

    def stop_at_three(self: Run) -> dict[str, float]:
        if self.state.step == 3:
            raise KeyboardInterrupt
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", stop_at_three)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    resumed = run(tmp_path)
    losses = [
        [row["train/loss"] for row in result.curve if "train/loss" in row]
        for result in (straight, resumed)
    ]
    assert losses[0] == losses[1]
    expected = weights(tmp_path / "straight" / "latest")
    for name, weight in weights(tmp_path / "run" / "latest").items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("no_such_layer",), "^lora_targets do not fit LlamaForCausalLM: "),
        (("q_proj", "lm_head"), "^lora_targets must not be the head or the input embedding"),
        (("embed_tokens",), "^lora_targets must not be the head or the input embedding"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused(targets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_draft(first_layers(tiny_llama(), 1), None, lora(lora_targets=targets))
