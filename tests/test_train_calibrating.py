"""Draft temperatures: found on held-out text, never worse than none, drawn from by the loop."""

from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.cli.calibrating import run_calibrate
from foredraft.cli.config import CalibrateCommand
from foredraft.spec import DraftInfo, cut_head, load_drafter
from foredraft.spec.draft_temperature import DraftTemperature
from foredraft.train import DistillConfig, distill
from foredraft.train.batches import Example, make_examples
from foredraft.train.calibrating import FACTORS, IDENTITY, alpha_sums, calibrate, judged
from foredraft.train.evaluation import alphas_of
from foredraft.train.teacher import Teacher
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, noisy_copy, tiny_llama

HEATS = (0.5, 1.0)
KEPT = torch.arange(0, 260, 2)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def rows() -> list[Example]:
    return make_examples(random_rows(12, seed=4), 100).examples


def hotter(target: Any, sharpness: float) -> Any:
    """Return the target with its logits multiplied: right in order, wrong in how sure it is."""
    draft = noisy_copy(target, scale=0.0)
    with torch.no_grad():
        draft.get_output_embeddings().weight.mul_(sharpness)
    return draft


@pytest.mark.parametrize("factor", [0.6, 1.25])
def test_the_temperature_a_draft_is_off_by_is_found(
    target: Any, rows: list[Example], factor: float
) -> None:
    for one in calibrate(Teacher(target), hotter(target, factor), None, rows, HEATS):
        assert one.factor == pytest.approx(factor)
        assert one.alpha_calibrated == pytest.approx(1.0, abs=1e-5)
        assert one.alpha < 0.98


def test_a_draft_that_is_right_is_left_alone(target: Any, rows: list[Example]) -> None:
    for one in calibrate(Teacher(target), target, None, rows, HEATS):
        assert (one.factor, one.alpha_calibrated) == (1.0, one.alpha)


@pytest.mark.parametrize("kept", [None, KEPT])
def test_alpha_is_never_lower_and_is_the_alpha_that_training_measures(
    target: Any, rows: list[Example], kept: torch.Tensor | None
) -> None:
    """Against the whole vocabulary of the target, where the head is cut too."""
    teacher, draft = Teacher(target), noisy_copy(target, scale=0.3)
    if kept is not None:
        cut_head(draft, kept)
    sums = alpha_sums(teacher, draft, kept, rows, HEATS)  # [rows, T, F]
    for place in (0, IDENTITY):
        expected = alphas_of(teacher, draft, kept, rows, FACTORS[place])
        got = sums[:, HEATS.index(1.0), place]
        assert got.tolist() == pytest.approx([float(row.sum()) for row in expected], abs=1e-3)
    for index, one in enumerate(calibrate(teacher, draft, kept, rows, HEATS)):
        whole = sums[:, index].sum(0)
        assert whole[FACTORS.index(one.factor)] >= whole[IDENTITY]
        assert one.alpha_calibrated >= one.alpha


def test_a_gain_that_one_half_of_the_rows_does_not_confirm_is_not_taken() -> None:
    """Row 0 is best at the first factor and row 1 loses more by it than row 0 gains by its own."""
    sums = torch.ones(2, len(FACTORS), dtype=torch.float64)
    sums[0, 0], sums[1, 0] = 5.0, 0.5
    sums[1, -1] = 1.5
    sums[0, -1] = 0.0
    found = judged(1.0, sums, 10)
    assert (found.factor, found.alpha, found.alpha_calibrated) == (1.0, 0.2, 0.2)


def test_one_row_alone_confirms_nothing() -> None:
    sums = torch.ones(1, len(FACTORS), dtype=torch.float64)
    sums[0, 3] = 2.0
    assert judged(1.0, sums, 4).factor == 1.0


def test_factors_between_and_beyond_the_table() -> None:
    table = DraftTemperature(((0.5, 0.8), (1.0, 0.9)))
    found = [table.factor(heat) for heat in (0.5, 0.75, 1.0, 0.4, 1.1, 0.0)]
    assert found == pytest.approx([0.8, 0.85, 0.9, 1.0, 1.0, 1.0])
    assert DraftTemperature(otherwise=0.7).factor(0.3) == 0.7
    for bad in ([(1.0, 0.9), (0.5, 0.8)], [(0.0, 1.0)], [(1.0, 0.0)]):
        with pytest.raises(ValueError, match="draft temperatures must be pairs"):
            DraftTemperature(tuple(bad))


def test_training_ends_with_a_table_that_the_drafter_draws_by(target: Any, tmp_path: Path) -> None:
    corpus_rows = [*random_rows(12), *random_rows(6, split="dev", seed=1)]
    fields: dict[str, Any] = {
        "target": "toy", "corpus": write_corpus_folder(tmp_path / "corpus", target, corpus_rows),
        "output": str(tmp_path / "run"), "layers": 1, "head_tokens": 120, "steps": 2,
        "batch_rows": 4, "eval_prompts": 0, "serving_temperatures": (1.0, 0.5), "report_to": "none",
    }  # fmt: skip
    result = distill(DistillConfig(**fields), target=target, tokenizer=byte_tokenizer())
    info = DraftInfo.load(result.folder)
    assert info is not None
    assert [heat for heat, _ in info.draft_temperatures] == [0.5, 1.0]
    logged = result.curve[-1]
    for heat, factor in info.draft_temperatures:
        assert logged[f"eval/T{heat:g}/draft_temp_star"] == factor
    assert logged["eval/T1/alpha_calibrated"] >= result.best["eval/T1/alpha_tf"] - 1e-6
    drafter = load_drafter(str(result.folder), byte_tokenizer(), width=260)
    assert drafter.temperature.table == info.draft_temperatures
    again = distill(DistillConfig(**fields), target=target, tokenizer=byte_tokenizer())
    assert again.curve == result.curve  # it is not done twice


def test_the_command_calibrates_a_folder(
    target: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from foredraft.spec import tokenizer_hash
    from foredraft.train.held_out import save_held_out

    for name, model in (("target", target), ("draft", hotter(target, 0.6))):
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    draft = str(tmp_path / "draft")
    command = CalibrateCommand(draft=draft, target=str(tmp_path / "target"), temperatures=(0.7,))
    with pytest.raises(ValueError, match=r"it has no foredraft\.json"):
        run_calibrate(command)
    info = DraftInfo(
        target="toy", target_fingerprint="", tokenizer_hash=tokenizer_hash(byte_tokenizer())
    )
    info.save(draft)
    with pytest.raises(ValueError, match="there are no held-out rows"):
        run_calibrate(command)
    save_held_out(draft, make_examples(random_rows(4), 100).examples)
    run_calibrate(command)
    assert "temperature 0.7: the draft draws at 0.42 (× 0.6)" in capsys.readouterr().out
    found = DraftInfo.load(draft)
    assert found is not None
    assert found.draft_temperatures == ((0.7, 0.6),)
