"""Low-rank adapters (LoRA, Hu et al. 2021) through peft: trained in place of a draft's linear layers.

A checkpoint's folder has them merged, a plain model for any engine; the parts lie in its trainer_state/,
from which training goes on: a merged weight cannot be taken apart exactly.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from .config import DistillConfig

NAME = "default"  # of the adapter, in peft
ALL_LINEAR = "all-linear"  # in peft: each linear layer but the head


def add_adapter(model: Any, config: DistillConfig) -> None:
    """Put adapters on a model's linear layers, in place; they alone are to be trained after this.

    They start at zero: the model says what it said.

    Raises:
        ValueError: if peft is not installed, or `lora_targets` fit no layer or the head.
    """
    if importlib.util.find_spec("peft") is None:
        raise ValueError(
            f"lora_rank must be 0 without peft (pip install peft), got {config.lora_rank}"
        )
    from peft import LoraConfig, inject_adapter_in_model  # slow to import

    targets = list(config.lora_targets)
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    with torch.random.fork_rng():  # one half of an adapter is drawn: the same in every process
        torch.manual_seed(config.seed)
        try:
            inject_adapter_in_model(settings, model, adapter_name=NAME)
        except ValueError as error:
            raise ValueError(f"lora_targets do not fit {type(model).__name__}: {error}") from error
    layers = dict(_adapted(model))
    ends = [model.get_output_embeddings(), model.get_input_embeddings()]
    if any(layer is end for layer in layers.values() for end in ends):
        raise ValueError(
            "lora_targets must not be the head or the input embedding (train_head and "
            f"train_embeddings train those whole), got {config.lora_targets!r}"
        )


@torch.no_grad()
def merged_state_dict(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of the plain model that says what the adapted one does."""
    state: dict[str, torch.Tensor] = dict(model.state_dict())
    for name, layer in _adapted(model):
        own = {key: state.pop(key) for key in list(state) if key.startswith(f"{name}.")}
        plain = f"{name}.base_layer."
        for key, value in own.items():
            if key.startswith(plain):
                state[f"{name}.{key.removeprefix(plain)}"] = value
        state[f"{name}.weight"] = own[f"{plain}weight"] + layer.get_delta_weight(NAME)
    return state


def adapter_parts(model: Any) -> dict[str, torch.Tensor]:
    """Return what a merged model cannot be taken apart into: adapters, and the weights under them."""
    names = tuple(f"{name}." for name, _ in _adapted(model))
    return {key: value for key, value in model.state_dict().items() if key.startswith(names)}


def load_adapter_parts(model: Any, parts: dict[str, torch.Tensor]) -> None:
    """Put back what `adapter_parts` gave.

    Raises:
        ValueError: if they are of other layers.
    """
    if parts.keys() != adapter_parts(model).keys():
        raise ValueError("the checkpoint's adapters are not of the layers that lora_targets names")
    model.load_state_dict(parts, strict=False)


def _adapted(model: Any) -> list[tuple[str, Any]]:
    """Return the adapted layers, each with its name."""
    from peft.tuners.lora import LoraLayer

    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLayer)]
