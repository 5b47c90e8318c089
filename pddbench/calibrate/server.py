"""A streaming server of known truth, in a process of its own: every event carries the time just before its write.

Run as a module; it prints its port and serves loopback until its input closes, then says how late it was itself. A
request asks for its timing in headers: `x-ttft-us`, `x-itl-us`, `x-ntok`.
"""

from __future__ import annotations

import heapq
import re
import select
import socket
import sys
import time
from typing import TextIO

import msgspec

from pddbench.timeliness import ask_for_short_slices

EVENTS_A_TURN = 64
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENT = b'data: {"id":"calibrate","choices":[{"index":0,"text":" x","finish_reason":%b}],"ns":"%019d"}\n\n'
_TAIL = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":%d}}\n\ndata: [DONE]\n\n'


def truth_ns(data: bytes) -> int | None:
    """The server's own stamp in an event; None in one that has none."""
    found = re.search(rb'"ns":"(\d{19})"', data)
    return int(found[1]) if found else None


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Stream:
    """One connection and the answer it is giving."""

    __slots__ = ("buffer", "due_ns", "gap_ns", "made", "open", "socket", "wanted")

    def __init__(self, sock: socket.socket) -> None:
        self.socket, self.buffer, self.open = sock, b"", True
        self.due_ns = self.gap_ns = self.made = self.wanted = 0

    def request(self, now_ns: int) -> bool:
        """Take a request from the buffer, if a whole one is there."""
        head, blank, body = self.buffer.partition(b"\r\n\r\n")
        if not blank or len(body) < _field(head, b"content-length", 0):
            return False
        self.buffer = b""
        self.due_ns = now_ns + 1000 * _field(head, b"x-ttft-us", 20_000)
        self.gap_ns = 1000 * _field(head, b"x-itl-us", 20_000)
        self.wanted, self.made = max(1, _field(head, b"x-ntok", 16)), 0
        return True

    def event(self) -> int:
        """Write the next event; returns how late it was."""
        self.made += 1
        last = self.made == self.wanted
        out = HEAD if self.made == 1 else b""
        t_ns = time.monotonic_ns()
        out += _chunk(_EVENT % (b'"length"' if last else b"null", t_ns))
        if last:
            out += _chunk(_TAIL % (self.wanted, self.wanted + 1)) + b"0\r\n\r\n"
        try:
            self.open = self.socket.send(out) == len(out)
        except OSError:
            self.open = False
        late_ns = t_ns - self.due_ns
        self.due_ns += self.gap_ns
        return late_ns


def _field(head: bytes, name: bytes, otherwise: int) -> int:
    found = re.search(rb"\r\n" + name + rb":\s*(\d+)", head, re.IGNORECASE)
    return int(found[1]) if found else otherwise


class Server:
    """One thread: epoll and a heap of deadlines."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._streams: dict[int, _Stream] = {}
        self._due: list[tuple[int, int]] = []
        self.late_ns: list[int] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def run(self, until: TextIO) -> None:
        """Serve until `until` has something to read, its end above all."""
        self._epoll.register(until, select.EPOLLIN)
        while True:
            wait_s = (self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else 1.0
            for fd, _ in self._epoll.poll(max(0.0, wait_s - 0.0005), 256):  # epoll rounds up to a millisecond
                if fd == until.fileno():
                    return
                self._ready(fd)
            self._send_due()

    def _ready(self, fd: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
            return
        stream = self._streams[fd]
        try:
            data = stream.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            stream.open = False
            del self._streams[fd]
            self._epoll.unregister(fd)
            stream.socket.close()
            return
        stream.buffer += data
        if stream.request(time.monotonic_ns()):
            heapq.heappush(self._due, (stream.due_ns, fd))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._streams[sock.fileno()] = _Stream(sock)
            self._epoll.register(sock, select.EPOLLIN)

    def _send_due(self) -> None:
        for _ in range(EVENTS_A_TURN):
            if not self._due or self._due[0][0] > time.monotonic_ns():
                return
            _, fd = heapq.heappop(self._due)
            stream = self._streams.get(fd)
            if stream is None:
                continue
            self.late_ns.append(stream.event())
            if stream.open and stream.made < stream.wanted:
                heapq.heappush(self._due, (stream.due_ns, fd))

    def report(self) -> dict[str, float]:
        """Events sent, and how late they were at P99 (ms)."""
        late = sorted(self.late_ns)
        return {"events": len(late), "late_p99_ms": late[len(late) * 99 // 100] / 1e6 if late else 0.0}


def main() -> None:
    """Serve until the parent closes our input."""
    ask_for_short_slices()
    server = Server()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.run(sys.stdin)
    sys.stdout.write(msgspec.json.encode(server.report()).decode() + "\n")


if __name__ == "__main__":
    main()
