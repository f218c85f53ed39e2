"""Decoding held-out prompts waits for no other process, though FSDP2 has spread the draft."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.distributed.tensor import DTensor

from foredraft.train import DistillConfig, distill
from foredraft.train.in_loop import LoopProbe, decode_answer
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_llama
from two_processes import Sharding

ROWS = [*random_rows(12), *random_rows(5, split="dev", seed=1)]


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Train under FSDP2 in a group of one process."""
    for reset in (AcceleratorState, GradientState, PartialState):
        reset._reset_state()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.setattr("foredraft.train.distillation.Accelerator", Sharding)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    if dist.is_initialized():  # the end of a run may have left it
        dist.destroy_process_group()
    for reset in (AcceleratorState, GradientState, PartialState):
        reset._reset_state()


def test_the_probe_decodes_with_whole_weights_of_this_process(
    sharded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of ranks that decode other prompts, each ends when its own do: a collective inside would never end."""
    target = tiny_llama()
    calls: list[str] = []
    seen: list[tuple[Any, list[torch.Tensor]]] = []
    original = LoopProbe.measure

    def watched(self: LoopProbe) -> dict[str, float]:
        model = self._draft.model
        seen.append((model, [weight.detach().clone() for weight in model.parameters()]))
        return original(self)

    def counted(*args: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            for name in ("all_gather_into_tensor", "all_gather_object", "all_reduce", "barrier"):
                patch.setattr(dist, name, lambda *a, name=name, **k: calls.append(name))
            return decode_answer(*args, **options)

    monkeypatch.setattr(LoopProbe, "measure", watched)
    monkeypatch.setattr("foredraft.train.in_loop.decode_answer", counted)
    config = DistillConfig(
        target="toy", corpus=write_corpus_folder(tmp_path / "corpus", target, ROWS),
        output=str(tmp_path / "run"), layers=1, head_tokens=100, steps=2, batch_rows=4,
        eval_every=1, eval_prompts=2, eval_max_tokens=6, eval_temperatures=(0.0,),
        serving_temperatures=(), report_to="none",
    )  # fmt: skip
    result = distill(config, target=target, tokenizer=byte_tokenizer())
    assert result.best["eval/tau"] >= 1.0
    assert not calls
    models = [model for model, _ in seen]
    assert len(models) > 2
    assert not any(isinstance(weight, DTensor) for weight in models[-1].parameters())
    first, last = seen[0][1], seen[-1][1]  # it is the draft as it is then
    assert any(not torch.equal(a, b) for a, b in zip(first, last, strict=True))
