"""A causal LM as two that share its modules: its first layers with an exit, and the layers after them.

Each part runs the model's own forward, masks, positions, norm and head included; only the layers that the
other part has run or will run are replaced by ones that hand on what they are given.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn


class _Passing(nn.Module):
    """Stands in for a layer; only the weights of other layers are the part's."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        vars(self)["_layer"] = layer  # not a submodule

    def __getattr__(self, name: str) -> Any:
        # What a forward reads of a layer, such as the kind of its attention.
        return getattr(vars(self).get("_layer"), name)

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return what is given, [..., Q, d]."""
        return hidden_states


class Gate(_Passing):
    """Where the parts meet: takes the states of the first layers out, or puts them in place of its input.

    In the first part it stands after the last layer, in the second before the first one.
    """

    states: torch.Tensor | None = None  # [..., Q, d]

    def __init__(self, layer: nn.Module, *, puts: bool) -> None:
        super().__init__(layer)
        self._puts = puts

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the states, [..., Q, d]; those put in are used once."""
        if not self._puts:
            self.states = hidden_states
            return hidden_states
        if self.states is None:
            raise RuntimeError("no states were given to the layers that follow the exit")
        states, self.states = self.states, None
        return states


class Part(NamedTuple):
    """Some layers of a causal LM, as a causal LM."""

    model: Any
    gate: Gate


def first_part(model: Any, layers: int, adapter: nn.Module | None = None) -> Part:
    """Return the first layers with the model's norm and head: a causal LM by itself.

    Args:
        model: a causal LM.
        layers: how many, at least 1 and fewer than the model has.
        adapter: maps what the head reads, [..., d] to [..., d]; None: nothing does.

    Raises:
        ValueError: if the model has no list of its layers, or no norm after them to put an adapter behind.
    """
    path = layers_path(model)
    part = _twin(model, path)
    stack = part.get_submodule(path)
    for index in range(layers, len(stack)):
        stack._modules[str(index)] = _Passing(stack[index])
    gate = Gate(model.get_submodule(path)[layers], puts=False)
    stack._modules[str(layers)] = gate
    if adapter is not None:
        body = part.get_submodule(path.rpartition(".")[0])
        name = _last_called(part, body)
        body._modules[name] = nn.Sequential(body._modules[name], adapter)
    return Part(part, gate)


def second_part(model: Any, layers: int) -> Part:
    """Return the layers after the first ones; states of the first ones are put into its gate.

    Args:
        layers: how many are left out, at least 1.
    """
    path = layers_path(model)
    part = _twin(model, path)
    stack = part.get_submodule(path)
    for index in range(layers - 1):
        stack._modules[str(index)] = _Passing(stack[index])
    gate = Gate(stack[layers - 1], puts=True)
    stack._modules[str(layers - 1)] = gate
    return Part(part, gate)


def with_layers(model: Any, layers: Sequence[nn.Module]) -> Any:
    """Return a model with these layers in place of its own, and all else its own; its config says how many.

    Raises:
        ValueError: if the model has no list of its layers.
    """
    path = layers_path(model)
    twin = _twin(model, path)
    parent, _, name = path.rpartition(".")
    twin.get_submodule(parent)._modules[name] = nn.ModuleList(layers)
    twin.config = copy.deepcopy(model.config)
    twin.config.get_text_config().num_hidden_layers = len(layers)
    return twin


def layers_path(model: Any) -> str:
    """Return the name of the list of a model's layers.

    Raises:
        ValueError: naming the model, if it has none.
    """
    count = model.config.get_text_config().num_hidden_layers
    for name, module in model.named_modules():  # outer ones first: experts lie inside layers
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return str(name)
    raise ValueError(
        f"{type(model).__name__} has no list of its {count} layers, so it cannot draft with the first ones"
    )


def _twin(model: Any, path: str) -> Any:
    """Return a copy of the modules down to `path`; all others, and all weights, are the model's own."""
    twin = at = _copied(model)
    for name in path.split("."):
        at._modules[name] = at = _copied(at._modules[name])
    return twin


def _copied(module: Any) -> Any:
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


@torch.no_grad()
def _last_called(model: Any, body: nn.Module) -> str:
    """Return the name of the child of `body` that is called last: what the head reads comes from it.

    Raises:
        ValueError: if that is one of the layers.
    """
    called: list[str] = []
    hooks = [
        child.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, child in body.named_children()
    ]
    try:
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    last = called[-1] if called else ""
    if not last or isinstance(body._modules[last], nn.ModuleList):
        raise ValueError(
            f"{type(model).__name__} has no norm after its layers to put an adapter behind"
        )
    return last
