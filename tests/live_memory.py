"""How many bytes of tensors are alive at once, counted and not sampled."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within a `with`: the most bytes of storage that were made in it and alive together."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}  # address to bytes

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the operator and count what it made."""
        result = function(*args, **(kwargs or {}))
        given = {leaf.untyped_storage().data_ptr() for leaf in _tensors((args, kwargs))}
        for made in _tensors(result):
            storage = made.untyped_storage()
            address = storage.data_ptr()
            if address not in self._sizes and address not in given:
                self._sizes[address] = storage.nbytes()
                # Whoever holds the storage, autograd too, keeps this handle of it alive.
                weakref.finalize(storage, self._sizes.pop, address)
        self.peak_bytes = max(self.peak_bytes, sum(self._sizes.values()))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
