"""Public bugs of other trainers, each for its whole kind, where no other test is about it.

Where the other rows of the list have theirs, and which do not apply: docs/public_bugs.md.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from foredraft.spec import DraftInfo, load_causal_lm, tokenizer_hash
from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.batches import make_examples
from foredraft.train.card import ALPHA_HERE
from foredraft.train.draft import first_layers, prepare_draft
from foredraft.train.evaluation import alphas_of
from foredraft.train.export import export_draft
from foredraft.train.held_out import save_held_out
from foredraft.train.losses import DraftLoss
from foredraft.train.teacher import Teacher
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama

ROWS = [*random_rows(12), *random_rows(3, split="dev", seed=1)]
IDS = torch.tensor([[5, 6, 7, 8]])
TREE = Path(__file__).parent.parent


def run(folder: Path, target: Any, name: str = "run", **changes: Any) -> DistillResult:
    if not (folder / "corpus").exists():
        write_corpus_folder(folder / "corpus", target, ROWS)
    fields: dict[str, Any] = {
        "target": "toy", "corpus": str(folder / "corpus"), "output": str(folder / name),
        "layers": 1, "head_tokens": 100, "steps": 3, "batch_rows": 4, "learning_rate": 3e-3,
        "eval_prompts": 0, "serving_temperatures": (), "report_to": "none",
    }  # fmt: skip
    return distill(
        DistillConfig(**{**fields, **changes}), target=target, tokenizer=byte_tokenizer()
    )


def adapters_of(folder: Path, name: str) -> dict[str, torch.Tensor]:
    path = folder / name / "latest" / "trainer_state" / "adapters.pt"
    parts: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return parts


def with_adapters(target: Any, rank: int, *, seed: int = 0) -> Any:
    """Return a draft of all of the target's layers whose adapters are other than zero."""
    config = DistillConfig(target="toy", corpus="toy", lora_rank=rank, lora_alpha=float(rank))
    draft = prepare_draft(first_layers(target, 2), None, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in draft.model.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))
    draft.model.eval()
    return draft


def test_b65_adapters_learn_though_activations_are_computed_twice(tmp_path: Path) -> None:
    """With the embedding not trained, nothing that enters a layer has a gradient: all of them move."""
    target = tiny_llama()
    curves = []
    for name, twice in (("kept", False), ("twice", True)):
        result = run(
            tmp_path, target, name, lora_rank=2, train_head=False, gradient_checkpointing=twice
        )
        curves.append([row["train/loss"] for row in result.curve if "train/loss" in row])
    kept, twice_ = (adapters_of(tmp_path, name) for name in ("kept", "twice"))
    moved = [name for name in kept if "lora_B" in name]
    assert len(moved) == 7
    assert all(kept[name].abs().max() > 0 for name in moved)
    assert curves[0] == curves[1]
    assert all(torch.equal(weight, twice_[name]) for name, weight in kept.items())


def test_b66_adapters_of_the_draft_never_reach_the_target() -> None:
    """There is no adapter to switch off: the draft's layers are copies, called by turns with the target."""
    target = tiny_llama()
    with torch.no_grad():
        plain = target(IDS).logits
        draft = with_adapters(target, rank=2).model
        adapted = draft(IDS).logits
        for _ in range(20):
            assert torch.equal(target(IDS).logits, plain)
            assert torch.equal(draft(IDS).logits, adapted)
    assert not torch.equal(plain, adapted)
    places = [{weight.data_ptr() for weight in model.parameters()} for model in (target, draft)]
    assert not places[0] & places[1]


def test_b68_a_start_of_adapters_is_refused_and_one_is_merged_whole(tmp_path: Path) -> None:
    """A draft in training has one set of adapters; peft's folder of some is no model of its own."""
    target = tiny_llama()
    draft = with_adapters(target, rank=2)
    plain = first_layers(target, 2)
    state = draft.whole_state_dict()
    changed = [n for n, weight in plain.state_dict().items() if not torch.equal(weight, state[n])]
    assert len(changed) == 2 * 7  # each adapted layer, none dropped
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(ValueError, match=r"^draft must be .* got .*: adapters of another model"):
        run(tmp_path, target, draft=str(tmp_path / "adapters"))
    with pytest.raises(ValueError, match=r"^draft must be .* got .*: adapters of another model"):
        export_draft(tmp_path / "adapters", tmp_path / "out")


def test_b70_merged_adapters_say_the_same_and_in_16_bits_are_believed_as_often(
    tmp_path: Path,
) -> None:
    """Of rank 64, merged in float32; what the rounding of the export costs is written into its folder."""
    target = tiny_llama()
    draft = with_adapters(target, rank=64)
    merged = first_layers(target, 2).eval()
    merged.load_state_dict(draft.whole_state_dict())
    with torch.no_grad():
        trained, reloaded = draft.model(IDS).logits, merged(IDS).logits
    assert (trained - reloaded).abs().max() < 1e-4
    assert (trained - target(IDS).logits).abs().max() > 0.1
    merged.save_pretrained(tmp_path / "draft")
    byte_tokenizer().save_pretrained(tmp_path / "draft")
    DraftInfo(
        target="toy", target_fingerprint="", tokenizer_hash=tokenizer_hash(byte_tokenizer())
    ).save(tmp_path / "draft")
    examples = make_examples(random_rows(4), 100).examples
    save_held_out(tmp_path / "draft", examples)
    alpha = float(torch.cat(alphas_of(Teacher(target, width=260), merged, None, examples)).mean())
    out = export_draft(
        tmp_path / "draft", tmp_path / "out", dtype="bfloat16", target=target, tokenizer=byte_tokenizer()
    )  # fmt: skip
    info = DraftInfo.load(out)
    assert info is not None
    assert info.metrics[ALPHA_HERE] == pytest.approx(alpha, abs=0.01)
    assert (
        load_causal_lm(str(export_draft(tmp_path / "draft", tmp_path / "plain"))).dtype
        == torch.float32
    )


def test_b73_only_what_is_trained_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The teacher is placed by us, in eval mode and without a wrapper, whatever engine trains the draft."""
    target = tiny_llama()
    prepared: list[tuple[Any, ...]] = []
    original = Accelerator.prepare

    def watched(self: Any, *objects: Any) -> Any:
        prepared.append(objects)
        return original(self, *objects)

    monkeypatch.setattr(Accelerator, "prepare", watched)
    run(tmp_path, target, steps=1)
    ((loss, optimizer),) = prepared
    assert isinstance(loss, DraftLoss)
    held = {weight.data_ptr() for weight in loss.parameters() if weight.requires_grad}
    assert held == {
        weight.data_ptr() for group in optimizer.param_groups for weight in group["params"]
    }
    inside = list(loss.modules())
    assert not any(module is other for module in target.modules() for other in inside)
    assert not target.training
    assert not any(weight.requires_grad for weight in target.parameters())


def test_b77_no_tracker_is_imported_where_none_is_used() -> None:
    """W&B is imported within the function that starts it, in train and in the command line alike."""
    for folder in ("spec", "data", "controller", "train", "cli"):
        for path in (TREE / folder).rglob("*.py"):
            for statement in ast.parse(path.read_text(encoding="utf-8")).body:
                names = [alias.name for alias in getattr(statement, "names", [])]
                if isinstance(statement, ast.ImportFrom):
                    names.append(statement.module or "")
                assert not any(name.split(".")[0] == "wandb" for name in names), path
