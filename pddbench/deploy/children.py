"""Processes that a deployment is made of: started, listened to, mourned and ended; and the socket that clients reach.

What the emulated deployments and the miniature ones have in common.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pddbench.errors import InputError, WorldError
from pddbench.text import printable

if TYPE_CHECKING:
    from pddbench.wan.guard import Guard
    from pddbench.wan.namespaces import Side

_ROOT = Path(__file__).resolve().parents[2]
_READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_LOOK_S = 0.1
_LOST = "was lost"  # how the last words of a process end that went because another one had


class LaunchStopped(Exception):
    """A signal came before the deployment was up."""


def environment() -> dict[str, str]:
    """The parent's, with the package importable as here."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


class Child:
    """A Python module as a process, in a side of the link or in the host's own network (`side` None).

    Its stdin stays open, and its end is the sign to go. `name` is what it is called in sentences.
    """

    def __init__(self, name: str, argv: Sequence[str], side: Side | None, pass_fds: Sequence[int] = ()) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        popen = subprocess.Popen if side is None else side.popen
        self._popen: subprocess.Popen[bytes] = popen(
            [sys.executable, "-m", *argv],
            pass_fds=pass_fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # a Ctrl-C is for pddbench, which then ends its processes itself
            env=environment(),
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def tell(self, line: bytes) -> None:
        """One line on its stdin."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `first_line` says why it has gone
            self._popen.stdin.write(line + b"\n")
            self._popen.stdin.flush()

    def first_line(self, stopped: Callable[[], bool] = lambda: False) -> str:
        """What it says when it is ready. Raises `WorldError`, or `LaunchStopped` as soon as `stopped()`."""
        stdout, limit_s = self._popen.stdout, time.monotonic() + _READY_TIMEOUT_S
        assert stdout is not None
        while not (readable := select.select([stdout], [], [], _LOOK_S)[0]) and time.monotonic() < limit_s:
            if stopped():
                raise LaunchStopped
        line = stdout.readline().decode(errors="replace").strip() if readable else ""
        if not line:
            raise WorldError(self.obituary())
        return line

    def alive(self) -> bool:
        """Whether it is there."""
        return self._popen.poll() is None

    def obituary(self) -> str:
        """Why it is not there: the last line it wrote to stderr."""
        try:
            self._popen.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"{self.name} did not get ready in {_READY_TIMEOUT_S:g} s"
        self._errors.seek(0)
        lines = self._errors.read()[-4096:].decode("utf-8", "replace").strip().splitlines() or ["nothing on stderr"]
        return f"{self.name} ended (exit {self._popen.returncode}): {printable(lines[-1])}"

    def end(self) -> None:
        """Terminate and wait."""
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                stream.close()
        if self.alive():
            self._popen.terminate()
        try:
            self._popen.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._errors.close()


def check_alive(children: Sequence[Child], guard: Guard | None) -> None:
    """Raise `WorldError` when the link or a process has died; of several the one that did not go because of others."""
    if guard is not None and guard.dead:
        raise WorldError(f"the WAN link is gone: {guard.problems[-1]}")
    dead = _obituaries(children)
    if dead and all(text.endswith(_LOST) for text in dead):
        time.sleep(0.2)  # a process closes its sockets a moment before it counts as ended
        dead = _obituaries(children)
    if dead:
        raise WorldError(next((text for text in dead if not text.endswith(_LOST)), dead[0]))


def _obituaries(children: Sequence[Child]) -> list[str]:
    return [child.obituary() for child in children if not child.alive()]


def listener(host: str, port: int) -> socket.socket:
    """The socket that clients reach, in the host's own network. Raises `InputError` when it cannot be had."""
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(1024)  # here, where an address in use is the user's to know of
        except BaseException:
            made.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {where} is in use: choose another one, or 0 for any free port") from None
        raise InputError(f"cannot listen on {where}: {printable(error.strerror or str(error))}") from None
    return made


def url_of(host: str, port: int) -> str:
    """Where a server that listens on `host` is reached from here, without `/v1`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def ask(url: str, timeout_s: float, data: bytes | None = None) -> bytes:
    """A question of ours to our own process. Raises `OSError`."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy before our own processes
    with direct.open(urllib.request.Request(url, data), timeout=timeout_s) as reply:
        raw: bytes = reply.read()
    return raw
