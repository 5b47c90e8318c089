"""A known-truth server: raw bytes on a socket at scripted times, each write stamped. No HTTP library in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Reply:
    """What to do with a request: write `head`, then each piece after its delay (s), chunked; end cleanly or cut."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    head: bytes = SSE_HEAD
    chunked: bool = True
    clean: bool = True
    close: bool = False  # close the connection after the reply
    hang: bool = False  # never end


@dataclass
class Seen:
    """One request as the server saw it, CLOCK_MONOTONIC ns."""

    request_id: str
    head: bytes
    body: bytes
    received_ns: int
    connection: int
    wrote_ns: list[int] = field(default_factory=list)
    ended_ns: int | None = None


def plain(status: str, body: bytes = b"", **headers: str) -> Reply:
    """A reply that is not a stream."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return Reply(head="\r\n".join([*lines, "", ""]).encode() + body, chunked=False)


def stream(pieces: list[bytes], gap_s: float = 0.0, first_s: float = 0.0, **more) -> Reply:
    """A stream of pieces at even gaps."""
    return Reply([(gap_s if i else first_s, piece) for i, piece in enumerate(pieces)], **more)


class TruthServer:
    """Serves `reply(seen)`; closes connections idle for `idle_s`."""

    def __init__(self, reply: Callable[[Seen], Reply], idle_s: float = 75.0) -> None:
        self._reply, self._idle_s = reply, idle_s
        self.seen: list[Seen] = []
        self.connections = 0
        self._tasks: set[asyncio.Task] = set()

    def of(self, request_id: str) -> Seen:
        """The only request of that id."""
        (seen,) = [seen for seen in self.seen if seen.request_id == request_id]
        return seen

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._tasks.add(asyncio.current_task())
        self.connections += 1
        number = self.connections
        with suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            while True:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._idle_s)
                fields = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
                }
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                seen = Seen(fields.get(b"x-request-id", b"").decode(), head, body, time.monotonic_ns(), number)
                self.seen.append(seen)
                if not await self._answer(self._reply(seen), seen, writer):
                    break
        writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _answer(self, reply: Reply, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        """Play a reply; whether the connection lives on."""
        writer.write(reply.head)
        for delay_s, piece in reply.pieces:
            if delay_s:
                await asyncio.sleep(delay_s)
            seen.wrote_ns.append(time.monotonic_ns())
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.chunked else piece)
            await writer.drain()
        if reply.hang:
            await asyncio.Event().wait()
        seen.ended_ns = time.monotonic_ns()
        if reply.chunked and reply.clean:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return reply.clean and not reply.close

    async def stop(self) -> None:
        """Cancel what is still open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def truth_server(reply: Callable[[Seen], Reply] | Reply, idle_s: float = 75.0):
    """A running server; `.url` is its completions endpoint."""
    server = TruthServer(reply if callable(reply) else lambda seen: reply, idle_s)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=64 << 20, backlog=4096)
    port = listener.sockets[0].getsockname()[1]
    server.port = port
    server.url = f"http://127.0.0.1:{port}/v1/completions"
    try:
        yield server
    finally:
        listener.close()
        await server.stop()
