"""Starts the viewer process and tells it which run is on. Nothing of showing happens in the process that measures."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from pddbench.live.board import Announced
    from pddbench.replay.counts import Counts

_PATIENCE_S = 5.0


class Progress:
    """Shows one run after the other, or nothing. Never blocks and never fails: watching must not cost the run."""

    def __init__(
        self, announced: Announced, *, quiet: bool = False, verbose: bool = False, listener: socket.socket | None = None
    ) -> None:
        self._announced, self._listener = announced, listener
        self._kind = "verbose" if verbose else "terminal" if sys.stderr is not None and sys.stderr.isatty() else "lines"
        self._kind = "silent" if quiet or sys.stderr is None else self._kind
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, arm: str, repeat: int) -> None:
        """The next run starts; the viewer finds its spools by their names."""
        self._tell("begin", [arm, repeat])

    def update(self, counts: Counts) -> None:
        """How far the run is: what is shown of one whose spool is gone before the viewer looks."""
        self._tell("counts", [counts.sent, counts.in_flight, counts.done, counts.failed, counts.not_sent])

    def say(self, words: str) -> None:
        """What the run is doing besides."""
        self._tell("say", words)

    def _tell(self, kind: str, value: Any) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError):  # it is slow, or gone: the run goes on without it
            os.write(self._process.stdin.fileno(), msgspec.json.encode([kind, value]) + b"\n")

    def __enter__(self) -> Progress:
        if self._kind == "silent" and self._listener is None:
            return self
        command = [sys.executable, "-m", "pddbench.live.viewer", self._kind]
        inherited = [self._listener.fileno()] if self._listener is not None else []
        try:
            self._process = subprocess.Popen(
                command + [str(fd) for fd in inherited],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=inherited,
            )  # fmt: skip
        except OSError as error:
            click.echo(f"warning: no progress is shown: {error.strerror}", err=True)
            return self
        if self._listener is not None:
            self._listener.close()  # it is the viewer's now
        self._tell("announce", self._announced)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until it has shown the end, or end it."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
