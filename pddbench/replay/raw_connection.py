"""Connections of the raw transport, and the reader in Python: what is used where there is no native one."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from pddbench.replay.exchange import Exchange, Reader, compressed
from pddbench.replay.http1 import Body, Head, HttpError, body_of, parse_head, split_head
from pddbench.replay.kernel import ANCILLARY_BYTES, ask_for_stamps
from pddbench.replay.stream import RawRead

READ_BYTES = 64 << 10
BATCH = 64  # reads a wake-up before timers and sends get their turn
MAX_RESPONSE_BYTES = 1 << 30
MAX_ERROR_BODY_BYTES = 64 << 10


class Closed(Exception):
    """The server closed the connection too early: a few words."""


class SocketReader(Protocol):
    """Reads all connections of a transport."""

    @property
    def name(self) -> Reader:
        """Who it is."""

    @property
    def lead_ns(self) -> int:
        """See `Transport.lead_ns`."""

    async def connect(
        self, sock: socket.socket, address: tuple[object, ...], hide: Callable[[str], str], secrets: list[str]
    ) -> Connection:
        """Connect a socket, which does not block; it is read from now on. Raises `OSError`."""

    def prepare(
        self, sock: socket.socket, address: tuple[object, ...], hide: Callable[[str], str], secrets: list[str]
    ) -> Connection | None:
        """A connection that is opened when a request that is armed on it is due; None: this one cannot do that."""

    def newest_read(self) -> tuple[int, bytes] | None:
        """See `Transport.newest_read`."""

    def cpu_ns(self) -> int:
        """See `Transport.reader_cpu_ns`."""

    def gather(self, parts: int) -> bytes:
        """See `Transport.gather`."""

    def close(self) -> None:
        """Close every connection, and end."""


class Poller:
    """Reads whatever is ready on any connection. One descriptor in the event loop, whatever their number.

    A `SocketReader`.
    """

    name: Reader = "python"
    lead_ns = 0

    def prepare(
        self, sock: socket.socket, address: tuple[object, ...], hide: Callable[[str], str], secrets: list[str]
    ) -> Connection | None:
        """None: what is sent when it is due is sent by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._connections: dict[int, PolledConnection] = {}
        self.sizes: dict[bytes, int] = {}  # of chunks, for all connections
        self._newest: tuple[int, bytes] | None = None  # a late read of the last batch: our stamp and the kernel's
        loop.add_reader(self._epoll.fileno(), self._drain)

    async def connect(
        self, sock: socket.socket, address: tuple[object, ...], hide: Callable[[str], str], secrets: list[str]
    ) -> Connection:
        """See `SocketReader.connect`."""
        await self._loop.sock_connect(sock, address)
        found = PolledConnection(sock, self, hide, secrets)
        self._connections[found.fd] = found
        self._epoll.register(found.fd, select.EPOLLIN | select.EPOLLRDHUP)
        return found

    def newest_read(self) -> tuple[int, bytes] | None:
        """See `Transport.newest_read`."""
        return self._newest

    def cpu_ns(self) -> int:
        """None of its own."""
        return 0

    def gather(self, parts: int) -> bytes:
        """Nothing: all reads are in their exchanges."""
        return b""

    def remove(self, connection: PolledConnection) -> None:
        """Never again."""
        if self._connections.pop(connection.fd, None) is not None:
            self._epoll.unregister(connection.fd)

    def close(self) -> None:
        """Close every connection and the descriptor."""
        for connection in list(self._connections.values()):
            connection.close()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _drain(self) -> None:
        """The hot path: a read is kept as it came with our stamp and the kernel's; only its framing is looked at."""
        connections, now_ns = self._connections, time.monotonic_ns
        t_ns, kernel = 0, None
        for fd, _ in self._epoll.poll(0, BATCH):
            connection = connections.get(fd)
            if connection is None:
                continue  # closed by an earlier one of this batch
            try:
                data, ancillary, _, _ = connection.receive(READ_BYTES, ANCILLARY_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                connection.lost(error)
                continue
            t_ns = now_ns()
            kernel = ancillary[0][2] if ancillary else None
            body = connection.body
            if body is None or not data:
                connection.take(data, t_ns, kernel)
                continue
            try:
                piece = body.feed(data)
            except HttpError as error:
                connection.lost(error)
                continue
            if piece:
                connection.keep((t_ns, piece, kernel) if kernel is not None else (t_ns, piece))
                connection.exchange.last_byte_ns = t_ns
                connection.room -= len(piece)
            if body.done or connection.room < 0:
                connection.over(t_ns, body.surplus, body.done)
        if kernel is not None:
            self._newest = t_ns, kernel


_NO_EXCHANGE = Exchange(-1, 0)


class Connection(ABC):
    """One socket, whoever reads it. Between requests it is idle: anything that then arrives closes it."""

    __slots__ = ("_answered", "_hide", "_secrets", "exchange", "fd", "idle_since_ns", "open", "reusable", "socket")

    def __init__(self, sock: socket.socket, hide: Callable[[str], str], secrets: list[str]) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask_for_stamps(sock)
        self.socket, self.fd = sock, sock.fileno()
        self._hide, self._secrets = hide, secrets
        self.open, self.reusable = True, True
        self.idle_since_ns = 0
        self._answered: asyncio.Future[None] | None = None
        self.exchange = _NO_EXCHANGE

    def is_good(self) -> bool:
        """Whether an idle connection can take a request, as far as is known."""
        return self.open

    def begin(self, exchange: Exchange) -> asyncio.Future[None]:
        """The next answer belongs to `exchange`; the future is done when it is over, and raises what broke it."""
        self.exchange = exchange
        self._answered = asyncio.get_running_loop().create_future()
        return self._answered

    def send(self, head: bytes, body: bytes) -> bytes:
        """Give the socket what it takes; returns the rest. A broken connection shows in the answer, not here."""
        try:
            sent = self.socket.sendmsg((head, body))
        except BlockingIOError:
            sent = 0
        except OSError:
            self.reusable = False
            return b""
        if sent == len(head) + len(body):
            return b""
        return (head + body)[sent:]

    def arm(self, head: bytes, body: bytes, send_rest: Callable[[bytes], None]) -> bool:
        """Let a thread beside the interpreter send it at `Exchange.due_ns`, if there is one, and time for it.

        It sets `sent_ns` then; `send_rest` is called with what the socket did not take at once. Should the connection
        break before, or not come to be, the answer raises with `sent_ns` unset: nothing has left.
        """
        return False

    def note(self, head: Head, t_ns: int, kernel: bytes | None) -> None:
        """The head of the answer was complete with a read of these stamps."""
        exchange = self.exchange
        exchange.headers_ns, exchange.headers_kernel = t_ns, kernel
        exchange.last_byte_ns = max(exchange.last_byte_ns, t_ns)
        exchange.content_type = self._hide(head.fields.get("content-type", ""))[:200]
        exchange.location = self._hide(head.fields.get("location", ""))[:1000]
        exchange.error = compressed(self._hide(head.fields.get("content-encoding", "")))
        exchange.status = head.status
        exchange.changed = True
        self.reusable = self.reusable and head.keeps_alive

    def over(self, t_ns: int, surplus: bool, whole: bool) -> None:
        """The answer is complete (`whole`), or larger than we want to know; `surplus`: more came than it said."""
        exchange = self.exchange
        exchange.ending, exchange.end_ns = "eof", t_ns
        if surplus or not whole:
            self.reusable = False
        if exchange.status is None or not 200 <= exchange.status < 300:
            self.hide_secrets()
        elif not whole:
            exchange.ending, exchange.error = "too_large", f"the answer is larger than {MAX_RESPONSE_BYTES} bytes"
        self._settle(None)

    def hide_secrets(self) -> None:
        """The beginning of an error's body, with our own credential taken out should the server repeat it."""
        exchange = self.exchange
        body = b"".join(read[1] for read in exchange.all_reads())[:MAX_ERROR_BODY_BYTES]
        for secret in self._secrets:
            body = body.replace(secret.encode(), b"***")
        exchange.packed.clear()
        exchange.reads[:] = [(exchange.last_byte_ns, body)] if body else []

    def lost(self, error: Exception) -> None:
        """The connection broke: whoever waits for an answer is told."""
        self.reusable = False
        self.stop_reading()
        if self.exchange.status is not None and not 200 <= self.exchange.status < 300:
            self.hide_secrets()
        self._settle(error)

    def _settle(self, error: Exception | None) -> None:
        answered = self._answered
        if answered is None or answered.done():
            self.close()
        elif error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)

    def finish(self) -> bool:
        """The exchange is done with this connection; whether it can serve another."""
        answered, self._answered = self._answered, None
        # since its last byte, as the server counts it: on a busy machine we may come here much later
        self.idle_since_ns = self.exchange.last_byte_ns
        self.exchange = _NO_EXCHANGE
        good = answered is not None and answered.done() and not answered.cancelled() and answered.exception() is None
        return good and self.reusable and self.open

    @abstractmethod
    def stop_reading(self) -> None:
        """Nothing more is read from it."""

    def close(self) -> None:
        """Close the socket."""
        if self.open:
            self.open = False
            self.stop_reading()
            self.socket.close()


class PolledConnection(Connection):
    """A connection that the event loop reads."""

    __slots__ = ("_head", "_poller", "_refused", "body", "keep", "receive", "room")

    def __init__(self, sock: socket.socket, poller: Poller, hide: Callable[[str], str], secrets: list[str]) -> None:
        super().__init__(sock, hide, secrets)
        self.receive = sock.recvmsg
        self._poller = poller
        self.body: Body | None = None
        self.room = 0
        self._head = b""
        self._refused: list[RawRead] = []  # an error's body: not to the spool before our credential is taken out
        self.keep = self.exchange.reads.append

    def begin(self, exchange: Exchange) -> asyncio.Future[None]:
        """See `Connection.begin`."""
        self.keep, self._refused = exchange.reads.append, []
        self.body, self._head, self.room = None, b"", MAX_RESPONSE_BYTES
        return super().begin(exchange)

    def take(self, data: bytes, t_ns: int, kernel: bytes | None) -> None:
        """A read that is not just body: the end of the connection, a head, or something nobody asked for."""
        if self._answered is None or self._answered.done():
            self.close()
        elif not data:
            self._ended(t_ns)
        else:
            try:
                self._take_head(data, t_ns, kernel)
            except HttpError as error:
                self.lost(error)

    def _take_head(self, data: bytes, t_ns: int, kernel: bytes | None) -> None:
        self.exchange.last_byte_ns = t_ns
        self._head += data
        while parts := split_head(self._head):
            head = parse_head(parts[0])
            self._head = parts[1]
            if head.status >= 200:
                break
            if head.status == 101:
                raise HttpError("it switches protocols")
        else:
            return
        self.note(head, t_ns, kernel)
        if not 200 <= head.status < 300:
            self.room, self.keep = MAX_ERROR_BODY_BYTES, self._refused.append
        self.body = body = body_of(head, self._poller.sizes)
        rest, self._head = self._head, b""
        if rest and (piece := body.feed(rest)):
            self.keep((t_ns, piece, kernel) if kernel is not None else (t_ns, piece))
            self.room -= len(piece)
        if body.done or self.room < 0:
            self.over(t_ns, body.surplus, body.done)

    def _ended(self, t_ns: int) -> None:
        """The server closed the connection."""
        self.reusable = False
        if self.body is None:
            self.lost(Closed("Server disconnected"))
        elif (wrong := self.body.closed()) is not None:
            self.lost(Closed(wrong))
        else:
            self.over(t_ns, False, True)

    def hide_secrets(self) -> None:
        """See `Connection.hide_secrets`."""
        self.exchange.reads += self._refused
        self._refused = []
        super().hide_secrets()

    def finish(self) -> bool:
        """See `Connection.finish`."""
        if self._refused:  # given up before its end
            self.hide_secrets()
        self.keep, self.body = _NO_EXCHANGE.reads.append, None
        return super().finish()

    def stop_reading(self) -> None:
        """See `Connection.stop_reading`."""
        self._poller.remove(self)
