"""What the loop asks of accelerate holds for a DeepSpeed engine too; activations computed twice change nothing.

DeepSpeed is not installed here: an engine that does what accelerate's wrapper calls stands for it.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper, DeepSpeedOptimizerWrapper

from foredraft.train import DistillConfig, DistillResult, distill
from foredraft.train.loop import Run
from foredraft.train.sharded import settle_deepspeed, settle_fsdp
from toy_corpus import random_rows, write_corpus_folder
from toys import byte_tokenizer, tiny_gpt2, tiny_llama

ROWS = [*random_rows(12), *random_rows(3, split="dev", seed=1)]
EXAMPLES = Path(__file__).parent.parent / "examples" / "accelerate"


class Engine(torch.nn.DataParallel[Any]):
    """What accelerate calls of a DeepSpeed engine; of the class of a wrapper that accelerate unwraps."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(module)
        self.optimizer, self.calls, self.norm = optimizer, list[str](), 0.0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.calls.append("last" if is_boundary else "more")

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        self.calls.append("step")
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def get_global_grad_norm(self) -> float:
        return self.norm


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


def test_an_engine_that_steps_in_the_backward_makes_the_same_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One step an update, in the last of its micro-batches, with the rate of that step."""
    target = tiny_llama()
    plain = run(tmp_path, target, micro_rows=2)
    engines: list[Engine] = []

    class Prepared(Accelerator):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.state.distributed_type = DistributedType.DEEPSPEED
            self.state.deepspeed_plugins = SimpleNamespace(
                zero_stage=2, deepspeed_config={}, selected=True
            )

        def prepare(self, model: Any, optimizer: Any) -> Any:
            engines.append(Engine(model, optimizer))
            self.deepspeed_engine_wrapped = DeepSpeedEngineWrapper(engines[-1])
            wrapper = DeepSpeedOptimizerWrapper(optimizer)
            self.state.distributed_type = DistributedType.DEEPSPEED  # the wrapper looked anew
            return engines[-1], wrapper

    monkeypatch.setattr("foredraft.train.distillation.Accelerator", Prepared)
    AcceleratorState._reset_state()
    try:
        result = run(tmp_path, target, micro_rows=2, output=str(tmp_path / "engine"))
    finally:
        AcceleratorState._reset_state()
    assert engines[0].calls == ["more", "more", "last", "step"] * 3  # 5 rows by 2
    assert losses(result) == losses(plain)
    norms = [[row.get("train/grad_norm") for row in r.curve] for r in (plain, result)]
    assert norms[0] == norms[1]


def test_zero_3_and_fsdp_1_are_refused_and_the_others_settled() -> None:
    def accelerator(kind: str, **plugins: Any) -> Any:
        return SimpleNamespace(distributed_type=kind, state=SimpleNamespace(**plugins))

    zero: Any = SimpleNamespace(zero_stage=3, deepspeed_config={})
    with pytest.raises(ValueError, match=r"^zero_stage must be at most 2 .*, got 3; .* use FSDP2"):
        settle_deepspeed(accelerator("DEEPSPEED", deepspeed_plugin=zero), 0.5)
    zero.zero_stage = 2
    settle_deepspeed(accelerator("DEEPSPEED", deepspeed_plugin=zero), 0.5)
    assert zero.deepspeed_config["gradient_clipping"] == 0.5
    old = SimpleNamespace(fsdp_version=1)
    with pytest.raises(ValueError, match=r"^fsdp_version must be 2 .*, got 1"):
        settle_fsdp(accelerator("FSDP", fsdp_plugin=old))


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
