"""The viewer process: `python -m pddbench.live.viewer VIEW [FD]`, started by a run, steered by lines on its stdin.

It only reads: the spool as it grows, at most twice a second, at the lowest priority. It ends when its stdin does,
however its parent ended; signals are the parent's business.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

import msgspec

from pddbench.live.board import Announced, Board
from pddbench.live.views import PLAIN_EVERY_S, VERBOSE_EVERY_S, Lines, Silent, Terminal, View

TICK_S = 0.5
LOOK_S = 0.1  # for a spool that is not there yet
ERRORS_A_RUN = 20
VIEWS = ("lines", "verbose", "terminal", "silent")


def main(argv: list[str]) -> None:
    """Show a run until stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(19)
    listener = socket.socket(fileno=int(argv[1])) if len(argv) > 1 else None
    with contextlib.suppress(BrokenPipeError):  # nobody reads stderr any more
        _Viewer(argv[0], listener).run()


class _Viewer:
    """Messages in, pictures out."""

    def __init__(self, kind: str, listener: socket.socket | None) -> None:
        self._kind, self._listener = kind, listener
        self._board: Board | None = None
        self._view: View = Silent()
        self._lock = threading.Lock()
        self._rest = b""
        self._errors_left = 0

    def run(self) -> None:
        """Until stdin ends."""
        next_s = time.monotonic()
        try:
            while self._messages(max(0.0, next_s - time.monotonic())):
                if time.monotonic() >= next_s:
                    self._tick()
                    next_s = time.monotonic() + (TICK_S if self._reading else LOOK_S)
            self._over()
        finally:
            self._view.close()

    @property
    def _reading(self) -> bool:
        return self._board is not None and self._board.reading

    def _messages(self, wait_s: float) -> bool:
        """Handle what has come; False when there will be no more."""
        if not select.select([0], [], [], wait_s)[0]:
            return True
        data = os.read(0, 1 << 20)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            kind, value = msgspec.json.decode(line)
            self._handle(kind, value)
        return bool(data)

    def _handle(self, kind: str, value: Any) -> None:
        now_ns = time.monotonic_ns()
        if kind == "announce":
            self._start(msgspec.convert(value, Announced))
        elif self._board is not None and kind == "begin":
            self._over()
            with self._lock:
                self._board.begin(now_ns)
            self._errors_left = ERRORS_A_RUN
            self._view.begin(self._board.snapshot(now_ns))
        elif kind == "say":
            self._view.note(f"  {value}")
        elif self._board is not None and kind == "counts":
            with self._lock:
                self._board.count(*value)

    def _start(self, announced: Announced) -> None:
        from pddbench.live.server import serve

        self._board = Board(announced)
        if self._listener is not None:
            serve(self._listener, self._board, self._lock)
        if self._kind != "silent":
            every_s = VERBOSE_EVERY_S if self._kind == "verbose" else PLAIN_EVERY_S
            self._view = Terminal() if self._kind == "terminal" else Lines(every_s)

    def _tick(self) -> None:
        """Read what is new and show it."""
        board = self._board
        if board is None or board.current is None:
            return
        with self._lock:
            board.read()
            snapshot = board.snapshot(time.monotonic_ns())
        self._tell_errors()
        self._view.show(snapshot, time.monotonic())

    def _tell_errors(self) -> None:
        """Failures one by one, for who asked for it."""
        watch = self._board.current if self._board else None
        while watch is not None and watch.errors:
            text = watch.errors.popleft()
            if self._kind == "verbose" and self._errors_left > 0:
                self._errors_left -= 1
                more = "" if self._errors_left else " (further failures of this run are only counted)"
                self._view.note(f"  {watch.arm}: failed: {text}{more}")

    def _over(self) -> None:
        """The run that was on has ended."""
        board = self._board
        if board is None or board.current is None or board.current.status == "over":
            return
        now_ns = time.monotonic_ns()
        with self._lock:
            board.finish(now_ns)
        self._tell_errors()
        if board.current.t0_ns is not None or board.current.done:
            self._view.finish(board.snapshot(now_ns))


if __name__ == "__main__":
    main(sys.argv[1:])
