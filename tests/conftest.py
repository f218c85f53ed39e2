"""Fixtures that several test files ask for by name."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


def pytest_configure() -> None:
    """Without a card, Triton kernels are interpreted; triton reads this when it is imported."""
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads waiting for each other on a busy machine would be all that is timed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
