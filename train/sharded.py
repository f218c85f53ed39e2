"""Weights that FSDP2 spreads over processes, and the whole ones that are measured, saved and resumed.

A checkpoint does not tell how many processes wrote it: each tensor is gathered before it is saved. Where
nothing is spread, all of this gives back what it is given.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor


def settle_fsdp(accelerator: Accelerator) -> None:
    """Change what accelerate's defaults for FSDP2 would do to a target and to sums of losses.

    Raises:
        ValueError: for FSDP1, which flattens weights.
    """
    if accelerator.distributed_type != "FSDP":
        return
    plugin = accelerator.state.fsdp_plugin
    if plugin.fsdp_version != 2:
        raise ValueError(
            f"fsdp_version must be 2 in accelerate's config, got {plugin.fsdp_version}"
        )
    # With it, transformers leaves the weights of every model empty on all processes but one, the target's
    # too, and accelerate fills in those of the draft alone (huggingface/trl#2580).
    plugin.cpu_ram_efficient_loading = False
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    if plugin.mixed_precision_policy is not None:
        # By default the loss and its inputs become bf16 too: log-sums of 10 would be off by 0.03.
        plugin.mixed_precision_policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )


def plain_model(model: Any, accelerator: Accelerator) -> Any:
    """Return a copy of a model that FSDP2 is about to spread, or where nothing is spread the model itself."""
    return copy.deepcopy(model) if accelerator.distributed_type == "FSDP" else model


@torch.no_grad()
def gather_weights(trained: torch.nn.Module, plain: torch.nn.Module) -> None:
    """Bring `plain` up to date with the weights that are trained; all processes call it."""
    for weight, source in zip(plain.parameters(), trained.parameters(), strict=True):
        if weight.requires_grad and weight is not source:
            weight.copy_(whole(source))


@torch.no_grad()
def spread_weights(plain: torch.nn.Module, trained: torch.nn.Module) -> None:
    """Give the trained model the weights of `plain`, which are the same on all processes."""
    for weight, source in zip(trained.parameters(), plain.parameters(), strict=True):
        if weight is not source:
            weight.copy_(_like(source, weight))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in one piece; all processes call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_optimizer_state(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's state in one piece, as one process would have it; all processes call it."""
    content: dict[str, Any] = optimizer.state_dict()
    state = {
        index: {name: whole(value) for name, value in values.items()}
        for index, values in content["state"].items()
    }
    return content | {"state": state}


def load_optimizer_state(optimizer: Any, content: dict[str, Any]) -> None:
    """Put back what `whole_optimizer_state` gave, on any number of processes."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state = {
        index: {
            name: _like(value, weights[index]) if value.shape == weights[index].shape else value
            for name, value in values.items()
        }
        for index, values in content["state"].items()
    }
    optimizer.load_state_dict(content | {"state": state})


def _like(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor spread as a weight is."""
    if not isinstance(weight, DTensor):
        return tensor
    tensor = tensor.to(weight.device)
    # All have it whole: nothing is sent.
    return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)
