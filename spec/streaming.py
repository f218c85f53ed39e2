"""Outputs that arrive piece by piece, for threads and for event loops, and whose turn it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from .output import RequestOutput


class Turn:
    """Lets one request at a time use a decoder's caches; requests of other threads wait."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._reader: int | None = None  # thread that reads the request at work

    @contextmanager
    def taken(
        self, reader: int | None = None, closed: Callable[[], bool] = lambda: False
    ) -> Iterator[None]:
        """Wait for the turn and keep it.

        Args:
            reader: thread that reads what comes of it; None: this one.
            closed: asked while waiting; the wait ends without a turn where it is true, see `wake`.

        Raises:
            RuntimeError: if this thread itself reads a stream that is still open: it would wait for ever.
        """
        this = threading.get_ident()
        with self._free:
            if self._reader == this:
                raise RuntimeError(
                    "the decoder serves one request at a time, and this thread still reads a stream of it: "
                    "read it to its end or close() it first"
                )
            self._free.wait_for(lambda: self._reader is None or closed())
            if closed():
                raise ClosedError
            self._reader = this if reader is None else reader
        try:
            yield
        finally:
            with self._free:
                self._reader = None
                self._free.notify_all()

    def wake(self) -> None:
        """Let those who wait ask again whether they were closed."""
        with self._free:
            self._free.notify_all()


class ClosedError(Exception):
    """A stream was closed before its turn came."""


class TextStream(Iterator[str]):
    """The text of one output, piece by piece; joined it is `output.text`.

    `output` fills up meanwhile: its token ids and log-probabilities are those decoded so far, text and
    finish reason are set at the end. Closing (or dropping) the stream stops decoding.
    """

    def __init__(
        self,
        output: RequestOutput,
        decode: Callable[[RequestOutput], Iterator[str]],
        turn: Turn,
        reader: int | None = None,
    ) -> None:
        """Hold what will be decoded when the first piece is asked for.

        Args:
            decode: yields pieces while the output fills up.
            reader: thread that reads, where it is not the one that decodes.
        """
        self.output = output
        self._turn = turn
        self._closed = threading.Event()
        self._pieces = _pieces(output, decode, turn, reader, self._closed)

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop decoding and leave the decoder to others; `output` keeps what came so far."""
        self.cancel()
        self._pieces.close()
        if self.output.finish_reason is None:  # nothing was read yet
            self.output.finish_reason = "abort"

    def cancel(self) -> None:
        """Let the thread that decodes stop by itself, at the latest after the round at work."""
        self._closed.set()
        self._turn.wake()


def _pieces(
    output: RequestOutput,
    decode: Callable[[RequestOutput], Iterator[str]],
    turn: Turn,
    reader: int | None,
    closed: threading.Event,
) -> Iterator[str]:
    """Yield what is not empty, until the end or until closed. Knows nothing of the stream it serves,
    so that a stream that is dropped is collected, and this generator with it."""
    try:
        with turn.taken(reader, closed.is_set):
            for piece in decode(output):
                if closed.is_set():
                    return
                if piece:
                    yield piece
    except ClosedError:
        return
    except Exception as error:
        output.finish_reason, output.error = "error", error
        raise
    finally:
        if output.finish_reason is None:
            output.finish_reason = "abort"


class AsyncTextStream(AsyncIterator[str]):
    """A TextStream for an event loop: every piece is decoded in a thread of the stream's own."""

    def __init__(self, stream: TextStream) -> None:
        self.output = stream.output
        self._stream = stream
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="foredraft-stream")

    async def __anext__(self) -> str:
        loop = asyncio.get_running_loop()
        try:
            piece = await loop.run_in_executor(self._thread, next, self._stream, None)
        except BaseException:  # an error of the loop, or this task was cancelled
            self._stop()
            raise
        if piece is None:
            self._stop()
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Stop decoding and leave the decoder to others; returns once it is free."""
        self._stream.cancel()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._stream.close)
        except RuntimeError:  # the thread has ended: all is closed
            return
        self._thread.shutdown(wait=False)

    def _stop(self) -> None:
        """Close after the piece at work, in the stream's thread: a generator may run in one only."""
        self._stream.cancel()
        try:
            self._thread.submit(self._stream.close)
        except RuntimeError:
            return
        self._thread.shutdown(wait=False)
