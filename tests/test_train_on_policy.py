"""The draft's own text in training: whose it is, who judges it, and that a resumed run has the same."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM

from families import build
from foredraft.train import DistillConfig, distill
from foredraft.train.batches import Example, make_examples
from foredraft.train.draft import Draft, first_layers, prepare_draft
from foredraft.train.on_policy import OnPolicyText, whole_logits
from foredraft.train.teacher import Teacher
from toy_corpus import EOS, random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama

ROWS = random_rows(20)
EXAMPLES = make_examples(ROWS, 100).examples


def config(tmp_path: Path, **changes: Any) -> DistillConfig:
    fields: dict[str, Any] = {
        "target": "toy", "corpus": str(tmp_path / "corpus"), "output": str(tmp_path / "run"),
        "batch_rows": 6, "on_policy_share": 0.5, "on_policy_every": 2, "on_policy_tokens": 5,
    }  # fmt: skip
    return DistillConfig(**fields | changes)


def made(
    tmp_path: Path, *, kept: torch.Tensor | None = None, seed: int = 0, **changes: Any
) -> tuple[OnPolicyText, Draft, Teacher]:
    target = tiny_llama()
    target.generation_config.eos_token_id = EOS
    settings = config(tmp_path, **changes)
    draft = prepare_draft(first_layers(tiny_llama(seed=seed), 1), kept, settings)
    teacher = Teacher(target, cache_gb=1.0)
    text = OnPolicyText(settings, Accelerator(cpu=True), teacher, draft, EXAMPLES, resumed=False)
    return text, draft, teacher


def test_a_share_of_the_rows_goes_on_from_a_row_as_the_draft_would(tmp_path: Path) -> None:
    """Greedily here, so that every token is known: it is the draft's, and each of them is supervised."""
    text, draft, _ = made(tmp_path, temperature=1e-4)
    batch = EXAMPLES[:6]
    mixed = text.mix(0, batch)
    assert mixed[:3] == batch[:3]
    for one in mixed[3:]:
        start = one.tokens[: one.first].tolist()
        sources = [e for e in EXAMPLES if e.tokens[: len(start)].tolist() == start]
        assert any(e.first <= len(start) < len(e.tokens) for e in sources)
        assert 1 <= one.supervised <= 5
        laws = draft.model.eval()(one.input_ids[None]).logits[0, one.positions]
        assert laws.argmax(-1).tolist() == one.predicted.tolist()
        assert one.supervised == 5 or one.tokens[-1] == EOS


def test_each_step_has_rows_of_its_own_and_the_draft_writes_when_it_should(tmp_path: Path) -> None:
    text, draft, teacher = made(tmp_path, on_policy_after=3)
    batch = EXAMPLES[:6]
    assert [text.mix(step, batch) for step in range(3)] == [batch] * 3
    found: list[list[Example]] = []
    for step in range(3, 7):
        found.append(text.mix(step, batch)[3:])
        teacher.hidden(found[-1])
    files = sorted(path.name for path in (tmp_path / "run" / "on-policy").iterdir())
    assert files == ["text-000000.jsonl", "text-000001.jsonl"]
    tokens = [[tuple(e.tokens.tolist()) for e in rows] for rows in found]
    assert len({row for rows in tokens for row in rows}) > 9
    # What was written before is forgotten: a long run does not grow.
    assert set(teacher._hidden) == {*found[2], *found[3]}
    assert draft.model.training


def test_a_resumed_run_reads_what_was_written_and_another_run_does_not(tmp_path: Path) -> None:
    def rows(text: OnPolicyText, step: int) -> list[list[int]]:
        return [one.tokens.tolist() for one in text.mix(step, EXAMPLES[:6])[3:]]

    first, _, teacher = made(tmp_path)
    expected = [rows(first, step) for step in range(4)]
    # A draft of other weights, as it is in the middle of a run: what was written is read.
    _, other, _ = made(tmp_path / "elsewhere", seed=1)
    settings, accelerator = config(tmp_path), Accelerator(cpu=True)
    resumed = OnPolicyText(settings, accelerator, teacher, other, EXAMPLES, resumed=True)
    assert [rows(resumed, step) for step in (1, 3)] == [expected[1], expected[3]]
    fresh = OnPolicyText(settings, accelerator, teacher, other, EXAMPLES, resumed=False)
    assert rows(fresh, 1) != expected[1]
    again, _, _ = made(tmp_path / "again")
    assert [rows(again, step) for step in range(4)] == expected, "the same draft writes the same"
    seeded, _, _ = made(tmp_path / "seeded")
    seeded._config = config(tmp_path / "seeded", seed=1)
    assert rows(seeded, 0) != expected[0]


def test_a_cut_head_says_only_what_it_can_and_is_as_it_was_afterwards(tmp_path: Path) -> None:
    kept = torch.arange(1, 260, 3)
    text, draft, teacher = made(tmp_path, kept=kept)
    head = draft.model.get_output_embeddings()
    written = torch.cat([one.predicted for one in text.mix(0, EXAMPLES[:6])[3:]])
    assert torch.isin(written, kept).all()
    assert draft.model.get_output_embeddings() is head
    ids = torch.arange(5)[None]
    cut = draft.model(ids).logits
    with whole_logits(draft, teacher.width):
        whole = draft.model(ids).logits
    assert torch.equal(whole[..., kept], cut)
    assert whole.isfinite().sum() == cut.numel()


def test_it_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    settings = config(tmp_path)
    draft = Draft(build("mistral-sliding"), None, None)
    with pytest.raises(ValueError, match="on_policy_share must be 0 for MistralForCausalLM"):
        OnPolicyText(
            settings, Accelerator(cpu=True), Teacher(tiny_llama()), draft, EXAMPLES, resumed=False
        )
    for changes in ({"on_policy_share": 0.01}, {"teacher": "cache"}, {"on_policy_share": 1.5}):
        with pytest.raises(ValueError, match="on_policy_share must be"):
            config(tmp_path, **changes)
    for name in ("on_policy_every", "on_policy_tokens"):
        with pytest.raises(ValueError, match=name):
            config(tmp_path, **{name: 0})


def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    """Stopped in the middle of what the draft wrote for."""
    target, tokenizer = tiny_llama(), byte_tokenizer()
    rows = [*random_rows(12), *random_rows(4, split="dev", seed=1)]
    write_corpus_folder(tmp_path / "corpus", target, rows)
    base: dict[str, Any] = {
        "layers": 1, "head_tokens": 120, "learning_rate": 5e-3, "report_to": "none",
        "eval_every": 50, "on_policy_every": 3, "save_every": 4, "keep": 9, "eval_prompts": 0,
        "head_start": "target",
    }  # fmt: skip

    folder = tmp_path / "run" / "step-000007"

    def run() -> tuple[list[float], dict[str, torch.Tensor]]:
        AcceleratorState._reset_state(reset_partial_state=True)
        settings = config(tmp_path, steps=7, **base)
        result = distill(settings, target=target, tokenizer=tokenizer)
        losses = [row["train/loss"] for row in result.curve if "train/loss" in row]
        return losses, AutoModelForCausalLM.from_pretrained(folder).state_dict()

    (losses, whole), written = run(), folder.parent / "on-policy" / "text-000002.jsonl"
    before = written.read_text()
    # As if it had been killed after the checkpoint of step 4: what came later never was.
    shutil.rmtree(folder)
    written.unlink()
    again, resumed = run()
    assert (again, written.read_text()) == (losses, before)
    assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())
