"""Linear layers on a CPU with weights laid out for oneDNN, where that is measured to be faster.

A verification multiplies 2 to 10 rows. Some BLAS libraries take twice as long for two rows as for one,
since they read the weights once a row; oneDNN's blocked layout reads them once for all.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch
import torch.nn.functional as F
from torch import nn

ROWS = (
    4  # of the product that the layout is chosen for and timed with; 1 to 16 rows take the same one
)
SAMPLE = 8  # layers of each shape that are timed
REPEATS = 5
GAIN = 0.95  # pack where it takes at most this share of the time
MEMORY_SHARE = 0.5  # of what is free: the copies take as much as the weights


class PackedLinear(nn.Linear):
    """A linear layer that keeps its weight, and a copy of it in oneDNN's layout for inference.

    The copy is only used for what it was made of: where a gradient is wanted, on another device or
    dtype, and after the weight was changed, this is a plain linear layer.
    """

    _packed: torch.Tensor | None = None
    _made_of: tuple[int, int] = (0, 0)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return [..., out] of [..., in]."""
        packed, weight = self._packed, self.weight
        if (
            packed is None
            or input.dtype != weight.dtype
            or input.device.type != "cpu"
            or self._made_of != (weight.data_ptr(), weight._version)
            or (torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad))
        ):
            return F.linear(input, weight, self.bias)
        return _product(input, packed, self.bias)

    def take(self, layout: torch.Tensor) -> None:
        """Use this copy of the weight as it is now."""
        self._packed = layout
        self._made_of = (self.weight.data_ptr(), self.weight._version)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the copy out of pickles and deep copies: the layout is this machine's."""
        return {key: value for key, value in self.__dict__.items() if key != "_packed"}


@torch.no_grad()
def pack_linears(model: nn.Module) -> int:
    """Pack the model's linear layers in place where that is faster; return how many were packed.

    Decided by timing some layers of each shape with 4 rows. Only for inference on a CPU; elsewhere, and
    where memory is short, nothing is done. Rounding changes as with any other kernel. Calling it again
    changes nothing.
    """
    shapes: dict[torch.Size, list[nn.Linear]] = defaultdict(list)
    for module in model.modules():
        if type(module) is not nn.Linear or module.weight.is_inference():
            continue  # an inference tensor does not say when it is changed
        if module.weight.device.type == "cpu" and _supported(module):
            shapes[module.weight.shape].append(module)
    layers = [layer for group in shapes.values() for layer in group]
    size = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    if not layers or size > MEMORY_SHARE * psutil.virtual_memory().available:
        return 0
    sample = [layer for group in shapes.values() for layer in group[:SAMPLE]]
    layouts = {layer: _layout(layer.weight) for layer in sample}
    if not _faster(layouts):
        return 0
    for layer in layers:
        layer.__class__ = PackedLinear
        assert isinstance(layer, PackedLinear)
        layer.take(layouts[layer] if layer in layouts else _layout(layer.weight))
    return len(layers)


def _layout(weight: torch.Tensor) -> torch.Tensor:
    """Return an opaque copy of a weight [out, in]."""
    copy: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
    return copy


def _product(input: torch.Tensor, layout: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(input, layout, bias, "none", [], "")
    return product


def _supported(layer: nn.Linear) -> bool:
    """Say whether this build has the operators, and for this dtype."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    rows = layer.weight.new_zeros(1, layer.in_features)
    try:
        _product(rows, _layout(layer.weight[:1]), None)
    except (AttributeError, RuntimeError):  # no such operator; not for this dtype on this processor
        return False
    return True


def _faster(layouts: Mapping[nn.Linear, torch.Tensor]) -> bool:
    """Time both ways, interleaved, on one thread: threads that wait for each other tell of other processes."""
    inputs = [layer.weight.new_ones(ROWS, layer.in_features) for layer in layouts]

    def run_plain() -> None:
        for layer, x in zip(layouts, inputs, strict=True):
            F.linear(x, layer.weight, layer.bias)

    def run_packed() -> None:
        for (layer, layout), x in zip(layouts.items(), inputs, strict=True):
            _product(x, layout, layer.bias)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = [(_seconds(run_plain), _seconds(run_packed)) for _ in range(REPEATS)]
    finally:
        torch.set_num_threads(threads)
    return min(packed for _, packed in times) <= GAIN * min(plain for plain, _ in times)


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
