"""A reduced vocabulary through the whole of its life: trained, moved, loaded, decoded with."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foredraft.spec import (
    DraftInfo,
    FixedLookahead,
    SpeculativeDecoder,
    load_drafter,
    save_kept_tokens,
)
from foredraft.train import DistillConfig
from foredraft.train.checkpoint import TrainerState, save_checkpoint
from foredraft.train.draft import first_layers, prepare_draft
from toys import byte_tokenizer, greedy, tiny_llama

KEPT = torch.cat([torch.arange(0, 252, 4), torch.tensor([257])])  # 64 of 260, the end among them


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return the folder of a draft with all of the target's layers and a cut head, moved after saving."""
    config = DistillConfig(target="toy", corpus="toy")
    draft = prepare_draft(first_layers(tiny_llama(), 2), KEPT, config)
    info = DraftInfo(
        target="toy", target_fingerprint="f", tokenizer_hash="t", kept_tokens=len(KEPT)
    )
    rng = [[torch.get_rng_state()]]
    save_checkpoint(tmp_path, draft, byte_tokenizer(), info, TrainerState(), {}, rng, keep=1)
    return Path(shutil.move(tmp_path / "step-000000", tmp_path / "moved"))


def decoder(draft: Path | None) -> SpeculativeDecoder:
    tokenizer = byte_tokenizer()
    drafter = None if draft is None else load_drafter(str(draft), tokenizer, width=260)
    return SpeculativeDecoder(tiny_llama(), tokenizer, drafter, FixedLookahead(4))


def test_b84_a_moved_draft_accepts_what_is_kept_and_nothing_else(saved: Path) -> None:
    """With all layers it is the target on the kept tokens: whatever it is denied, the target would not say."""
    for prompt in ("a", "bc", "zz"):
        plain = decoder(None).generate([prompt], greedy(max_tokens=24))[0]
        fast = decoder(saved).generate([prompt], greedy(max_tokens=24))[0]
        assert fast.token_ids == plain.token_ids, "ids outside the map have q = 0, and are said"
        assert not set(plain.token_ids) <= set(KEPT.tolist())
        assert fast.stats.accepted > 0


def test_b84_the_map_travels_inside_the_checkpoint_and_is_not_guessed(saved: Path) -> None:
    path = saved / "draft_vocabulary.safetensors"
    assert torch.equal(load_file(path)["kept"], KEPT)
    path.unlink()
    with pytest.raises(ValueError, match=r"missing, but foredraft\.json says kept_tokens = 64"):
        decoder(saved)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (KEPT[:-1], "expected 64 ascending token ids"),
        (KEPT.flip(0), "expected 64 ascending token ids"),
        (KEPT + 10, r"must lie in \[0, 260\)"),
    ],
    ids=["too few", "permuted", "outside"],
)
def test_b84_a_map_that_does_not_fit_is_an_error(saved: Path, kept: Any, words: str) -> None:
    save_kept_tokens(saved, kept)
    with pytest.raises(ValueError, match=words):
        decoder(saved)
