"""Prompt sets, corpora that the target wrote, and decode traces.

What needs torch is imported on first use, so that a command can read its settings quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .config import CorpusConfig, DenseConfig, TraceConfig
from .prompts import SPLITS, Prompt, load_prompts, split_of
from .signals import History, Signals, signals

if TYPE_CHECKING:
    from .corpus import write_corpus
    from .corpus_folder import CorpusManifest, CorpusRow, read_corpus
    from .dense_positions import DenseText
    from .dense_traces import DenseManifest, read_dense_traces, record_dense_traces
    from .states import SavedStates
    from .trace_recorder import TraceRecorder, TraceRow
    from .traces import COLUMNS, TraceManifest, read_trace_texts, read_traces, record_traces

__all__ = [
    "COLUMNS",
    "SPLITS",
    "CorpusConfig",
    "CorpusManifest",
    "CorpusRow",
    "DenseConfig",
    "DenseManifest",
    "DenseText",
    "History",
    "Prompt",
    "SavedStates",
    "Signals",
    "TraceConfig",
    "TraceManifest",
    "TraceRecorder",
    "TraceRow",
    "load_prompts",
    "read_corpus",
    "read_dense_traces",
    "read_trace_texts",
    "read_traces",
    "record_dense_traces",
    "record_traces",
    "signals",
    "split_of",
    "write_corpus",
]

_HOMES = {
    "corpus": ("write_corpus",),
    "corpus_folder": ("CorpusManifest", "CorpusRow", "read_corpus"),
    "dense_positions": ("DenseText",),
    "dense_traces": ("DenseManifest", "read_dense_traces", "record_dense_traces"),
    "states": ("SavedStates",),
    "trace_recorder": ("TraceRecorder", "TraceRow"),
    "traces": ("COLUMNS", "TraceManifest", "read_trace_texts", "read_traces", "record_traces"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
