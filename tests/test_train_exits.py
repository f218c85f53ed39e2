"""Exits: what is trained believes more, is what the loop drafts with, and is bound to its target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.cli.machine import describe_draft
from foredraft.cli.main import main
from foredraft.data import read_corpus
from foredraft.spec import (
    DraftInfo,
    SamplingParams,
    SelfDrafter,
    SpeculativeDecoder,
    foredraft_generate,
)
from foredraft.spec.exit_adapter import ExitAdapter
from foredraft.spec.exit_folder import load_exit, save_exit
from foredraft.train import ExitConfig, evaluate_draft, train_exit
from toy_corpus import corpus_row, write_corpus_folder
from toys import byte_tokenizer, greedy, tiny_llama


@pytest.fixture(scope="module")
def target() -> Any:
    """Its later layers mostly turn the states, so that an exit needs a map."""
    model = tiny_llama(layers=3, sharpness=2.0)
    for layer in model.model.layers[1:]:
        torch.nn.init.normal_(layer.self_attn.o_proj.weight, std=0.02)
    torch.nn.init.normal_(model.model.layers[2].mlp.down_proj.weight, std=0.5)
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def corpus(target: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the target itself says."""
    decoder = SpeculativeDecoder(target)
    rows = []
    for index in range(30):
        prompt = [index, 3 * index + 1]
        params = SamplingParams(max_tokens=20, seed=index)
        [output] = decoder.generate([prompt], params)
        split = "dev" if index % 5 == 0 else "train"
        rows.append(corpus_row(f"row-{index:03d}", prompt, output.token_ids, split=split))
    folder = tmp_path_factory.mktemp("exits") / "corpus"
    return write_corpus_folder(folder, target, rows)


def config_of(corpus: str, output: Path, **settings: Any) -> ExitConfig:
    return ExitConfig(
        target="toy", corpus=corpus, output=str(output), layer=1, head_tokens=None,
        batch_tokens=128, eval_every=20, **settings,
    )  # fmt: skip


def test_training_pays_and_the_loop_drafts_with_what_was_trained(
    target: Any, corpus: str, tmp_path: Path
) -> None:
    config = config_of(corpus, tmp_path / "exit", steps=80, hidden=16, learning_rate=5e-3)
    result = train_exit(config, target=target, tokenizer=byte_tokenizer())
    assert result.alpha > result.aligned > 1.2 * result.untrained
    assert result.bytes == 4 * (32 * 32 + 32 + 2 * 16 * 32 + 16)

    info = DraftInfo.load(result.folder)
    assert info is not None
    assert (info.exit_layer, info.metrics["eval/T1/alpha_tf"]) == (1, result.alpha)
    adapter = load_exit(result.folder, info, target)
    drafter = SelfDrafter(target, 1, width=260, adapter=adapter)
    rows = read_corpus(corpus, split="dev", complete_only=False)
    # As a model of its own, adapter included, it has the α that the training measured beside it.
    for part, alpha in (
        (drafter, result.alpha),
        (SelfDrafter(target, 1, width=260), result.untrained),
    ):
        metrics = evaluate_draft(target, part.cached.model, None, rows)
        assert metrics["eval/T1/alpha_tf"] == pytest.approx(alpha, abs=1e-4)
    stats = []
    for one in (drafter, SelfDrafter(target, 1, width=260)):
        decoder = SpeculativeDecoder(target, None, one)
        outputs = decoder.generate([row.prompt_ids for row in rows], greedy(max_tokens=24))
        assert [output.token_ids for output in outputs] == [
            output.token_ids
            for output in SpeculativeDecoder(target).generate(
                [row.prompt_ids for row in rows], greedy(max_tokens=24)
            )
        ]
        stats.append(sum(output.stats.accepted for output in outputs))
    assert stats[0] > stats[1]


def test_every_law_of_a_loss_is_taken_and_time_ends_it(
    target: Any, corpus: str, tmp_path: Path
) -> None:
    for loss in ("tv", "ce"):
        config = config_of(corpus, tmp_path / loss, steps=20, loss=loss, train_rows=10)
        result = train_exit(config, target=target, tokenizer=byte_tokenizer())
        assert result.alpha >= result.aligned
    config = config_of(corpus, tmp_path / "short", steps=10**6, max_seconds=1e-6)
    result = train_exit(config, target=target, tokenizer=byte_tokenizer())
    assert result.seconds < 5
    again = train_exit(config, target=target, tokenizer=byte_tokenizer())
    assert (again.aligned, again.alpha) == (result.aligned, result.alpha)


def test_a_decoder_and_the_drop_in_take_a_folder(target: Any, corpus: str, tmp_path: Path) -> None:
    name = str(tmp_path / "target")
    target.save_pretrained(name)
    byte_tokenizer().save_pretrained(name)
    folder = str(tmp_path / "exit")
    command = [
        "--target",
        name,
        "--corpus",
        corpus,
        "--layer",
        "2",
        "--output",
        folder,
        "--steps",
        "0",
    ]
    assert main(["train-exit", *command]) == 0
    decoder = SpeculativeDecoder.from_pretrained(name, draft=folder, lookahead=3)
    assert isinstance(decoder.drafter, SelfDrafter)
    assert describe_draft(decoder.drafter, folder).layers == 2
    expected = target.generate(torch.tensor([[5, 9]]), max_new_tokens=16, do_sample=False)[0, 2:]
    [output] = decoder.generate([[5, 9]], greedy(max_tokens=16))
    assert output.token_ids == expected.tolist()
    assert output.stats.drafted > 0
    ours = foredraft_generate(folder, 3)
    whole = target.generate(
        torch.tensor([[5, 9]]), max_new_tokens=16, do_sample=False, custom_generate=ours
    )
    assert whole[0, 2:].tolist() == expected.tolist()
    assert ours.stats[0].gammas == output.stats.gammas


def test_a_folder_of_another_target_or_without_its_adapter_is_refused(
    target: Any, tmp_path: Path
) -> None:
    info = DraftInfo(target="a", target_fingerprint="f", tokenizer_hash="h", exit_layer=1)
    save_exit(tmp_path, ExitAdapter(32), info)
    with pytest.raises(
        ValueError, match=r"made for a \(fingerprint f\), the target's fingerprint is"
    ):
        load_exit(tmp_path, info, target)
    save_exit(tmp_path, ExitAdapter(16), info)
    with pytest.raises(ValueError, match="of a target with states of 16, the target's are 32"):
        load_exit(tmp_path, info, target)
    (tmp_path / "adapter.safetensors").unlink()
    with pytest.raises(ValueError, match=r"missing, but foredraft\.json says exit_layer = 1"):
        load_exit(tmp_path, info, target)


def test_bad_settings_are_named() -> None:
    for settings, message in (
        ({"layer": 0}, "layer must be an integer >= 1, got 0"),
        ({"steps": -1}, "steps must be an integer >= 0, got -1"),
        ({"train_rows": 0}, "train_rows must be >= 1, got 0"),
        ({"loss": "no"}, "loss"),
    ):
        with pytest.raises(ValueError, match=message):
            ExitConfig(**({"target": "t", "corpus": "c", "layer": 1} | settings))  # type: ignore[arg-type]
