"""Processes that die as by kill -9: at a given write to the disk, or at a moment of the parent's choice."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

WRITES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.truncate")


def dies_at_write(work: Callable[[], object], number: int) -> bool:
    """Do the work in a child that ends, unasked, right before its write `number`; say whether it did."""

    def child() -> None:
        left = number

        def count(event: str, args: tuple[Any, ...]) -> None:
            nonlocal left
            writes = event in WRITES
            if event == "open" and isinstance(args[2], int):
                writes = bool(args[2] & (os.O_WRONLY | os.O_RDWR))
            left -= writes
            if writes and left == 0:
                os._exit(9)

        sys.addaudithook(count)
        work()

    return _wait(_fork(child)) == 9


def killed_after(work: Callable[[], object], seconds: float) -> bool:
    """Do the work in a child, kill it after so long, and say whether it was still at it."""
    pid = _fork(work)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)  # one that ended is there until it is waited for
    return _wait(pid) == -signal.SIGKILL


def _fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def _wait(pid: int) -> int:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 9, -signal.SIGKILL), f"the child failed with {status}"
    return status
