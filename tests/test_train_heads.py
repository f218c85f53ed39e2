"""Heads: α in training is α in the loop, training pays and runs no target body, a folder knows its target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_spec_heads import shaken

from foredraft.cli.machine import describe_draft
from foredraft.cli.main import main
from foredraft.data.states import StateWriter
from foredraft.spec import (
    DraftInfo,
    EagleHead,
    FixedLookahead,
    HeadDrafter,
    MedusaHeads,
    SamplingParams,
    SpeculativeDecoder,
    TokenLaw,
    acceptance_prob,
    foredraft_generate,
    with_heads,
)
from foredraft.spec.head_folder import find_head_drafter, load_heads, save_heads
from foredraft.spec.one_hot import dense
from foredraft.train import HeadConfig, train_heads
from foredraft.train.batches import Example
from foredraft.train.divergences import loss_for
from foredraft.train.head_judging import Judge
from foredraft.train.head_states import EagleTrainer, HeadTrainer, MedusaTrainer
from foredraft.train.head_training import accepted_tokens, last_turn
from foredraft.train.heads import hidden_states
from foredraft.train.teacher import Teacher
from toy_corpus import corpus_row, write_corpus_folder
from toys import byte_tokenizer, greedy, tiny_llama

V = 16


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(vocabulary=V, layers=2, sharpness=2.0).requires_grad_(False)


@pytest.fixture(scope="module")
def corpus(target: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Text with a rule, and the states that a corpus keeps: those of the response."""
    rows = []
    for index in range(60):
        text = [(5 * index) % V]
        while len(text) < 25:
            text.append((5 * text[-1] + (index if len(text) % 3 == 0 else 3)) % V)
        split = "dev" if index % 5 == 0 else "train"
        rows.append(corpus_row(f"row-{index:03d}", [index % V, 7], text, split=split))
    folder = tmp_path_factory.mktemp("heads") / "corpus"
    write_corpus_folder(folder, target, rows)
    with StateWriter(folder) as writer:
        for row in rows:
            ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
            states = hidden_states(target, ids)[0]
            writer.add(row.id, states[len(row.prompt_ids) - 1 : -1])
    return str(folder)


def config_of(corpus: str, output: Path, **settings: Any) -> HeadConfig:
    return HeadConfig(
        **(
            {
                "target": "toy", "corpus": corpus, "output": str(output), "head_tokens": None,
                "steps": 30, "eval_every": 15, "learning_rate": 3e-3,
            }
            | settings
        )
    )  # fmt: skip


class Forced:
    """Draws that follow a text, whatever the law."""

    def __init__(self, text: list[int], allowed: list[int]) -> None:
        self.text, self.allowed = text, allowed

    def token(self, probs: torch.Tensor) -> int:
        token = self.text.pop(0)
        return self.allowed.index(token) if len(probs) == len(self.allowed) else token

    def accepts(self, probability: float) -> bool:
        raise AssertionError("nothing is verified here")


@pytest.mark.parametrize("kept", [None, [0, 1, 3, 4, 5, 7, 8, 11, 12, 15]])
@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_alpha_in_training_is_alpha_in_the_loop_at_each_depth(
    target: Any, kind: str, kept: list[int] | None
) -> None:
    depths, prompt, length = 3, 4, 14
    columns = None if kept is None else torch.tensor(kept)
    allowed = kept or list(range(V))
    generator = torch.Generator().manual_seed(2)
    picks = torch.randint(len(allowed), (2, length), generator=generator).tolist()
    texts = [[allowed[pick] for pick in row] for row in picks]
    texts[1] = texts[1][:-3]  # so that one is padded
    trainer: HeadTrainer
    trainer = EagleTrainer(target, depths) if kind == "eagle" else MedusaTrainer(target, depths)
    shaken(trainer.heads)
    examples = [Example(torch.tensor(text), len(text) - prompt) for text in texts]
    loss = loss_for(config_of("c", Path("o")).distilling())
    found = Judge(Teacher(target, width=V), trainer, columns, loss).acceptance(examples)

    part = with_heads(target, trainer.heads, columns)
    drafter = HeadDrafter(target, part, width=V, kept=columns)
    expected: list[list[float]] = [[] for _ in range(depths)]
    for text in texts:
        with torch.no_grad():
            p = target(input_ids=torch.tensor([text])).logits[0].softmax(-1)  # [T, V]
        drafter.target.start(text[:prompt], length + depths)
        drafter.reset(length + depths)
        for committed in range(prompt, len(text)):
            tokens = text[:committed]
            if committed > prompt:
                drafter.target.advance([text[committed - 2]])
            law = TokenLaw(
                SamplingParams(), tokens, width=V, eos_token_ids=(), device=torch.device("cpu")
            )
            draws = Forced([*text[committed:], *([0] * depths)], allowed)
            proposal = drafter.propose(tokens, depths, FixedLookahead(depths), law, draws)
            drafter.roll_back(committed)
            q = dense(proposal.probs)
            if kind == "medusa" and committed == prompt:
                continue  # reads the state before the prompt's last token, which no corpus keeps
            for depth in range(min(depths, len(text) - committed)):
                alpha = acceptance_prob(p[committed + depth - 1][None], q[depth][None])
                expected[depth].append(float(alpha))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tolist() == pytest.approx(theirs, abs=1e-5)
        assert 0.05 < ours.mean() < 0.95


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_training_pays_and_is_done_on_kept_states(
    target: Any, corpus: str, tmp_path: Path, kind: str
) -> None:
    fed: list[int] = []
    hook = target.model.layers[1].register_forward_pre_hook(
        lambda _, args: fed.append(args[0].shape[1])
    )
    seen: list[int] = []
    result = train_heads(
        config_of(corpus, tmp_path / "h", kind=kind, head_tokens=V - 1),
        target=target,
        tokenizer=byte_tokenizer(),
        progress=lambda steps, seconds, alphas: seen.append(steps),
    )
    hook.remove()
    assert fed == [26] * len(fed)
    assert len(fed) == 3  # the check of one row
    assert seen == [0, 15, 30]
    assert accepted_tokens(result.alphas) > 1.02 * accepted_tokens(result.start)

    info = DraftInfo.load(result.folder)
    assert info is not None
    assert (info.heads, info.kept_tokens) == (kind, V - 1)
    assert info.metrics["eval/T1/alpha_tf_3"] == result.alphas[2]
    drafter = find_head_drafter(str(result.folder), target, byte_tokenizer(), width=V)
    assert drafter is not None
    assert describe_draft(drafter, "f").head_tokens == V - 1
    stored = load_file(result.folder / "heads.safetensors")
    assert sum(each.nbytes for each in stored.values()) == result.bytes
    if kind == "eagle":  # nothing of the target's own: one layer and two maps
        layer = sum(weight.numel() for weight in target.model.layers[0].parameters())
        assert result.bytes == 4 * (layer + 2 * (2 * 32 * 32 + 32))
    # In the folder is what was measured.
    again = EagleTrainer(target, 3) if kind == "eagle" else MedusaTrainer(target, 3)
    again.heads.load_state_dict(stored)
    rows = [
        Example(torch.tensor([*row.prompt_ids, *row.response_ids]), len(row.response_ids))
        for row in sorted(read_dev(corpus), key=lambda row: row.id)
    ]
    teacher = Teacher(target, width=V)
    loss = loss_for(config_of(corpus, tmp_path).distilling())
    alphas = Judge(teacher, again, drafter.kept, loss).alphas(rows, 8)
    assert alphas == pytest.approx(result.alphas, abs=1e-5)


def read_dev(corpus: str) -> Any:
    from foredraft.data import read_corpus

    return read_corpus(corpus, split="dev", complete_only=False)


def test_the_command_and_the_decoder_and_the_drop_in_take_it_by_folder(
    target: Any, corpus: str, tmp_path: Path
) -> None:
    name, folder = str(tmp_path / "target"), str(tmp_path / "h")
    target.save_pretrained(name)
    byte_tokenizer().save_pretrained(name)
    command = ["--target", name, "--corpus", corpus, "--output", folder, "--steps", "1"]
    assert main(["train-head", *command, "--loss", "tv", "--batch_rows", "3"]) == 0
    expected = target.generate(torch.tensor([[5, 9]]), max_new_tokens=16, do_sample=False)[0, 2:]
    decoder = SpeculativeDecoder.from_pretrained(name, draft=folder, lookahead=3)
    assert repr(decoder.drafter) == "HeadDrafter(eagle)"
    [output] = decoder.generate([[5, 9]], greedy(max_tokens=16))
    assert output.token_ids == expected.tolist()
    assert output.stats.drafted > 0
    ours = foredraft_generate(folder, 3)
    whole = target.generate(
        torch.tensor([[5, 9]]), max_new_tokens=16, do_sample=False, custom_generate=ours
    )
    assert whole[0, 2:].tolist() == expected.tolist()
    assert ours.stats[0].gammas == output.stats.gammas


def test_a_folder_of_another_target_or_tokenizer_is_refused(target: Any, tmp_path: Path) -> None:
    info = DraftInfo(target="a", target_fingerprint="f", tokenizer_hash="h", heads="medusa")
    save_heads(tmp_path, MedusaHeads(target, 2), info, None)
    for change, tokenizer, message in (
        ({}, byte_tokenizer(), "made for a tokenizer of hash h, the target's has "),
        ({}, None, r"made for a \(fingerprint f\), the target's fingerprint is"),
        ({"heads": "hydra"}, None, "heads must be one of eagle, medusa, got 'hydra'"),
    ):
        with pytest.raises(ValueError, match=message):
            load_heads(tmp_path, replace(info, **change), target, tokenizer)  # type: ignore[arg-type]
    half = tiny_llama(vocabulary=V, layers=1, hidden_size=16).bfloat16()
    with pytest.raises(ValueError, match="not heads for LlamaForCausalLM"):
        load_heads(tmp_path, info, half)
    (tmp_path / "heads.safetensors").unlink()
    with pytest.raises(ValueError, match=r"missing, but foredraft\.json says heads = medusa"):
        load_heads(tmp_path, info, target)


def test_of_a_conversation_the_last_turn_is_learned() -> None:
    turns = Example(torch.arange(10), 4, "row", ((2, 4), (7, 9)))
    last = last_turn(turns)
    assert last.predicted.tolist() == [7, 8]
    assert len(last.tokens) == 9
    assert last.row_id == ""


def test_an_eagle_head_starts_as_the_targets_first_layer() -> None:
    model = tiny_llama(vocabulary=V, layers=1)
    trainer = EagleTrainer(model, 3)
    assert isinstance(trainer.heads, EagleHead)
    example = Example(torch.tensor([1, 5, 2, 9, 4, 4, 8]), 5)
    loss = loss_for(config_of("c", Path("o")).distilling())
    found = Judge(Teacher(model, width=V), trainer, None, loss).acceptance([example])
    for depth, alphas in enumerate(found, start=1):
        assert alphas.tolist() == pytest.approx([1.0] * (6 - depth), abs=1e-5)


def test_bad_settings_are_named() -> None:
    for settings, message in (
        ({"kind": "hydra"}, "kind must be one of eagle, medusa, got 'hydra'"),
        ({"depth": 0}, "depth must be an integer >= 1, got 0"),
        ({"depth_decay": 0.0}, r"depth_decay must be in \(0, 1\], got 0.0"),
        ({"state_weight": -1.0}, "state_weight must be at least 0, got -1.0"),
        ({"loss": "no"}, "loss"),
    ):
        with pytest.raises(ValueError, match=message):
            HeadConfig(**({"target": "t", "corpus": "c"} | settings))
