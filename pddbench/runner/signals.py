"""SIGINT and SIGTERM end a run cleanly: what was measured is saved, and the exit code says which signal it was."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Ended(BaseException):
    """A signal came while the answer was being made, when there is nothing left to save. No error: not to be caught."""


class Stop:
    """Whether a signal asked us to stop; `event` lets a running replay know.

    Until `answering` a signal only notes itself, however often it comes: what was measured has to be saved. From then
    on the next one raises `Ended`, and those after it do nothing.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.answering = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number; None while nobody asked."""
        return None if self.number is None else 128 + self.number

    def handle(self, number: int, _frame: FrameType | None = None) -> None:
        """The signal came; the first one counts."""
        if self.number is None:
            self.number = number
        if self.answering:
            self.answering = False
            raise Ended
        if self._loop is not None and self._event is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    @contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """An event for the running loop that is set when a signal comes (or has come)."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle, number)
        self._loop, self._event = loop, event
        if self.number is not None:
            event.set()
        try:
            yield event
        finally:
            self._loop = self._event = None
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, self.handle)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Waiter:
    """Waits for either signal in a command that only serves.

    The handler writes to a pipe and takes no lock: the main thread may hold that of a `threading.Event` just then, and
    would wait for itself for ever.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        with suppress(BlockingIOError):
            os.write(self._write, b".")

    def wait(self, seconds: float) -> bool:
        """Whether a signal has come; returns at once when one comes."""
        if self.number is None:
            select.select([self._read], [], [], seconds)
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """128 + the number of the signal that came."""
        assert self.number is not None
        return 128 + self.number


@contextmanager
def catching() -> Iterator[Stop]:
    """Both signals only note themselves in the returned `Stop`; their earlier handlers come back afterwards."""
    stop = Stop()
    before = {number: signal.signal(number, stop.handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
