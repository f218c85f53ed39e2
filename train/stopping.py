"""Being asked to stop: SIGTERM, or SIGINT once, lets the step at work end and its checkpoint be written.

A second one does what it would have done without us, so that nobody has to wait.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A run ended early because it was asked to; what it did is saved."""

    def __init__(self, number: int, message: str) -> None:
        """Say which signal asked, and what is left where."""
        super().__init__(message)
        self.status = 128 + number
        """What a shell expects of a process that the signal ended."""


class StopRequest:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.number = 0
        """The signal; 0 while there was none."""


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note the first SIGTERM or SIGINT while the block runs, in place of ending the process by it.

    Handlers belong to the main thread: in any other, signals do what they did.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, frame: FrameType | None) -> None:
        request.number = number
        _restore(before)
        name = signal.Signals(number).name
        # Not print: the signal may have come in the middle of one.
        os.write(2, f"\n{name}: the step at work is finished and saved; again: at once\n".encode())

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield request
    finally:
        _restore(before)


def _restore(handlers: dict[signal.Signals, signal._HANDLER]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not Python's
