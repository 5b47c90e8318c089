"""Running somebody's own commands on the two sides of a link (`pddbench wan exec`)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pddbench import exitcodes
from pddbench.errors import InputError
from pddbench.wan.namespaces import Side
from pddbench.wan.openlink import WanLink

SEPARATOR = ":::"
LOCAL, PEER = "PDDBENCH_WAN_LOCAL", "PDDBENCH_WAN_PEER"
_END_TIMEOUT_S = 5.0
_POLL_S = 0.2


def split_commands(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The server's command (side B; may be empty) and the client's (side A): `SERVER … ::: CLIENT …`, or `CLIENT …`."""
    if words.count(SEPARATOR) > 1:
        raise InputError(f"give one {SEPARATOR!r} between the server's command (side B) and the client's (side A)")
    if SEPARATOR not in words:
        server, client = [], list(words)
    else:
        at = words.index(SEPARATOR)
        server, client = list(words[:at]), list(words[at + 1 :])
        if not server:
            raise InputError(f"no command before {SEPARATOR!r}: leave it out to run one command on side A")
    if not client:
        raise InputError("no command to run on side A: wan exec PROFILE -- [SERVER … :::] CLIENT …")
    return server, client


def run_on_both_sides(link: WanLink, server: Sequence[str], client: Sequence[str]) -> int:
    """Start the server in side B, run the client in side A to its end: its exit code, or 130/143 after a signal.

    Ctrl-C reaches both commands too, as it does without us; SIGTERM is passed on to them. The link must outlive
    neither: the caller closes it.
    """
    caught: list[int] = []
    with _signals(caught.append):
        serving = _start(link.side_b, link.side_a, server, stdin=subprocess.DEVNULL) if server else None
        running = _start(link.side_a, link.side_b, client)
        code = _wait(running, caught)
        for popen in (running, serving):
            _end(popen)
    if caught:
        return exitcodes.SIGINT if caught[0] == signal.SIGINT else exitcodes.SIGTERM
    return code if code >= 0 else 128 - code


def _start(side: Side, other: Side, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    return side.popen(argv, env={**os.environ, LOCAL: side.address, PEER: other.address}, **options)


def _wait(popen: subprocess.Popen[Any], caught: list[int]) -> int:
    """Its exit code; after a signal to us it has a moment to end by itself."""
    left_s = _END_TIMEOUT_S
    while left_s > 0:
        try:
            return popen.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if caught:
                if left_s == _END_TIMEOUT_S and caught[0] == signal.SIGTERM:
                    popen.terminate()
                left_s -= _POLL_S
    popen.kill()
    return popen.wait()


def _end(popen: subprocess.Popen[Any] | None) -> None:
    """Ask a command to end, and insist."""
    if popen is None or popen.poll() is not None:
        return
    popen.terminate()
    try:
        popen.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()


@contextmanager
def _signals(note: Callable[[int], None]) -> Iterator[None]:
    """Note SIGINT and SIGTERM instead of dying by them, so that everything is taken down."""

    def on_signal(number: int, _: FrameType | None) -> None:
        note(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
