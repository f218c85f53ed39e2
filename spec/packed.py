"""Linear layers on a CPU with weights laid out for its kernels, where that is measured to be faster.

A verification multiplies 2 to 10 rows. Some BLAS libraries take twice as long for two rows as for one,
since they read the weights once a row; oneDNN's blocked layout reads them once for all. A draft's step
takes as long as its weights take to be read: in float16 they are half as many bytes.
"""

from __future__ import annotations

import copy
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import psutil
import torch
import torch.nn.functional as F
from torch import nn

ROWS = 4  # of the product that a target's layout is chosen for; 1 to 16 rows take the same one
DRAFT_ROWS = 1  # of most of a draft's steps
SAMPLE = 8  # layers of each shape that are timed
REPEATS = 5
GAIN = 0.95  # pack where it takes at most this share of the time
MEMORY_SHARE = 0.5  # of what is free: the copies take as much as the weights

PLAIN = "plain"  # in place of the kernel's name, for a layer that has no layout in use
Model = TypeVar("Model", bound=nn.Module)


class Product(Protocol):
    """[..., in] and a bias [out] or None to [..., out], with a weight that it holds a copy of."""

    kernel: str  # what to call it in a report

    def __call__(self, input: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor: ...


Pack = Callable[[torch.Tensor], Product]
"""Lays a weight [out, in] out."""


class PackedLinear(nn.Linear):
    """A linear layer that keeps its weight, and a copy of it in another layout for inference.

    The copy is only used for what it was made of: where a gradient is wanted, on another device or
    dtype, and after the weight was changed, this is a plain linear layer.
    """

    _packed: Product | None = None
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
        return packed(input, self.bias)

    def take(self, packed: Product) -> None:
        """Use this product, made of the weight as it is now."""
        self._packed = packed
        self._made_of = (self.weight.data_ptr(), self.weight._version)

    @property
    def kernel(self) -> str:
        """Name of the kernel that inference runs on; "plain" where the weight was changed since."""
        current = self._made_of == (self.weight.data_ptr(), self.weight._version)
        return self._packed.kernel if self._packed is not None and current else PLAIN

    def __getstate__(self) -> dict[str, Any]:
        """Leave the copy out of pickles and deep copies: the layout is this machine's."""
        return {key: value for key, value in self.__dict__.items() if key != "_packed"}


class BlockedProduct:
    """A product with a weight in oneDNN's blocks."""

    kernel = "oneDNN blocks"

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def __call__(self, input: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            input, self._weight, bias, "none", [], ""
        )
        return result


class HalfProduct:
    """A product with a float32 weight rounded to float16, in FBGEMM's layout."""

    kernel = "float16"

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def __call__(self, input: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        result: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(input, self._weight)
        return result if bias is None else result + bias


def pack_blocked(weight: torch.Tensor) -> Product:
    """Lay a weight [out, in] out in oneDNN's blocks: products as exact as before."""
    return BlockedProduct(weight.detach())


def pack_half(weight: torch.Tensor) -> Product:
    """Round a float32 weight [out, in] to float16 in FBGEMM's layout; sums stay in float32.

    A weight beyond float16's range is laid out in blocks instead.
    """
    weight = weight.detach()
    if weight.dtype != torch.float32:
        raise RuntimeError(f"weights must be float32, got {weight.dtype}")
    if not weight.abs().max() <= torch.finfo(torch.float16).max:
        return pack_blocked(weight)
    return HalfProduct(weight)


@torch.no_grad()
def pack_linears(model: nn.Module, *, draft: bool = False) -> int:
    """Pack the model's linear layers in place where that is faster; return how many were packed.

    Decided by timing some layers of each shape. Only for inference on a CPU; elsewhere, and where memory
    is short, nothing is done. Rounding changes as with any other kernel. Calling it again changes
    nothing.

    Args:
        draft: weights may be rounded to float16, and one row counts. Drafted tokens are drawn from
            what the draft then says, so that the target's law is kept; only α moves, by its rounding.
    """
    shapes: dict[torch.Size, list[nn.Linear]] = defaultdict(list)
    for module in model.modules():
        if type(module) is not nn.Linear or module.weight.is_inference():
            continue  # an inference tensor does not say when it is changed
        if module.weight.device.type == "cpu":
            shapes[module.weight.shape].append(module)
    layers = [layer for group in shapes.values() for layer in group]
    size = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    if not layers or size > MEMORY_SHARE * psutil.virtual_memory().available:
        return 0
    sample = [layer for group in shapes.values() for layer in group[:SAMPLE]]
    kinds: tuple[Pack, ...] = (pack_blocked, pack_half) if draft else (pack_blocked,)
    sampled = {
        kind: {layer: kind(layer.weight) for layer in sample}
        for kind in kinds
        if _works(kind, layers)
    }
    pack = _fastest(sampled, DRAFT_ROWS if draft else ROWS)
    if pack is None:
        return 0
    for layer in layers:
        product = sampled[pack].get(layer) or pack(layer.weight)
        layer.__class__ = PackedLinear
        assert isinstance(layer, PackedLinear)
        layer.take(product)
    return len(layers)


def layer_kernels(model: nn.Module) -> dict[str, int]:
    """Return how many linear layers run on each kernel: "plain", "oneDNN blocks", "float16"."""
    return dict(
        Counter(
            layer.kernel if isinstance(layer, PackedLinear) else PLAIN
            for layer in model.modules()
            if isinstance(layer, nn.Linear)
        )
    )


def shared_copy(model: Model) -> Model:
    """Return a copy of the module tree that shares weights, buffers and layouts.

    Configs, hooks and what else the modules hold are copied (`copy.deepcopy`), so that settings may
    differ; tied weights stay tied. What changes a weight in place, or moves or casts it, shows in both.
    """
    memo: dict[int, Any] = {
        id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())
    }
    twin = copy.deepcopy(model, memo)
    for layer in model.modules():
        if isinstance(layer, PackedLinear) and layer._packed is not None:
            memo[id(layer)]._packed = layer._packed
    return twin


def unpacked(model: Model) -> Model:
    """Return a copy as `shared_copy` does, with plain linear layers in place of packed ones.

    That is the model as transformers loads it, at no more memory for weights.
    """
    twin = shared_copy(model)
    for layer in twin.modules():
        if isinstance(layer, PackedLinear):
            for name in ("_packed", "_made_of"):
                vars(layer).pop(name, None)
            layer.__class__ = nn.Linear  # type: ignore[assignment]
    return twin


def _works(pack: Pack, layers: Iterable[nn.Linear]) -> bool:
    """Say whether this build has the kernel, for these layers' dtypes, on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        for layer in layers:
            pack(layer.weight[:1])(layer.weight.new_zeros(1, layer.in_features), None)
    except (AttributeError, RuntimeError):
        return False
    return True


def _fastest(sampled: Mapping[Pack, Mapping[nn.Linear, Product]], rows: int) -> Pack | None:
    """Return the kind of packing that is worth it, by time; None: none is.

    Timed interleaved, on one thread: threads that wait for each other tell of other processes.

    Args:
        sampled: each kind's products of the same layers.
    """
    if not sampled:
        return None
    layers = list(next(iter(sampled.values())))
    inputs = [layer.weight.new_ones(rows, layer.in_features) for layer in layers]

    def run_plain() -> None:
        for layer, x in zip(layers, inputs, strict=True):
            F.linear(x, layer.weight, layer.bias)

    def run(products: Mapping[nn.Linear, Product]) -> None:
        for (layer, product), x in zip(products.items(), inputs, strict=True):
            product(x, layer.bias)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = [
            [_seconds(run_plain), *(_seconds(partial(run, each)) for each in sampled.values())]
            for _ in range(REPEATS)
        ]
    finally:
        torch.set_num_threads(threads)
    plain, *others = map(min, zip(*times, strict=True))
    best, pack = min(zip(others, sampled, strict=True), key=itemgetter(0))
    return pack if best <= GAIN * plain else None


def _seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
