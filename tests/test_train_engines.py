"""What accelerate's configs set: FSDP2's policy, the examples; activations computed twice change nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from accelerate.utils import FullyShardedDataParallelPlugin

from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.loop import Run
from foredraft.train.sharded import settle_fsdp
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_gpt2

ROWS = [*random_rows(12), *random_rows(3, split="dev", seed=1)]
EXAMPLES = Path(__file__).parent.parent / "examples" / "accelerate"


def run(folder: Path, target: Any, **changes: Any) -> DistillResult:
    corpus = folder / "corpus"
    if not corpus.exists():
        write_corpus_folder(corpus, target, ROWS)
    fields: dict[str, Any] = {
        "target": "toy", "corpus": str(corpus), "output": str(folder / "run"), "layers": 1,
        "head_tokens": 100, "steps": 3, "batch_rows": 5, "learning_rate": 3e-3, "report_to": "none",
        "eval_prompts": 0,
    }  # fmt: skip
    config = DistillConfig(**{**fields, **changes})
    return distill(config, target=target, tokenizer=byte_tokenizer())


def losses(result: DistillResult) -> list[float]:
    return [row["train/loss"] for row in result.curve if "train/loss" in row]


def test_fsdp_1_is_refused() -> None:
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=1))
    with pytest.raises(ValueError, match=r"^fsdp_version must be 2 .*, got 1"):
        settle_fsdp(cast("Any", SimpleNamespace(distributed_type="FSDP", state=state)))


def test_fsdp_keeps_sums_of_losses_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate's own policy casts the loss and the target's log-sums to bfloat16."""
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy="bf16")
    state = SimpleNamespace(fsdp_plugin=plugin)
    settle_fsdp(SimpleNamespace(distributed_type="FSDP", state=state))
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert (policy.output_dtype, policy.cast_forward_inputs) == (None, False)
    assert not plugin.cpu_ram_efficient_loading


def test_activations_computed_twice_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """B65, with dropout; on and off may change when a run is resumed."""
    target = tiny_gpt2()
    target.config.resid_pdrop = 0.2
    forwards = []
    original = Run._accumulate_gradients

    def counted(self: Run, *args: Any) -> Any:
        layer = self.draft.model.base_model.h[0]
        hook = layer.attn.register_forward_hook(lambda *_: forwards.append(1))
        try:
            return original(self, *args)
        finally:
            hook.remove()

    monkeypatch.setattr(Run, "_accumulate_gradients", counted)
    kept = run(tmp_path, target)
    once = len(forwards)
    again = run(tmp_path, target, gradient_checkpointing=True, output=str(tmp_path / "again"))
    assert losses(again) == losses(kept)
    assert len(forwards) == 3 * once
    names = [folder / "model.safetensors" for folder in (kept.folder, again.folder)]
    assert names[0].read_bytes() == names[1].read_bytes()
    run(tmp_path, target, gradient_checkpointing=True)  # the finished run, taken up


def test_the_example_files_are_what_accelerate_reads() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    for name, kind in (("ddp", "MULTI_GPU"), ("fsdp2", "FSDP"), ("deepspeed", "DEEPSPEED")):
        path = EXAMPLES / f"{name}.yaml"
        assert str(load_config_from_file(str(path)).distributed_type).endswith(kind)
        content = yaml.safe_load(path.read_text())
        assert content["fsdp_config"]["fsdp_version"] == 2 if kind == "FSDP" else True
