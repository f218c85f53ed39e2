"""What an evaluation finds in the real loop: τ is the decoder's, and may pick the best checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.spec import (
    FixedLookahead,
    ModelDrafter,
    SamplingParams,
    SpeculativeDecoder,
    load_drafter,
)
from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.in_loop import LoopProbe, decode_answer, loop_metrics
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, noisy_copy, tiny_gpt2, tiny_llama

ROWS = [*random_rows(30), *random_rows(6, split="dev", seed=1)]
GAMMA, TOKENS = 3, 8


@pytest.fixture
def target() -> Any:
    return tiny_llama()


def run(target: Any, folder: Path, name: str = "run", **changes: Any) -> DistillResult:
    corpus = folder / "corpus"
    if not corpus.exists():
        write_corpus_folder(corpus, target, ROWS)
    fields: dict[str, Any] = {
        "target": "toy", "corpus": str(corpus), "output": str(folder / name), "layers": 1,
        "head_tokens": 120, "steps": 4, "batch_rows": 4, "learning_rate": 3e-3, "eval_every": 2,
        "eval_prompts": 3, "eval_gamma": GAMMA, "eval_max_tokens": TOKENS,
        "serving_temperatures": (), "report_to": "none",
    }  # fmt: skip
    config = DistillConfig(**{**fields, **changes})
    return distill(config, target=target, tokenizer=byte_tokenizer())


def losses(result: DistillResult) -> list[float]:
    return [row["train/loss"] for row in result.curve if "train/loss" in row]


def test_tau_is_that_of_the_saved_checkpoint_in_the_decoder(target: Any, tmp_path: Path) -> None:
    """The folder, loaded as a user does, takes as many target forwards for the same prompts."""
    result = run(target, tmp_path)
    drafter = load_drafter(str(result.folder), byte_tokenizer(), width=260)
    decoder = SpeculativeDecoder(target, byte_tokenizer(), drafter, FixedLookahead(GAMMA))
    rows = sorted((row for row in ROWS if row.split == "dev"), key=lambda row: row.id)[:3]
    total = {}
    for heat in (0.0, 1.0):
        emitted = rounds = 0
        for index, row in enumerate(rows):
            params = SamplingParams(temperature=heat, max_tokens=TOKENS, seed=index)
            stats = decoder.generate([row.prompt_ids], params)[0].stats
            emitted, rounds = emitted + stats.emitted, rounds + stats.rounds
        assert result.best[f"eval/T{heat:g}/tau@{GAMMA}"] == pytest.approx(emitted / rounds)
        total[heat] = (emitted, rounds)
    together = [sum(pair) for pair in zip(*total.values(), strict=True)]
    assert result.best["eval/tau"] == pytest.approx(together[0] / together[1])
    assert result.best["eval/tau"] > 1.0


def test_looking_into_the_loop_changes_nothing_of_the_training(tmp_path: Path) -> None:
    """Not with dropout either: its draws and the loop's are not of one stream."""
    target = tiny_gpt2()
    target.config.resid_pdrop = 0.2  # of the draft: the target is in eval mode
    seeing, blind = (run(target, tmp_path, f"{n}", eval_prompts=n, steps=2) for n in (1, 0))
    assert losses(seeing) == losses(blind)
    assert "eval/tau" not in blind.best


@pytest.mark.parametrize(("best_by", "folder"), [("tau", "step-000002"), ("alpha", "step-000004")])
def test_the_best_checkpoint_is_that_of_the_metric_that_was_asked_for(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best_by: str, folder: str
) -> None:
    """Report fact 4: τ falls from step 2 to 4 though α rises."""
    taus, alphas = iter([1.2, 1.3, 2.0, 1.5]), iter([0.1, 0.2, 0.3, 0.4])
    monkeypatch.setattr(LoopProbe, "measure", lambda self: {"eval/tau": next(taus)})
    names = ("top1", "kl", "coverage", "alpha_p10")

    def planted(*args: Any, **options: Any) -> dict[str, float]:
        return {f"eval/T1/{name}": 0.0 for name in names} | {"eval/T1/alpha_tf": next(alphas)}

    monkeypatch.setattr("foredraft.train.loop.evaluate", planted)
    result = run(target, tmp_path, best_by=best_by)
    assert result.folder.name == folder
    assert (tmp_path / "run" / "best").readlink() == Path(folder)


def test_an_answers_tokens_are_told_apart_by_how_they_came(target: Any) -> None:
    """Fates add up to the rounds: each has one token at most that no draft proposed."""
    drafter = ModelDrafter(noisy_copy(target, scale=0.05), width=260)
    decoder = SpeculativeDecoder(target, byte_tokenizer(), drafter)
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=1)
    answer = decode_answer(decoder, 0, [1, 2, 3], gamma=GAMMA, params=params)
    plain = decoder.with_lookahead(FixedLookahead(GAMMA)).generate([[1, 2, 3]], params)[0]
    assert answer.tokens == plain.token_ids
    stats = answer.stats
    assert stats.discarded == 0
    accepted, corrected = answer.fates.count("accepted"), answer.fates.count("corrected")
    assert (accepted, accepted + corrected) == (stats.accepted, stats.tested)
    assert len(answer.fates) - accepted == stats.rounds
    assert len({*answer.fates}) == 3


def test_acceptance_by_depth_is_the_draft_and_target_at_that_depth(target: Any) -> None:
    """A draft that is the target is accepted at every depth; τ is γ + 1 but for the last round."""
    decoder = SpeculativeDecoder(target, byte_tokenizer(), ModelDrafter(target, width=260))
    params = [SamplingParams(temperature=heat, max_tokens=1 + 4 * 5) for heat in (0.0, 0.5)]
    answers = [decode_answer(decoder, 0, [1, 2], gamma=3, params=one) for one in params]
    metrics = loop_metrics(answers, 3)
    for heat in ("T0", "T0.5"):
        for name in ("alpha_loop", "accept_pos/1", "accept_pos/2", "accept_pos/3"):
            assert metrics[f"eval/{heat}/{name}"] == pytest.approx(1.0, abs=1e-5)
        assert metrics[f"eval/{heat}/tau@3"] == pytest.approx(21 / 6)
    assert metrics["eval/tau"] == pytest.approx(21 / 6)


def test_where_no_draft_is_ever_right_tau_is_one(target: Any) -> None:
    wrong = noisy_copy(target, scale=0.0)
    with torch.no_grad():
        wrong.get_output_embeddings().weight.neg_()
    decoder = SpeculativeDecoder(target, byte_tokenizer(), ModelDrafter(wrong, width=260))
    params = SamplingParams(temperature=0.0, max_tokens=9)
    metrics = loop_metrics([decode_answer(decoder, 0, [5], gamma=2, params=params)], 2)
    assert metrics["eval/tau"] == 1.0
    assert metrics["eval/T0/accept_pos/1"] == 0.0
    assert "eval/T0/accept_pos/2" not in metrics  # never tested
