"""Instruments of the decode benchmark: a clock, marks of rounds, forwards, host reads, live tensors."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

aten = torch.ops.aten
# In inference mode composite operators arrive whole: `item` in place of `_local_scalar_dense`.
SCALAR_READS = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten.equal,
}
COPIES = {aten._to_copy, aten.to, aten.copy_}
# Not seen by the dispatcher where the tensor lies on the host already.
WHOLE_READS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__}


class Clock:
    """Seconds, with the device's work done."""

    def __init__(self, device: torch.device) -> None:
        self._synchronize: Callable[[], None] | None = None
        if device.type == "cuda":
            self._synchronize = lambda: torch.cuda.synchronize(device)

    def now(self) -> float:
        if self._synchronize is not None:
            self._synchronize()
        return time.perf_counter()


class Marks:
    """When a call began, when its first round was done and with how many tokens, and how many rounds."""

    def __init__(
        self, now: Callable[[], float], first_done: Callable[[], None] | None = None
    ) -> None:
        """Begin the call.

        Args:
            first_done: called when the first round is done.
        """
        self._now, self._first_done = now, first_done
        self.rounds = 0
        self.first_tokens = 0
        self.begun = self.first = now()

    def round(self, tokens: int) -> None:
        """A round is done and has emitted `tokens`."""
        self.rounds += 1
        if self.rounds == 1:
            self.first_tokens = tokens
            if self._first_done is not None:
                self._first_done()
            self.first = self._now()


class ForwardTimer:
    """Adds up the seconds of some models' forwards: host time on a CPU, events on a card."""

    def __init__(self, models: Sequence[torch.nn.Module], device: torch.device) -> None:
        self._models = models
        self._on_card = device.type == "cuda"
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self._seconds = [0.0] * len(self._models)
        self._events: list[tuple[int, Any, Any]] = []

    def seconds(self) -> list[float]:
        """Return the seconds of each model's forwards."""
        if self._on_card:
            torch.cuda.synchronize()
        seconds = list(self._seconds)
        for index, begin, end in self._events:
            seconds[index] += begin.elapsed_time(end) / 1e3
        return seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure inside the block."""
        handles = []
        for index, model in enumerate(self._models):
            before, after = self._hooks(index)
            handles += [
                model.register_forward_pre_hook(before),
                model.register_forward_hook(after),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, index: int) -> tuple[Callable[..., None], Callable[..., None]]:
        begun: list[Any] = []

        def before(*_: Any) -> None:
            begun.append(self._stamp())

        def after(*_: Any) -> None:
            if self._on_card:
                self._events.append((index, begun.pop(), self._stamp()))
            else:
                self._seconds[index] += time.perf_counter() - begun.pop()

        return before, after

    def _stamp(self) -> Any:
        if not self._on_card:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the times that the host asks for a value that the device has to compute first.

    `.item()`, `bool`, `int`, `float`, `nonzero` and friends, boolean indexing, `.tolist()`, `.numpy()`,
    copies from the device. On a CPU every tensor counts as the device's.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device.type
        self.count = 0
        self._whole = _WholeReads(self)

    def __enter__(self) -> HostReads:
        self._whole.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._whole.__exit__(*exception)  # type: ignore[no-untyped-call]

    def saw(self, tensor: Any) -> None:
        """Count a read of this tensor, where it is the device's."""
        if isinstance(tensor, torch.Tensor) and tensor.device.type == self._device:
            self.count += 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        packet = func.overloadpacket
        if packet in SCALAR_READS or (
            packet is aten.index
            and any(
                index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
            )
        ):
            self.saw(args[0])
        elif packet in COPIES and self._device != "cpu":
            values = (*args, *(kwargs or {}).values())
            devices = [args[0].device if packet is aten.copy_ else None, *values]
            if any(isinstance(d, torch.device) and d.type == "cpu" for d in devices):
                self.saw(args[1] if packet is aten.copy_ else args[0])
        return func(*args, **(kwargs or {}))


class _WholeReads(TorchFunctionMode):
    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in WHOLE_READS and args[0].device.type == "cpu":
            self._reads.saw(args[0])
        return func(*args, **(kwargs or {}))


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the bytes of tensors that are alive, and their peak; known ones are not counted."""

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}
        self._live = 0
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._live -= size


def weight_bytes(models: Sequence[torch.nn.Module]) -> int:
    """Return the bytes of all weights, those that models share counted once."""
    storages = {
        weight.untyped_storage()._cdata: weight.untyped_storage().nbytes()
        for model in models
        for weight in model.parameters()
    }
    return sum(storages.values())


def cache_bytes(model: Any, positions: int) -> int:
    """Return the bytes of the keys and values of `positions` tokens."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    bytes_each = next(model.parameters()).element_size()
    return int(2 * config.num_hidden_layers * heads * size * positions * bytes_each)
