"""Settle the process for decoding on a CPU, once, from an entry point."""

from __future__ import annotations

import ctypes
import sys

import torch


def settle_cpu(threads: int | None = None) -> None:
    """Fix the number of threads and let the C allocator keep its memory.

    Logits and masks are megabytes that live for one forward. glibc returns each of them to the system
    and faults the pages in again for the next, which can take more time than the arithmetic (two
    thirds of batched decoding on one machine we measured). No effect outside Linux with glibc.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent from other C libraries
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of <malloc.h>
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_max, 0)
