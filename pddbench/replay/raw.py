"""The streaming transport for plain HTTP: raw sockets, and the kernel's receive stamp on every read.

All connections are read by one `SocketReader`: a thread in C (`replay.native`), or where that was not compiled the
event loop, by an epoll descriptor of its own; no read has a callback, task or future. Policy as in `client`: nothing is
queued, retried, followed or decompressed, and idle connections are dropped after `keep_alive_s`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import socket
import time
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from pddbench.replay.exchange import Exchange, Reader, Target, own_failure
from pddbench.replay.headers import hider, request_headers, request_id_value, secrets_of
from pddbench.replay.http1 import HttpError
from pddbench.replay.raw_connection import Closed, Connection, SocketReader
from pddbench.replay.stall import StallTimer
from pddbench.text import printable

DNS_S = 300.0
EARLY_S = 0.001  # the event loop's timers may be early by their resolution

Address = tuple[socket.AddressFamily, tuple[object, ...]]


class RawClient:
    """Posts bodies to one `http://` target and keeps every read with its stamps; a `Transport`."""

    def __init__(self, target: Target, make_reader: Callable[[asyncio.AbstractEventLoop], SocketReader]) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        parts = urlsplit(target.url)
        self._host, self._port = str(parts.hostname), parts.port or 80
        self._where = f"{self._host}:{self._port}"
        headers = request_headers(target)
        self._secrets = secrets_of(target, headers)
        self._hide = hider(self._secrets)
        self._head = _head(target.url, headers)
        self._reader = make_reader(self._loop)
        self._idle: list[Connection] = []
        self._addresses: list[Address] = []
        self._resolved_s = 0.0
        self._looked_up_ns = 0
        self._looking_up: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close all connections."""
        self._reader.close()
        self._idle.clear()
        if self._looking_up is not None:
            self._looking_up.cancel()

    @property
    def reader(self) -> Reader:
        """See `Transport.reader`."""
        return self._reader.name

    @property
    def lead_ns(self) -> int:
        """See `Transport.lead_ns`."""
        return self._reader.lead_ns

    def newest_read(self) -> tuple[int, bytes] | None:
        """See `Transport.newest_read`."""
        return self._reader.newest_read()

    def reader_cpu_ns(self) -> int:
        """See `Transport.reader_cpu_ns`."""
        return self._reader.cpu_ns()

    def gather(self, parts: int) -> bytes:
        """See `Transport.gather`."""
        return self._reader.gather(parts)

    async def perform(self, exchange: Exchange, body: bytes, request_id: str) -> None:
        """See `Transport.perform`."""
        stall = StallTimer(exchange, self._target.stall_timeout_s, self._target.request_limit_s)
        try:
            await self._perform(exchange, body, request_id)
        except asyncio.CancelledError:
            if not stall.expired:
                exchange.ending, exchange.error = "cancelled", "stopped while in flight"
                raise
            stall.note(exchange, self._where, self._target.stall_timeout_s)
        except (OSError, HttpError, Closed) as error:
            exchange.ending = "connection" if exchange.status is None else "broken"
            exchange.error = self._hide(self._sentence(error, exchange))
        finally:
            if exchange.end_ns is None:
                exchange.end_ns = time.monotonic_ns()
            stall.cancel()

    async def _perform(self, exchange: Exchange, body: bytes, request_id: str) -> None:
        head = b"%b%b\r\nContent-Length: %d\r\n\r\n" % (self._head, request_id_value(request_id).encode(), len(body))
        while (connection := self._take_idle()) is not None:
            exchange.reused = True
            try:
                return await self._talk(connection, exchange, head, body)
            except (OSError, HttpError, Closed):
                if exchange.sent_ns is not None:
                    raise  # else the server gave up an idle connection before anything left on it
        exchange.reused, exchange.began_ns = False, max(time.monotonic_ns(), exchange.due_ns)
        try:
            asked_ns, addresses, failed = time.monotonic_ns(), await self._resolve(), None
            if self._looked_up_ns > asked_ns:  # what came between the answer and us is our own lateness
                exchange.began_ns += max(0, time.monotonic_ns() - max(self._looked_up_ns, exchange.due_ns))
            connection = self._prepare(exchange, *addresses[0])
        except _NotConnected:
            if (early_s := (exchange.due_ns - time.monotonic_ns()) / 1e9) <= 0:
                raise
            await asyncio.sleep(early_s + EARLY_S)  # nothing fails before it is due, and by then it may be possible
            addresses, failed, connection = await self._resolve(), None, None
        if connection is not None:
            try:
                return await self._talk(connection, exchange, head, body)
            except OSError as error:
                if exchange.sent_ns is not None:
                    raise
                addresses, failed = addresses[1:], error
        return await self._talk(await self._connect(addresses, failed), exchange, head, body)

    async def _talk(self, connection: Connection, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Send a request when it is due, and wait for the end of its answer."""
        answered = connection.begin(exchange)
        sending: list[asyncio.Task[None]] = []

        def send_rest(rest: bytes) -> None:
            sending.append(self._loop.create_task(self._send_rest(connection, rest, answered)))

        try:
            if not connection.arm(head, body, send_rest):
                exchange.sent_ns = exchange.last_byte_ns = time.monotonic_ns()
                exchange.changed = True
                if exchange.reused:
                    exchange.began_ns = exchange.sent_ns
                if rest := connection.send(head, body):
                    send_rest(rest)
            await answered
        finally:
            if sending:
                if not answered.done() or answered.cancelled():
                    sending[0].cancel()
                await asyncio.gather(*sending, return_exceptions=True)
            self._give_back(connection)

    async def _send_rest(self, connection: Connection, rest: bytes, answered: asyncio.Future[None]) -> None:
        """What the socket did not take at once; ends early when the server answers without reading it all."""
        connection.reusable = False
        sending = self._loop.create_task(self._loop.sock_sendall(connection.socket, rest))
        try:
            await asyncio.wait((sending, answered), return_when=asyncio.FIRST_COMPLETED)
            connection.reusable = sending.done() and not sending.cancelled() and sending.exception() is None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _take_idle(self) -> Connection | None:
        """The connection used last, if it is fresh; stale ones are closed."""
        limit_ns = time.monotonic_ns() - round(self._target.keep_alive_s * 1e9)
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since_ns > limit_ns and connection.is_good():
                return connection
            connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        if not connection.finish() or self._target.keep_alive_s <= 0:
            connection.close()
            return
        self._idle.append(connection)
        while len(self._idle) > 1 and not self._fresh(self._idle[0]):
            self._idle.pop(0).close()

    def _fresh(self, connection: Connection) -> bool:
        age_ns = time.monotonic_ns() - connection.idle_since_ns
        return connection.is_good() and age_ns < self._target.keep_alive_s * 1e9

    def _prepare(
        self, exchange: Exchange, family: socket.AddressFamily, address: tuple[object, ...]
    ) -> Connection | None:
        """A connection that will be opened when the request is due; None: it is due, or must be opened from here."""
        if exchange.due_ns <= time.monotonic_ns():
            return None
        sock = _new_socket(family)
        try:
            connection = self._reader.prepare(sock, address, self._hide, self._secrets)
        except BaseException:
            sock.close()
            raise
        if connection is None:
            sock.close()
        return connection

    async def _connect(self, addresses: list[Address], failed: OSError | None) -> Connection:
        """A new connection to the first address that takes one; `failed`: what an earlier attempt met."""
        for family, address in addresses:
            sock = _new_socket(family)
            try:
                return await self._reader.connect(sock, address, self._hide, self._secrets)
            except OSError as error:
                sock.close()
                failed = error
            except BaseException:
                sock.close()
                raise
        raise _NotConnected(failed)

    async def _resolve(self) -> list[Address]:
        """Addresses of the host, asked anew every five minutes, taken in turns. All who wait share one look-up."""
        if not self._addresses and (literal := _literal(self._host, self._port)) is not None:
            self._addresses, self._resolved_s = [literal], math.inf
        if not self._addresses or self._loop.time() - self._resolved_s > DNS_S:
            if self._looking_up is None:
                self._looking_up = self._loop.create_task(self._look_up())
            try:
                await asyncio.shield(self._looking_up)  # who is stopped does not stop it for the others
            except OSError as error:
                raise _NotConnected(error) from None
        self._addresses.append(self._addresses.pop(0))
        return list(self._addresses)

    async def _look_up(self) -> None:
        """Ask for the host's addresses."""
        try:
            found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
            self._resolved_s, self._looked_up_ns = self._loop.time(), time.monotonic_ns()
        finally:
            self._looking_up = None

    def _sentence(self, error: Exception, exchange: Exchange) -> str:
        """What went wrong with the connection, for a person."""
        if isinstance(error, _NotConnected):
            return f"cannot connect to {self._where}: {own_failure(error.cause)}{_reason(error.cause)}"
        detail = _reason(error)
        if exchange.status is not None:
            return f"the stream broke off: {detail}"
        if isinstance(error, HttpError):
            return f"the answer of {self._where} is not HTTP: {detail}"
        kind = "a reused connection" if exchange.reused else "the connection"
        return f"{self._where} closed {kind} before it answered ({detail})"


class _NotConnected(OSError):
    """No address took a connection."""

    def __init__(self, cause: OSError | None) -> None:
        super().__init__()
        self.cause = cause


def _new_socket(family: socket.AddressFamily) -> socket.socket:
    """A TCP socket that does not block."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _NotConnected(error) from None
    sock.setblocking(False)
    return sock


def _reason(error: Exception | None) -> str:
    """A few words for an error."""
    if isinstance(error, socket.gaierror):
        return printable(error.strerror or "the name cannot be resolved", 120)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return printable(str(error), 160) or type(error).__name__


def _literal(host: str, port: int) -> Address | None:
    """The address of a host given as a number, which needs no look-up (that would start a thread)."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return None
    return (socket.AF_INET, (host, port)) if version == 4 else (socket.AF_INET6, (host, port, 0, 0))


def _head(url: str, headers: dict[str, str]) -> bytes:
    """The unchanging part of a request's head, up to the value of its id."""
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~-._") if parts.query else ""
    given = {name.lower() for name in headers}
    lines = [f"POST {path}{query} HTTP/1.1"]
    if "host" not in given:
        lines.append(f"Host: {parts.netloc.rpartition('@')[2]}")
    lines += [
        f"{name}: {value}" for name, value in headers.items() if name.lower() not in ("x-request-id", "content-length")
    ]
    return "\r\n".join([*lines, "X-Request-Id: "]).encode("utf-8", "surrogateescape")
