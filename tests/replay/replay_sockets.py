"""Servers at the level of the socket: what they do with each connection is the test's own."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager


@contextmanager
def served(*turns):
    """A server whose n-th connection is served by `turns[n]`, one after the other; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for turn in turns:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                turn(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
    finally:
        thread.join(20)
        listener.close()
        assert not thread.is_alive()


def read_request(connection):
    """One request: its body, and when its first byte was there."""
    data, first_ns = b"", 0
    while True:
        more = connection.recv(65536)
        assert more, "the client went away"
        first_ns = first_ns or time.monotonic_ns()
        data += more
        head, end, so_far = data.partition(b"\r\n\r\n")
        if end:
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
            assert len(so_far) <= int(length[15:]), "more came than one request"
            if len(so_far) == int(length[15:]):
                return so_far, first_ns
