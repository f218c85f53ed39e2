"""Distillation end to end on a tiny target: it learns, resumes exactly, keeps what is finished."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM, AutoTokenizer

from foredraft.spec import DraftInfo, cut_head, load_kept_tokens
from foredraft.train import DistillConfig, DistillResult, distill, evaluate_draft
from foredraft.train.batches import make_examples, micro_batches
from foredraft.train.config import LOSSES
from foredraft.train.divergences import loss_for
from foredraft.train.draft import first_layers, prepare_draft
from foredraft.train.heads import head_of
from foredraft.train.loop import Run
from foredraft.train.losses import DraftLoss
from foredraft.train.packing import collate
from foredraft.train.teacher import Teacher
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_gpt2, tiny_llama

ROWS = [*random_rows(60), *random_rows(6, split="dev", seed=1)]
ALPHA = "eval/T1/alpha_tf"


@pytest.fixture
def target() -> Any:
    return tiny_llama()


@pytest.fixture
def base(tmp_path: Path, target: Any) -> dict[str, Any]:
    """Return the fields of a short run."""
    return {
        "target": "toy",
        "corpus": write_corpus_folder(tmp_path / "corpus", target, ROWS),
        "output": str(tmp_path / "run"),
        "layers": 1,
        "head_tokens": 120,
        "steps": 10,
        "batch_rows": 4,
        "learning_rate": 3e-3,
        "eval_every": 5,
        "save_every": 4,
        "eval_prompts": 0,
        "serving_temperatures": (),
        "report_to": "none",
    }


def run(fields: dict[str, Any], target: Any, **changes: Any) -> DistillResult:
    config = DistillConfig(**{**fields, **changes})
    return distill(config, target=target, tokenizer=byte_tokenizer())


def weights(output: str, name: str = "latest") -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(
        Path(output) / name
    ).state_dict()
    return state


def trace(result: DistillResult, name: str = "train/loss") -> list[float]:
    return [row[name] for row in result.curve if name in row]


def test_a_draft_learns_and_its_best_checkpoint_is_what_the_result_says(
    base: dict[str, Any], target: Any, tmp_path: Path
) -> None:
    """α on held-out rows, recomputed from the reloaded folder, is the α that the run reports."""
    fingerprint = {name: weight.clone() for name, weight in target.state_dict().items()}
    rows = [*random_rows(400), *random_rows(20, split="dev", seed=1)]
    corpus = write_corpus_folder(tmp_path / "large", target, rows)
    result = run(base, target, corpus=corpus, steps=50, batch_rows=16, eval_every=25, keep=1)
    assert result.best[ALPHA] > result.before[ALPHA] + 0.05
    assert result.best[ALPHA] == max(row[ALPHA] for row in result.curve if ALPHA in row)
    assert trace(result)[-1] < 0.7 * trace(result)[0]

    info = DraftInfo.load(result.folder)
    assert info is not None
    assert info.metrics == result.best
    draft = AutoModelForCausalLM.from_pretrained(result.folder).eval()
    kept = load_kept_tokens(result.folder, info)
    assert kept is not None
    cut_head(draft, kept)
    again = evaluate_draft(target, draft, kept, [row for row in rows if row.split == "dev"])
    assert again == pytest.approx(result.best, abs=1e-5)
    assert AutoTokenizer.from_pretrained(result.folder).get_vocab() == byte_tokenizer().get_vocab()

    output = Path(base["output"])
    assert (output / "best").resolve() == result.folder.resolve()
    assert (output / "latest").readlink() == Path("step-000050")
    lines = (output / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.curve
    # B62: the teacher is as it was, and took no gradient.
    assert all(
        torch.equal(weight, fingerprint[name]) for name, weight in target.state_dict().items()
    )
    assert all(weight.grad is None for weight in target.parameters())


def test_metric_names(base: dict[str, Any], target: Any) -> None:
    result = run(base, target, steps=1)
    names = set().union(*result.curve)
    train = {"loss", "kl", "lr", "grad_norm", "tokens"}
    perf = {"tokens_per_s", "teacher_ms", "draft_ms", "peak_mem_gb"}
    evaluation = {"alpha_tf", "alpha_p10", "top1", "kl", "coverage"}
    expected = {f"train/{name}" for name in train} | {f"perf/{name}" for name in perf}
    assert names == expected | {f"eval/T1/{name}" for name in evaluation} | {"step"}
    # as cut, aligned, trained
    assert [row["step"] for row in result.curve if ALPHA in row] == [0, 0, 1]


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_do_not_depend_on_the_micro_batches(name: str) -> None:
    """B58, B61: 1×8, 2×4 and 8×1 rows of unequal lengths, to 1e-5 of the largest gradient."""
    target = tiny_llama()
    teacher = Teacher(target)
    examples = make_examples(random_rows(8), 100).examples
    assert len({example.supervised for example in examples}) > 3
    tokens = sum(example.supervised for example in examples)
    kept = torch.arange(0, 260, 2)
    config = DistillConfig(target="toy", corpus="toy", loss=name, temperature=0.8)
    chosen = loss_for(config)
    found = []
    for size in (8, 4, 1):
        draft = prepare_draft(first_layers(target, 1), kept, config)
        loss = DraftLoss(
            draft.model, teacher.head.rows(kept), chosen.divergence,
            temperature=config.temperature, chunk_tokens=7,
        )  # fmt: skip
        for part in micro_batches(examples, size):
            batch = collate(part, torch.device("cpu"))
            hidden = teacher.hidden(part)
            log_sums = teacher.log_sums(
                part, hidden, chosen.law, kept, chunk_tokens=7, temperature=config.temperature
            )
            (loss(batch, hidden, log_sums)[0] / tokens).backward()
        trained = {name: weight.grad for name, weight in draft.model.named_parameters()}
        assert trained.pop("model.embed_tokens.weight") is None
        assert head_of(draft.model).weight.grad is not None
        # Every other weight has a gradient that is not zero.
        assert all(grad is not None and grad.abs().max() > 0 for grad in trained.values())
        found.append(trained)
    for other in found[1:]:
        for name, grad in found[0].items():
            assert grad is not None
            assert (grad - other[name]).abs().max() < 1e-5 * grad.abs().max(), name


def test_loss_and_rate_do_not_depend_on_accumulation(base: dict[str, Any], target: Any) -> None:
    """B60: as many updates, the same rate at each, and the same losses to 1e-4."""
    base |= {"state_weight": 0.5}
    whole = run(base, target)
    split = run(base, target, micro_rows=1, chunk_tokens=3, output=base["output"] + "-split")
    assert trace(split, "train/states") == pytest.approx(trace(whole, "train/states"), rel=1e-4)
    parts = zip(trace(whole, "train/kl"), trace(whole, "train/states"), strict=True)
    assert trace(whole) == pytest.approx([kl + 0.5 * states for kl, states in parts])
    assert trace(split, "train/lr") == trace(whole, "train/lr")
    assert trace(split) == pytest.approx(trace(whole), rel=1e-4)
    assert trace(split, "train/tokens") == trace(whole, "train/tokens")


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the next run be interrupted when it is about to make step `step` + 1."""
    original = Run.step

    def step_or_stop(self: Run) -> dict[str, float]:
        if self.state.step == step:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(Run, "step", step_or_stop)


@pytest.mark.parametrize("stop", [3, 6])  # before and after the first epoch's end; saved at 4, 5, 8
def test_interrupted_and_resumed_equals_uninterrupted(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stop: int
) -> None:
    """B74, B76: bit for bit on a CPU, though the draft has dropout."""
    target = tiny_gpt2()
    target.config.resid_pdrop = 0.2  # of the draft: the target is in eval mode
    corpus = write_corpus_folder(tmp_path / "short", target, [*ROWS[:17], *ROWS[60:]])
    base |= {"corpus": corpus, "batch_rows": 5, "state_weight": 0.5}
    straight = run(base, target, output=base["output"] + "-straight")
    with monkeypatch.context() as patch:
        interrupt_at(patch, stop)
        with pytest.raises(KeyboardInterrupt):
            run(base, target)
    torch.rand(7)  # the caller's stream is another by now
    resumed = run(base, target)
    assert trace(resumed) == trace(straight)
    assert trace(resumed, "train/lr") == trace(straight, "train/lr")
    assert trace(resumed, "train/tokens") == trace(straight, "train/tokens")
    assert [row["step"] for row in resumed.curve] == [row["step"] for row in straight.curve]
    assert (resumed.before, resumed.best) == (straight.before, straight.best)
    assert resumed.folder.name == straight.folder.name
    expected = weights(base["output"] + "-straight")
    assert all(
        torch.equal(weight, expected[name]) for name, weight in weights(base["output"]).items()
    )
    dropped = run(base, target, output=base["output"] + "-other", seed=1)
    assert trace(dropped) != trace(straight)


def test_a_finished_run_is_not_trained_again(base: dict[str, Any], target: Any) -> None:
    first = run(base, target)
    before = (Path(base["output"]) / "metrics.jsonl").read_text()
    again = run(base, target)
    assert (again.folder, again.best, again.before) == (first.folder, first.best, first.before)
    assert again.curve == first.curve
    assert (Path(base["output"]) / "metrics.jsonl").read_text() == before


def test_another_config_in_the_same_output_is_refused(
    base: dict[str, Any], target: Any, tmp_path: Path
) -> None:
    run(base, target, steps=2)
    with pytest.raises(ValueError, match=r"steps is 3, but the run in .* has 2"):
        run(base, target, steps=3)
    with pytest.raises(ValueError, match="target_fingerprint is "):
        run(base, tiny_llama(seed=1), steps=2)
    other = write_corpus_folder(tmp_path / "other", target, [*ROWS[1:], *random_rows(1, seed=9)])
    with pytest.raises(ValueError, match="corpus_rows is "):
        run(base, target, steps=2, corpus=other)
    # What only says how to compute and show may change, and so may the corpus's place.
    moved = write_corpus_folder(tmp_path / "moved", target, ROWS)
    run(base, target, steps=2, corpus=moved, micro_rows=1, keep=5, run_name="again")
    attempts = yaml.safe_load((Path(base["output"]) / "run.yaml").read_text())["attempts"]
    assert len(attempts) == 2


def test_a_failed_start_does_not_bind_the_output(base: dict[str, Any], target: Any) -> None:
    with pytest.raises(ValueError, match=r"layers must be in \[1, 2\]"):
        run(base, target, layers=7)
    run(base, target, steps=1)


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(
    base: dict[str, Any], target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(base["output"])
    straight = run(base, target, output=base["output"] + "-straight")
    save, calls = torch.save, []

    def full(*args: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 4:  # in the middle of the second checkpoint
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space left"):
            run(base, target)
    assert [path.name for path in output.glob("step-*")] == ["step-000000"]
    assert list(output.glob(".pending*")) == []
    assert (output / "latest").readlink() == Path("step-000000")
    assert weights(base["output"])
    assert trace(run(base, target)) == trace(straight)


def test_leftovers_of_a_killed_process_are_removed(base: dict[str, Any], target: Any) -> None:
    """Killed while writing, while removing, and between a rename and the link."""
    run(base, target, steps=5)
    output = Path(base["output"])
    for name in (".pending-step-000009", ".pending-step-000001"):
        (output / name).mkdir()
        (output / name / "model.safetensors").write_bytes(b"half")
    (output / "latest").unlink()
    (output / "latest").symlink_to("step-000000")
    with (output / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "train/loss": 1.0}\n{"step": 7, "trai')
    result = run(base, target, steps=5)
    assert (output / "latest").readlink() == Path("step-000005")
    assert list(output.glob(".pending*")) == []
    assert max(row["step"] for row in result.curve) == 5
    assert len((output / "metrics.jsonl").read_text().splitlines()) == len(result.curve)


def test_the_newest_checkpoints_and_the_best_are_kept(
    base: dict[str, Any], target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B of report fact 4: the best by α stays, though the loss goes on falling."""
    alphas = iter([0.05, 0.1, 0.5, 0.3, 0.2, 0.1])  # the first before the head is aligned
    original = Run.measure

    def planted(self: Run, progress: Any) -> bool:
        with monkeypatch.context() as patch:
            alpha = next(alphas)
            patch.setattr("foredraft.train.loop.evaluate", lambda *a, **k: {ALPHA: alpha, **REST})
            return original(self, progress)

    monkeypatch.setattr(Run, "measure", planted)
    result = run(base, target, steps=8, eval_every=2, save_every=1, keep=2)
    output = Path(base["output"])
    assert sorted(path.name for path in output.glob("step-*")) == [
        "step-000002", "step-000007", "step-000008",
    ]  # fmt: skip
    assert (result.folder.name, result.best[ALPHA]) == ("step-000002", 0.5)
    assert (output / "best").readlink() == Path("step-000002")


REST = {f"eval/T1/{name}": 0.0 for name in ("top1", "kl", "coverage", "alpha_p10")}


def test_time_runs_out_cleanly(base: dict[str, Any], target: Any) -> None:
    result = run(base, target, steps=100_000, max_seconds=0.5, warmup_ratio=0.0)
    steps = [row["step"] for row in result.curve]
    assert 0 < steps[-1] < 100_000
    assert ALPHA in result.curve[-1]  # evaluated and saved at the end
    assert (Path(base["output"]) / "latest").readlink() == Path(f"step-{steps[-1]:06d}")
    rates = trace(result, "train/lr")
    assert rates == sorted(rates, reverse=True)
    assert run(base, target, steps=100_000, max_seconds=0.5, warmup_ratio=0.0).curve == result.curve


def test_a_loss_that_is_not_finite_stops_the_run(base: dict[str, Any], target: Any) -> None:
    with pytest.raises(FloatingPointError, match="the loss is nan at step 2"):
        run(base, target, learning_rate=1e30, max_grad_norm=1e30, warmup_ratio=0.0)
    assert (Path(base["output"]) / "latest").readlink() == Path("step-000000")


def test_run_yaml_says_what_the_run_was_made_from(base: dict[str, Any], target: Any) -> None:
    run(base, target, steps=1)
    record = yaml.safe_load((Path(base["output"]) / "run.yaml").read_text())
    assert record["config"]["learning_rate"] == 3e-3
    assert DistillConfig(**record["config"]) == DistillConfig(**{**base, "steps": 1})
    assert record["sources"]["train_rows"] == 60
    assert record["sources"]["train_rows_skipped"] == 0
    attempt = record["attempts"][0]
    assert attempt["versions"]["torch"] == torch.__version__
    assert {"argv", "commit", "started", "processes", "corpus_manifest"} <= attempt.keys()


def test_a_corpus_of_another_tokenizer_is_refused(base: dict[str, Any], target: Any) -> None:
    other = byte_tokenizer()
    other.add_tokens(["<more>"])
    with pytest.raises(ValueError, match=r"corpus: .* was written with another tokenizer"):
        distill(DistillConfig(**base), target=target, tokenizer=other)


def test_a_corpus_without_a_supervised_token_is_refused(base: dict[str, Any], target: Any) -> None:
    """B55."""
    with pytest.raises(ValueError, match=r"max_length = 2 leaves none of the .* rows"):
        run({**base, "corpus": _long_prompts(base, target)}, target, max_length=2)


def _long_prompts(base: dict[str, Any], target: Any) -> str:
    rows = [row for row in ROWS if len(row.prompt_ids) >= 2]
    return write_corpus_folder(Path(base["output"] + "-corpus"), target, rows)


def test_a_draft_whose_context_is_too_short_is_refused(
    base: dict[str, Any], target: Any, tmp_path: Path
) -> None:
    tiny_llama(context=8).save_pretrained(tmp_path / "short")
    byte_tokenizer().save_pretrained(tmp_path / "short")
    with pytest.raises(ValueError, match="max_length must be at most 9 for a draft"):
        run(base, target, draft=str(tmp_path / "short"))


def test_a_draft_from_a_folder_is_trained(base: dict[str, Any], tmp_path: Path) -> None:
    """Of another family than the target's, tied, its head whole."""
    target = tiny_gpt2()
    corpus = write_corpus_folder(tmp_path / "gpt2", target, ROWS)
    start = tiny_llama(seed=2, tie_word_embeddings=True, sharpness=1.0)
    start.save_pretrained(tmp_path / "start")
    byte_tokenizer().save_pretrained(tmp_path / "start")
    fields = {**base, "corpus": corpus, "draft": str(tmp_path / "start"), "head_tokens": None}
    result = run(fields, target, steps=3)
    assert trace(result)[-1] < trace(result)[0]
    trained = weights(base["output"])
    assert torch.equal(trained["model.embed_tokens.weight"], start.get_input_embeddings().weight)
    assert not torch.equal(trained["lm_head.weight"], start.get_input_embeddings().weight)


def test_bfloat16_autocast_trains_float32_weights(base: dict[str, Any], target: Any) -> None:
    """B64: a bfloat16 teacher, a float32 draft, evaluation between the steps."""
    AcceleratorState._reset_state()  # accelerate keeps one precision a process
    try:
        exact = run(base, target, head_tokens=None)
        AcceleratorState._reset_state()
        base["output"] += "-bf16"
        low = run(base, target.bfloat16(), head_tokens=None, mixed_precision="bf16")
    finally:
        AcceleratorState._reset_state()
    assert trace(low) == pytest.approx(trace(exact), rel=0.05)
    assert low.best[ALPHA] == pytest.approx(exact.best[ALPHA], abs=0.02)
    assert {weight.dtype for weight in weights(base["output"]).values()} == {torch.float32}


def test_one_minus_alpha_as_the_loss_is_the_alpha_that_is_measured(
    base: dict[str, Any], target: Any
) -> None:
    """The first loss of "tv" on all rows is 1 − α of the draft that it starts from, cut head and all."""
    result = run(base, target, loss="tv", steps=1, eval_every=1, batch_rows=60)
    loss = next(row["train/tv"] for row in result.curve if "train/tv" in row)
    start = Path(base["output"]) / "step-000000"
    info = DraftInfo.load(start)
    assert info is not None
    kept = load_kept_tokens(start, info)
    draft = AutoModelForCausalLM.from_pretrained(start)
    assert kept is not None
    cut_head(draft, kept)
    rows = [row for row in ROWS if row.split == "train"]
    assert evaluate_draft(target, draft, kept, rows)[ALPHA] == pytest.approx(1 - loss, abs=1e-5)


def test_cross_entropy_counts_the_positions_whose_argmax_was_cut(
    base: dict[str, Any], target: Any
) -> None:
    """Its first mean over all rows, from the models' own logits: 0 where the argmax cannot be proposed."""
    result = run(base, target, loss="ce", steps=1, eval_every=1, batch_rows=60, temperature=0.8)
    start = Path(base["output"]) / "step-000000"
    info = DraftInfo.load(start)
    assert info is not None
    kept = load_kept_tokens(start, info)
    assert kept is not None
    draft = AutoModelForCausalLM.from_pretrained(start)
    losses = []
    for row in (row for row in ROWS if row.split == "train"):
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        at = slice(len(row.prompt_ids) - 1, ids.shape[1] - 1)
        with torch.no_grad():
            best = target(ids).logits[0, at].argmax(-1)
            log_q = (draft(ids).logits[0, at][:, kept] / 0.8).log_softmax(-1)
        found = (best[:, None] == kept).double()  # [n, V_draft], a row of zeros where it was cut
        losses.append(-(found * log_q).sum(-1))
    expected = torch.cat(losses)
    assert 0.1 < (expected == 0).double().mean() < 0.9
    loss = next(row["train/ce"] for row in result.curve if "train/ce" in row)
    assert loss == pytest.approx(expected.mean().item(), rel=1e-5)
