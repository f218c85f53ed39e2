"""A trained exit of a target: a small adapter of what its head reads after its first layers, and its folder.

The folder holds `adapter.safetensors` and `foredraft.json`, which says after how many layers of which target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from .draft_folder import DraftInfo
from .exit_adapter import ExitAdapter
from .fingerprint import model_fingerprint
from .self_draft import SelfDrafter, exit_layer

ADAPTER_FILE = "adapter.safetensors"


def save_exit(folder: str | Path, adapter: ExitAdapter, info: DraftInfo) -> None:
    """Write an exit.

    Args:
        info: with its `exit_layer`.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    state = {name: weight.detach().cpu() for name, weight in adapter.state_dict().items()}
    save_file(state, Path(folder) / ADAPTER_FILE)
    info.save(folder)


def load_exit(folder: str | Path, info: DraftInfo, target: Any) -> ExitAdapter:
    """Return the adapter of a folder, on the target's device and in its dtype.

    Raises:
        ValueError: if the folder is not whole, or of another target.
    """
    path = Path(folder) / ADAPTER_FILE
    if not path.is_file():
        raise ValueError(f"{path}: missing, but foredraft.json says exit_layer = {info.exit_layer}")
    state = load_file(path)
    weight = next(target.parameters())
    size = int(target.get_output_embeddings().weight.shape[1])
    found = tuple(state["linear.weight"].shape)
    if found != (size, size):
        raise ValueError(f"{path}: of a target with states of {found[0]}, the target's are {size}")
    # In another dtype the same weights have other sums.
    if weight.dtype == state["linear.weight"].dtype:
        fingerprint = model_fingerprint(target)
        if fingerprint != info.target_fingerprint:
            raise ValueError(
                f"{folder}: made for {info.target} (fingerprint {info.target_fingerprint}), the target's "
                f"fingerprint is {fingerprint}"
            )
    adapter = ExitAdapter(size, len(state.get("up.weight", ())))
    adapter.load_state_dict(state)
    return adapter.to(weight.device, weight.dtype).eval().requires_grad_(False)


def find_self_drafter(draft: str, target: Any, *, width: int) -> SelfDrafter | None:
    """Return the drafter that "self:K" or the folder of a trained exit means; None for any other name.

    Raises:
        ValueError: if the target cannot be split there, or the folder is not one of it.
    """
    layers = exit_layer(draft)
    if layers is not None:
        return SelfDrafter(target, layers, width=width)
    info = DraftInfo.load(draft)
    if info is None or info.exit_layer is None:
        return None
    return SelfDrafter(
        target,
        info.exit_layer,
        width=width,
        adapter=load_exit(draft, info, target),
        temperature=info.temperature,
    )
