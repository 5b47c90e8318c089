"""One request and its raw answer, and what a transport must do: the seam between aiohttp and anything faster."""

from __future__ import annotations

import errno
import re
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec

from pddbench.errors import InputError
from pddbench.replay.stream import Ending, RawRead
from pddbench.text import printable

Reader = Literal["native", "python", "aiohttp"]
"""Who reads a run's answers: the thread in C, the event loop from raw sockets, or aiohttp (TLS, proxies)."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go. `url` is the full one (`endpoint_url`); the credential is named, never held.

    `keep_alive_s`: an idle connection older than that is not used again. It must lie clearly below the servers' own
    limit (1 s and more are common), or a request may meet a connection that is just being closed.
    """

    url: str
    headers: dict[str, str] = {}
    api_key_env: str | None = None
    stall_timeout_s: float = 300.0
    request_limit_s: float = 3600.0
    max_start_rate: float | None = None
    max_concurrency: int | None = None
    keep_alive_s: float = 0.5
    trust_env: bool = False


OWN_FAILURE = "this machine gives no connection"
"""How the error of a request begins to be told that failed by our own host's limits, not by the endpoint."""

_OWN = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}


def own_failure(error: BaseException | None) -> str:
    """`OWN_FAILURE` and a space for an error of our own host's limits (descriptors, memory, ports); else nothing."""
    return f"{OWN_FAILURE}: " if isinstance(error, OSError) and error.errno in _OWN else ""


Packed = tuple[int, bytes]
"""A number of reads, and they as the spool has them: msgpack, one after the other."""


class Source(Protocol):
    """Who still holds what comes for an exchange."""

    def collect(self) -> None:
        """Put what has come so far into `Exchange.packed`, but for an error's body, which may hold a secret."""

    def last_byte_ns(self) -> int:
        """When the last byte came; -1 before the first."""


class Exchange:
    """What happened to one request: raw reads and stamps (CLOCK_MONOTONIC ns), nothing interpreted.

    `handed_ns` is when the engine gave it to the transport, `due_ns` before which it does not leave (0: at once),
    `began_ns` when it began to connect, or to be sent on a connection that was there (None: when it was handed over);
    `sent_ns` when the bytes began to leave;
    `headers_ns` when the head of the response was there. `headers_kernel` and the third element of
    a read are the kernel's own receive stamps as it gave them (`kernel.KernelClock` reads them). `changed` tells the
    spool to note them. A reader of its own leaves reads in `packed`, before those in `reads`; `source` holds more.
    """

    __slots__ = (
        "began_ns", "changed", "content_type", "due_ns", "end_ns", "ending", "error", "handed_ns", "headers_kernel",
        "headers_ns", "index", "last_byte_ns", "location", "packed", "reads", "reused", "sent_ns", "source", "status",
    )  # fmt: skip

    def __init__(self, index: int, handed_ns: int, due_ns: int = 0) -> None:
        self.index = index
        self.handed_ns = handed_ns
        self.due_ns = due_ns
        self.began_ns: int | None = None
        self.sent_ns: int | None = None
        self.reused = False
        self.headers_ns: int | None = None
        self.headers_kernel: bytes | None = None
        self.status: int | None = None
        self.content_type = ""
        self.location = ""
        self.reads: list[RawRead] = []
        self.packed: list[Packed] = []
        self.source: Source | None = None
        self.last_byte_ns = max(handed_ns, due_ns)
        self.end_ns: int | None = None
        self.ending: Ending | None = None
        self.error: str | None = None
        self.changed = False

    def all_reads(self) -> list[RawRead]:
        """The reads that are here, in order; they stay here."""
        return [read for packed in self.packed for read in unpacked(packed)] + self.reads


def compressed(coding: str) -> str | None:
    """What to say should an answer with this `Content-Encoding` not be understood; None where it is as asked for."""
    coding = printable(coding, 40)
    if coding.lower() in ("", "identity"):
        return None
    return f"the answer is compressed ({coding}), which was not asked for"


def unpacked(packed: Packed) -> list[Any]:
    """Reads from their packed form."""
    n, entries = packed
    found: list[Any] = _DECODER.decode(b"\xdd" + n.to_bytes(4, "big") + entries)
    return found


_DECODER = msgspec.msgpack.Decoder(list[tuple[Any, ...]])


class Transport(Protocol):
    """Sends bodies and keeps what comes back. It never retries, follows nothing, and interprets nothing.

    `reader` says who reads the answers: "native", "python" or "aiohttp". `lead_ns`: it sends at `Exchange.due_ns`
    itself, and wants requests so long before.
    """

    @property
    def lead_ns(self) -> int:
        """How long before it is due a request should be given to it; 0: it sends at once whatever it gets."""

    @property
    def reader(self) -> Reader:
        """Who reads the answers."""

    async def perform(self, exchange: Exchange, body: bytes, request_id: str) -> None:
        """Send `body`, never before `exchange.due_ns`, and fill `exchange` until its `ending` is set.

        Cancelled: the ending is `cancelled`.
        """

    def newest_read(self) -> tuple[int, bytes] | None:
        """Our stamp of the newest read and the kernel's as it gave it; None where there is none."""

    def reader_cpu_ns(self) -> int:
        """CPU time that a thread has taken which reads beside the interpreter; 0 where there is none."""

    def gather(self, parts: int) -> bytes:
        """Frames for the spool: reads that a reader of its own holds, of one in `parts` of the exchanges; they take
        turns. Nothing where there is no such reader: then all reads are in the exchanges."""  # fmt: skip

    async def close(self) -> None:
        """Close all connections."""


def endpoint_url(base_url: str, endpoint: str) -> str:
    """The full URL of an endpoint; `/v1` is never doubled, and any path and query of the base are kept."""
    parts = urlsplit(base_url if "://" in base_url else "http://" + base_url)
    if parts.scheme not in ("http", "https"):
        raise InputError(f"base URL: scheme {parts.scheme!r} cannot be used, give http:// or https://")
    try:
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"base URL: {error}") from None
    if not host:
        raise InputError("base URL has no host: give one like http://127.0.0.1:8000/v1")
    path = parts.path.rstrip("/")
    wanted = "/" + endpoint.strip("/")
    if path.endswith(wanted):
        wanted = ""
    version = re.match(r"/v\d+(?=/)", wanted)
    if version and path.endswith(version.group()):
        wanted = wanted[version.end() :]
    return urlunsplit((parts.scheme, parts.netloc, path + wanted, parts.query, ""))
