"""Forwards of fixed shape: where to write, what is visible and which positions are all tensors.

On CUDA such a forward is captured once as a graph and replayed; elsewhere the same code is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .cache import KVCache
from .cached import cache_argument, context_length, refuse_without_rollback
from .rows import full_attention

TOKEN_BUCKETS = (1, 2, 3, 4, 5, 7, 9, 13, 17)  # tokens of a verify forward
SHORTEST_VIEW = 256  # cache slots that the shortest forward looks at; doubled up to the capacity


def token_bucket(tokens: int) -> int:
    """Return the smallest bucket that holds so many tokens.

    Raises:
        ValueError: if none does.
    """
    for bucket in TOKEN_BUCKETS:
        if tokens <= bucket:
            return bucket
    raise ValueError(f"a forward takes at most {TOKEN_BUCKETS[-1]} tokens, got {tokens}")


def visible_bucket(slots: int, capacity: int) -> int:
    """Return how many cache slots a forward looks at that needs `slots`: few sizes, few graphs."""
    assert slots <= capacity, f"{slots} slots of a cache of {capacity}"
    view = SHORTEST_VIEW
    while view < slots:
        view *= 2
    return min(view, capacity)


class GraphRunner:
    """Runs a function of static buffers: captured as a CUDA graph on a card, called elsewhere.

    The function takes nothing, returns nothing, reads no tensor on the host, and reads and writes
    tensors that outlive it. On a card its first run is an ordinary one, which compiles kernels and
    allocates caches; the second is captured.
    """

    def __init__(self, function: Callable[[], None], device: torch.device, pool: Any) -> None:
        """Hold a function.

        Args:
            pool: memory shared with other graphs (`torch.cuda.graph_pool_handle()`); None off a card.
        """
        self._function, self._device, self._pool = function, device, pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = False

    def __call__(self) -> None:
        if self._device.type != "cuda":
            self._function()
        elif not self._warm:
            self._run_aside()
        else:
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, pool=self._pool):
                    self._function()
            self._graph.replay()

    def _run_aside(self) -> None:
        """Run on a stream of its own, as capture will."""
        current = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            self._function()
        current.wait_stream(aside)
        self._warm = True


def graph_pool(device: torch.device) -> Any:
    """Return memory for the graphs of one device that never run at the same time."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class StaticModel:
    """A causal LM over a cache of fixed size, for `rows` sequences.

    What was rejected is never taken back: it lies above every position that is fed later, is invisible
    to it, and is overwritten before it would be seen.
    """

    def __init__(self, model: Any, *, capacity: int, rows: int = 1) -> None:
        """Wrap a model in eval mode.

        Args:
            capacity: slots of the cache; at least the longest sequence and a verify forward.

        Raises:
            ValueError: if it cannot be rolled back, or its masks cannot be given as one tensor.
        """
        refuse_without_rollback(model)
        attention = model.config._attn_implementation
        if attention != "sdpa":
            raise ValueError(
                f"attn_implementation must be 'sdpa' for static masks, got {attention!r}"
            )
        if not full_attention(model):
            raise ValueError(
                f"{type(model).__name__}: static masks need full attention in all layers"
            )
        self.model, self.rows, self.capacity = model, rows, capacity
        self.context: int = context_length(model)
        self._cache_argument = cache_argument(model)
        layers = model.config.get_text_config().num_hidden_layers
        self._cache = KVCache(layers, rows=rows, capacity=capacity)
        self._call = model.__call__

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    @property
    def width(self) -> int:
        """Rows of the head."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def compile(self, **options: Any) -> None:
        """Let `torch.compile` fuse the forward from now on; each bucket compiles when first used.

        Args:
            options: of `torch.compile`; leave its own CUDA graphs off, the forward is captured here.
        """
        self._call = torch.compile(self.model.__call__, dynamic=False, **options)

    def cache_bytes(self) -> int:
        """Return the size of the buffers allocated so far."""
        return sum(buffer.nbytes for buffer in self._cache.buffers())

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int]) -> None:
        """Start every row with these tokens at positions 0, 1, …; none is nothing to do."""
        if not tokens:
            return
        self._cache.cover = 0
        self._cache.place_rows(None)
        self.model(
            input_ids=torch.tensor([list(tokens)] * self.rows, device=self.device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )

    @torch.inference_mode()
    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, visible: int, keep: int
    ) -> torch.Tensor:
        """Feed tokens at their positions and return the logits after the last `keep` of them.

        Each token sees the slots up to its own position, so all of them must have been fed; what lies
        above is padding or was rejected.

        Args:
            tokens, positions: [rows, Q], int64; positions lie below `visible`.
            visible: slots looked at, a Python number: one for each graph.

        Returns:
            [rows, keep, V].
        """
        slots = torch.arange(visible, device=tokens.device)  # [visible]
        seen = slots <= positions[..., None]  # [rows, Q, visible]
        self._cache.cover = visible - tokens.shape[1]  # so that the layers give out `visible` slots
        self._cache.place_rows(positions)
        logits: torch.Tensor = self._call(
            input_ids=tokens,
            attention_mask=seen[:, None],  # [rows, 1, Q, visible]
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: self._cache},
        ).logits
        return logits
