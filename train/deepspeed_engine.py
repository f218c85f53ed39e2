"""A run under DeepSpeed: what it is told before, and what only its engine can save and load.

Master weights and the optimizer's state lie in the engine, a part in each process. They are written beside
the checkpoint's plain folder, and go back only into an engine of the same stage on as many processes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import MODEL_NAME, DistributedType

from .checkpoint import ENGINE, PENDING, STATE_FOLDER

ORIGIN = "foredraft.json"  # in the engine's folder: stage and processes that wrote it


def settle_deepspeed(accelerator: Accelerator, max_grad_norm: float) -> None:
    """Give DeepSpeed what it would else ask of a data loader or do by itself.

    Raises:
        ValueError: for ZeRO-3, whose weights cannot be read one process at a time.
    """
    if accelerator.distributed_type != "DEEPSPEED":
        return
    plugin = accelerator.state.deepspeed_plugin
    if plugin.zero_stage > 2:
        raise ValueError(
            f"zero_stage must be at most 2 in accelerate's config, got {plugin.zero_stage}; "
            "to spread the weights too, use FSDP2"
        )
    plugin.deepspeed_config |= {
        "gradient_clipping": max_grad_norm,
        "gradient_accumulation_steps": 1,  # micro-batches are the loop's, uneven as they are
        "train_micro_batch_size_per_gpu": 1,  # no data loader of it is used
    }


def check_resumable(accelerator: Accelerator, checkpoint: Path | None) -> None:
    """Raise where training as accelerate is set up here cannot go on exactly from a checkpoint.

    Raises:
        ValueError: naming the field of accelerate's config, what it must be, and what it is.
    """
    if checkpoint is None:
        return
    engine = checkpoint / STATE_FOLDER / ENGINE
    kind = DistributedType(accelerator.distributed_type).value
    if (kind == "DEEPSPEED") != engine.is_dir():
        allowed = "DEEPSPEED" if engine.is_dir() else "one without DeepSpeed"
        raise _refusal("distributed_type", allowed, kind, checkpoint)
    if kind != "DEEPSPEED":
        return
    try:
        origin = json.loads((engine / ORIGIN).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{engine}: not a whole state of DeepSpeed's: {error}") from error
    for name, now in _origin(accelerator).items():
        if origin.get(name) != now:
            raise _refusal(name, origin.get(name), now, checkpoint)
    if not (engine / MODEL_NAME).is_dir():  # of a missing one, DeepSpeed says it on the way
        raise ValueError(f"{engine}: not a whole state of DeepSpeed's: {MODEL_NAME} is missing")


def save_engine(accelerator: Accelerator, output: Path) -> Path | None:
    """Write the engine's state into a hidden folder of `output` and return it; None without DeepSpeed.

    All processes call it, and need to share the folder.
    """
    if accelerator.distributed_type != "DEEPSPEED":
        return None
    folder = output / f"{PENDING}{ENGINE}"
    if accelerator.is_main_process:
        shutil.rmtree(folder, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(folder))
    if accelerator.is_main_process:
        (folder / ORIGIN).write_text(json.dumps(_origin(accelerator)) + "\n")
    accelerator.wait_for_everyone()  # each has written its part
    return folder


def load_engine(accelerator: Accelerator, checkpoint: Path) -> bool:
    """Put back what `save_engine` wrote into this checkpoint; return whether there was anything."""
    if accelerator.distributed_type != "DEEPSPEED":
        return False
    accelerator.load_state(str(checkpoint / STATE_FOLDER / ENGINE))
    return True


def _origin(accelerator: Accelerator) -> dict[str, int]:
    return {
        "num_processes": accelerator.num_processes,
        "zero_stage": accelerator.state.deepspeed_plugin.zero_stage,
    }


def _refusal(name: str, allowed: object, found: object, checkpoint: Path) -> ValueError:
    return ValueError(
        f"{name} must be {allowed} in accelerate's config, got {found}: the run in {checkpoint.parent} was "
        "saved so; give it back, or another output"
    )
