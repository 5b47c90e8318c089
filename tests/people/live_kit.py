"""A board fed from frames written down here, as a spool would hold them."""

from __future__ import annotations

import json
import struct
import threading
from contextlib import contextmanager

from pddbench.live.board import Announced, Board
from pddbench.live.server import bind, serve, url
from pddbench.replay import frames

MS = 1_000_000
S = 1000 * MS


def event(text="", **more):
    """One server-sent event of a completion stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text, **more}]}).encode() + b"\n\n"


def request(
    index, due_ns, *, first_ms=None, end_ms=100, status=200, ending="eof", error=None, handed_ms=0, kernel=False
):
    """Frames of one request; without `first_ms` no token ever comes. `kernel`: reads have the kernel's stamps."""
    handed_ns = due_ns + handed_ms * MS
    yield frames.Handed(index, handed_ns, due_ns, due_ns, due_ns, 0, "", False)
    yield frames.Answered(index, handed_ns, False, handed_ns, status, "text/event-stream", "")
    if first_ms is not None:
        role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
        first_ns = due_ns + first_ms * MS
        stamp = (struct.pack("@qq", first_ns // S, first_ns % S),) if kernel else ()
        yield frames.Reads(index, [(due_ns + MS, role), (first_ns, event("a"), *stamp)])
        yield frames.Reads(index, [(due_ns + (first_ms + 10) * MS, event("b"))])
    if end_ms is not None:
        yield frames.Ended(index, due_ns + end_ms * MS, ending, error)


def health(t_ns, lag_ms=0.1, cpu=0.2, waited_ms=0):
    """A second of the client's health."""
    return frames.Health(t_ns, [round(lag_ms * MS)] * 200, cpu, waited_ms * MS, 100 << 20, 1)


def board(runs=(("baseline", 1), ("pdd", 1)), requests=10, **more):
    """A board whose first run has begun at 0."""
    made = Board(
        Announced(name="made up", folder="/nowhere", runs=list(runs), requests=requests, planned_s=60.0, **more)
    )
    made.begin(0)
    return made


def busy_board():
    """Two runs, the first over and the second half done: every metric has a value."""
    made = board()
    for watch in made.watches:
        if watch is made.watches[1]:
            made.watches[0].status = "complete"
            made.begin(20 * S)
        watch.take(frames.Zero(1 * S))
        for i in range(8):
            for frame in request(i, (1 + i) * S, first_ms=200 + 100 * i, end_ms=None if i == 7 else 900):
                watch.take(frame)
        for frame in request(8, 5 * S, status=503, error="busy"):
            watch.take(frame)
        watch.take(frames.NotSent(9, "parent_failed", None, None, None))
        watch.take(health(5 * S))
        watch.take(health(6 * S, waited_ms=30))
    return made


@contextmanager
def served(made):
    """The board by HTTP on a free port of loopback; gives the URL."""
    listener = bind(":0")
    where = url(listener)
    stop = serve(listener, made, threading.Lock())
    try:
        yield where
    finally:
        stop()
