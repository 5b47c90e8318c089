"""The reader in C as the raw transport uses it: connections, what leaves on them when, and what happened on them."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import struct
import time
from collections.abc import Callable

from pddbench.errors import WorldError
from pddbench.replay.exchange import Exchange, Packed, Reader
from pddbench.replay.frames import Reads, kind_of
from pddbench.replay.http1 import Body, Chunked, Counted, HttpError, body_of, parse_head, split_head
from pddbench.replay.kernel import ANCILLARY_BYTES, STAMP_BYTES
from pddbench.replay.native.compiled import load
from pddbench.replay.raw_connection import MAX_ERROR_BODY_BYTES, MAX_RESPONSE_BYTES, Closed, Connection

MAX_HELD_BYTES = 256 << 20  # of all connections: then the thread stops reading until Python has taken some
MAX_HELD_ONE_BYTES = 8 << 20
LEAD_NS = 20_000_000  # requests are prepared so long before they are due: more than the interpreter is ever late
_EVENTS, _TO_CONNECT = 256, 2
_HEAD, _DONE, _FAULT, _CLOSED, _TOO_LARGE, _UNASKED, _FULL, _CONNECTED, _SENT = (1 << bit for bit in range(9))
_UNTIL_CLOSE, _COUNTED, _CHUNKED = range(3)
_WRONG = {
    -1: "a line of its chunked framing is too long",
    -2: "a chunk is longer than it said",
    -3: "a chunk size is malformed",
}


class _Event(ctypes.Structure):
    _fields_ = (
        ("slot", ctypes.c_int32), ("flags", ctypes.c_uint32), ("code", ctypes.c_int32), ("surplus", ctypes.c_int32),
        ("t_ns", ctypes.c_int64), ("began_ns", ctypes.c_int64), ("sent_ns", ctypes.c_int64),
        ("sent_bytes", ctypes.c_int64),
    )  # fmt: skip


class NativeReader:
    """The thread and its connections; a `raw_connection.Reader`. Its descriptor in the event loop says when to look."""

    name: Reader = "native"
    lead_ns = LEAD_NS

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.c = load()
        self.handle = self.c.pdd_open(kind_of(Reads), MAX_HELD_BYTES, MAX_HELD_ONE_BYTES)
        if not self.handle:
            raise WorldError("the native reader cannot start: the system gives no thread or no descriptors")
        self._loop = loop
        self._events = (_Event * _EVENTS)()
        self._connections: dict[int, NativeConnection] = {}
        self._bytes, self._count = ctypes.c_void_p(), ctypes.c_uint32()
        self._stamp = ctypes.create_string_buffer(STAMP_BYTES)
        self._t_ns = ctypes.c_int64()
        loop.add_reader(self.c.pdd_wake_fd(self.handle), self.look)

    async def connect(
        self, sock: socket.socket, address: tuple[object, ...], hide: Callable[[str], str], secrets: list[str]
    ) -> Connection:
        """See `SocketReader.connect`. On the loopback a connection is there at once."""
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            code = sock.connect_ex(address)
        if code not in (0, errno.EISCONN, errno.EALREADY):
            raise OSError(code, os.strerror(code))
        waits = code == errno.EALREADY
        made = self._add(sock, int(waits), hide, secrets)
        if waits:
            made.connected = self._loop.create_future()
            try:
                await made.connected
            except BaseException:
                made.close()
                raise
        return made

    def prepare(
        self, sock: socket.socket, address: tuple[object, ...], hide: Callable[[str], str], secrets: list[str]
    ) -> Connection | None:
        """See `SocketReader.prepare`."""
        made = self._add(sock, _TO_CONNECT, hide, secrets)
        made.peer = peer_of(sock.family, address)
        return made

    def _add(self, sock: socket.socket, how: int, hide: Callable[[str], str], secrets: list[str]) -> NativeConnection:
        slot = self.c.pdd_add(self.handle, sock.fileno(), how)
        if slot < 0:
            raise OSError(-slot, os.strerror(-slot))
        self._connections[slot] = made = NativeConnection(sock, self, slot, hide, secrets)
        return made

    def remove(self, slot: int) -> None:
        """Never read it again."""
        if self._connections.pop(slot, None) is not None:
            self.c.pdd_remove(self.handle, slot)

    def close(self) -> None:
        """Close every connection and end the thread."""
        for connection in list(self._connections.values()):
            connection.close()
        self._loop.remove_reader(self.c.pdd_wake_fd(self.handle))
        self.c.pdd_close(self.handle)
        self.handle = None

    def newest_read(self) -> tuple[int, bytes] | None:
        """See `Transport.newest_read`."""
        t_ns = self.c.pdd_newest(self.handle, self._stamp)
        return (t_ns, self._stamp.raw) if t_ns else None

    def cpu_ns(self) -> int:
        """See `Transport.reader_cpu_ns`."""
        return int(self.c.pdd_cpu_ns(self.handle))

    def gather(self, parts: int) -> bytes:
        """See `Transport.gather`. What has left since is known then, too."""
        self.look()
        return self._given(self.c.pdd_gather(self.handle, parts, self._bytes))

    def head(self, slot: int) -> bytes:
        """All that has come of an answer whose head is not known yet."""
        return self._given(self.c.pdd_head(self.handle, slot, self._bytes))

    def take(self, slot: int) -> Packed | None:
        """The reads of an answer that were not taken yet."""
        n = self.c.pdd_take(self.handle, slot, self._bytes, self._count)
        return (self._count.value, self._given(n)) if n else None

    def _given(self, n: int) -> bytes:
        """The bytes that the last call gave; its result says how many."""
        if n < 0:
            raise MemoryError
        return ctypes.string_at(self._bytes.value or 0, n) if n else b""

    def disarm(self, slot: int) -> tuple[int, int]:
        """When an armed request began to leave (-1: not, and it will not), and when it began to connect."""
        sent_ns = int(self.c.pdd_disarm(self.handle, slot, self._t_ns))
        return sent_ns, self._t_ns.value

    def body(self, slot: int, kind: int, length: int, skip: int, room: int, private: bool) -> tuple[int, bytes | None]:
        """How the body is delimited; our stamp and the kernel's of the read that completed the head."""
        stamped = self.c.pdd_body(self.handle, slot, kind, length, skip, room, private, self._t_ns, self._stamp)
        return self._t_ns.value, self._stamp.raw if stamped == 1 else None

    def look(self) -> None:
        """Act on what happened: heads before ends, for a whole answer and a close may have come behind one."""
        ends: list[tuple[NativeConnection, int, int]] = []
        while n := self.c.pdd_events(self.handle, self._events, _EVENTS):
            for event in self._events[:n]:
                connection = self._connections.get(event.slot)
                if connection is None:
                    continue
                flags, t_ns = event.flags, event.t_ns
                if flags & _CONNECTED:
                    connection.opened(event.code)
                if flags & _SENT:
                    connection.has_left(event.began_ns, event.sent_ns, event.sent_bytes)
                if flags & _HEAD:
                    connection.head_came()
                if flags & _FULL:
                    connection.collect()
                if flags & (_DONE | _TOO_LARGE):
                    connection.done(t_ns, bool(event.surplus), bool(flags & _DONE))
                if flags & (_FAULT | _CLOSED | _UNASKED):
                    ends.append((connection, t_ns, event.code if flags & _FAULT else 0))
        for connection, t_ns, code in ends:
            connection.ended(t_ns, code)


class NativeConnection(Connection):
    """A connection that the thread reads. It holds an answer's reads until they are collected or gathered."""

    __slots__ = ("_body", "_reader", "_request", "_send_rest", "_slot", "connected", "peer")

    def __init__(
        self, sock: socket.socket, reader: NativeReader, slot: int, hide: Callable[[str], str], secrets: list[str]
    ) -> None:
        super().__init__(sock, hide, secrets)
        self._reader, self._slot = reader, slot
        self._body: Body | None = None
        self._request: tuple[bytes, bytes] | None = None  # what the thread is to send: its memory until it has
        self._send_rest: Callable[[bytes], None] = _nothing
        self.connected: asyncio.Future[None] | None = None
        self.peer = b""  # whom the thread is to connect to when the request is due

    def opened(self, code: int) -> None:
        """The attempt to connect has ended: 0, or why it failed (errno)."""
        if self._request is not None:  # which waited for it
            self.reusable = False
            self.lost(OSError(code, os.strerror(code)))
            return
        if self.connected is None or self.connected.done():
            return
        if code:
            self.connected.set_exception(OSError(code, os.strerror(code)))
        else:
            self.connected.set_result(None)

    def is_good(self) -> bool:
        """See `Connection.is_good`: the thread may know more than we were told."""
        return self.open and self._slot >= 0 and bool(self._reader.c.pdd_good(self._reader.handle, self._slot))

    def begin(self, exchange: Exchange) -> asyncio.Future[None]:
        """See `Connection.begin`."""
        self._body = None
        answered = super().begin(exchange)
        exchange.source = self
        self._reader.c.pdd_begin(self._reader.handle, self._slot, exchange.index & 0xFFFFFFFF)
        return answered

    def arm(self, head: bytes, body: bytes, send_rest: Callable[[bytes], None]) -> bool:
        """See `Connection.arm`."""
        due_ns = self.exchange.due_ns
        if self._slot < 0 or (not self.peer and due_ns <= time.monotonic_ns()):
            return False
        c, handle, peer = self._reader.c, self._reader.handle, self.peer
        self._request, self._send_rest, self.peer = (head, body), send_rest, b""
        if not c.pdd_arm(handle, self._slot, head, len(head), body, len(body), peer, len(peer), due_ns):
            raise MemoryError
        return True

    def has_left(self, began_ns: int, sent_ns: int, n_bytes: int) -> None:
        """The request began to leave then; so much of it was taken by the socket (-1: the connection is broken)."""
        if self._request is None:
            return
        (head, body), self._request = self._request, None
        exchange = self.exchange
        exchange.began_ns, exchange.sent_ns, exchange.changed = began_ns, sent_ns, True
        exchange.last_byte_ns = max(exchange.last_byte_ns, sent_ns)
        if n_bytes < 0:
            self.reusable = False
        elif n_bytes < len(head) + len(body):
            self._send_rest((head + body)[n_bytes:])

    def _disarm(self) -> None:
        """The request does not leave any more, unless it has."""
        if self._request is not None and self._slot >= 0:
            sent_ns, began_ns = self._reader.disarm(self._slot)
            if sent_ns >= 0:
                self.exchange.began_ns, self.exchange.sent_ns, self.exchange.changed = began_ns, sent_ns, True
        self._request = None

    def last_byte_ns(self) -> int:
        """See `exchange.Source`."""
        return int(self._reader.c.pdd_last_ns(self._reader.handle, self._slot)) if self._slot >= 0 else 0

    def collect(self) -> None:
        """See `exchange.Source`."""
        if self._request is not None:
            self._reader.look()  # it may have left
        if self._slot >= 0 and self._is_public() and (taken := self._reader.take(self._slot)) is not None:
            self.exchange.packed.append(taken)

    def _is_public(self) -> bool:
        """Whether what came may go to disk as it is: an error's body may repeat our own credential."""
        status = self.exchange.status
        return status is None or 200 <= status < 300

    def head_came(self) -> None:
        """Bytes came before the body: perhaps the whole head."""
        if self._answered is None or self._answered.done() or self._body is not None:
            return
        data = self._reader.head(self._slot)
        try:
            rest = data
            while parts := split_head(rest):
                head, rest = parse_head(parts[0]), parts[1]
                if head.status >= 200:
                    break
                if head.status == 101:
                    raise HttpError("it switches protocols")
            else:
                return
            self._body = body = body_of(head)
        except HttpError as error:
            self.lost(error)
            return
        public = 200 <= head.status < 300
        room = MAX_RESPONSE_BYTES if public else MAX_ERROR_BODY_BYTES
        kind, length = _framing(body)
        t_ns, kernel = self._reader.body(self._slot, kind, length, len(data) - len(rest), room, not public)
        self.note(head, t_ns, kernel)

    def done(self, t_ns: int, surplus: bool, whole: bool) -> None:
        """The answer is complete (`whole`), or larger than we want to know."""
        if self._answered is not None and not self._answered.done():
            self._gather_rest()
            self.over(t_ns, surplus, whole)

    def ended(self, t_ns: int, code: int) -> None:
        """Nothing more will come: closed by the server (0), an error of the socket (errno) or of the framing (< 0)."""
        self.reusable = False
        if self._answered is None or self._answered.done():
            self.close()
            return
        self._gather_rest()
        if code:
            self.lost(OSError(code, os.strerror(code)) if code > 0 else HttpError(_WRONG[code]))
        elif self._body is None:
            self.lost(Closed("Server disconnected"))
        elif (wrong := self._body.closed()) is not None:
            self.lost(Closed(wrong))
        else:
            self.over(t_ns, False, True)

    def _gather_rest(self) -> None:
        """What the thread still holds of the answer goes to its exchange."""
        exchange = self.exchange
        if exchange.source is not self:
            return
        self._disarm()
        if self._slot >= 0:
            exchange.last_byte_ns = max(exchange.last_byte_ns, self.last_byte_ns())
            if (taken := self._reader.take(self._slot)) is not None:
                exchange.packed.append(taken)
        exchange.source = None

    def finish(self) -> bool:
        """See `Connection.finish`."""
        if self.exchange.source is self:  # given up before its end
            self._gather_rest()
            if not self._is_public():
                self.hide_secrets()
        if self._slot >= 0:
            self._reader.c.pdd_end(self._reader.handle, self._slot)
        return super().finish()

    def stop_reading(self) -> None:
        """See `Connection.stop_reading`."""
        if self._slot >= 0:
            self._gather_rest()
            self._reader.remove(self._slot)
            self._slot = -1


def peer_of(family: socket.AddressFamily, address: tuple[object, ...]) -> bytes:
    """An address as the system has it: `struct sockaddr_in` (ip(7)) or `sockaddr_in6` (ipv6(7))."""
    host, port, *more = address
    number = socket.inet_pton(family, str(host).partition("%")[0])
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H", port) + number + bytes(8)
    flow, scope = more
    return struct.pack("=H", family) + struct.pack("!HI", port, flow) + number + struct.pack("=I", scope)


def _nothing(rest: bytes) -> None:
    """For a connection that never sent anything."""


def _framing(body: Body) -> tuple[int, int]:
    """A body's delimiting in the reader's words."""
    if isinstance(body, Chunked):
        return _CHUNKED, 0
    return (_COUNTED, body.left) if isinstance(body, Counted) else (_UNTIL_CLOSE, 0)


assert ctypes.sizeof(_Event) == 48
assert ANCILLARY_BYTES >= STAMP_BYTES
