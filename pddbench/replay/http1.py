"""HTTP/1.1 responses from raw bytes (RFC 9112): the head, and where a body ends. Pure, incremental, strict.

A body decoder is fed reads in order. `feed` gives the body bytes of a read, `done` says that the message is over,
`surplus` that bytes came after it. `closed` says what a close of the connection means: None, or what is wrong with it.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

MAX_HEAD_BYTES = 64 << 10
MAX_LINE_BYTES = 16 << 10
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_SIZES_KEPT = 4096


class HttpError(Exception):
    """The bytes are not an HTTP/1.1 response: a few words."""


class Head(NamedTuple):
    """A response's head; `fields` by lower-case name, repeated ones joined by commas."""

    minor_version: int
    status: int
    fields: dict[str, str]

    @property
    def keeps_alive(self) -> bool:
        """Whether the server will take another request on this connection."""
        options = [option.strip() for option in self.fields.get("connection", "").lower().split(",")]
        return "close" not in options and (self.minor_version == 1 or "keep-alive" in options)


class Body(Protocol):
    """How a body is delimited."""

    done: bool
    surplus: bool

    def feed(self, data: bytes) -> bytes:
        """The body bytes in this read."""

    def closed(self) -> str | None:
        """What is wrong when the connection closes now; None when that is the proper end."""


def split_head(data: bytes) -> tuple[bytes, bytes] | None:
    """Head (without its blank line) and what follows; None while it is not complete. Raises `HttpError` early."""
    if not data.startswith(b"HTTP/"[: len(data)]):
        raise HttpError("it does not begin with HTTP/")
    head, blank, rest = data.partition(b"\r\n\r\n")
    if len(head) > MAX_HEAD_BYTES:
        raise HttpError(f"its head is larger than {MAX_HEAD_BYTES} bytes")
    return (head, rest) if blank else None


def parse_head(head: bytes) -> Head:
    """A head from its bytes. Raises `HttpError`."""
    first, *lines = head.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise HttpError("its status line is malformed")
    fields: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise HttpError("a header line is malformed")
        name, value = field[1].decode("ascii").lower(), field[2].decode("utf-8", "surrogateescape")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return Head(int(status[1]), int(status[2]), fields)


def body_of(head: Head, sizes: dict[bytes, int] | None = None) -> Body:
    """The decoder for the body that follows `head` (`sizes`: see `Chunked`).

    Raises `HttpError` when its length cannot be known safely.
    """
    coding = head.fields.get("transfer-encoding", "").lower()
    if head.status in (204, 304):
        return Counted(0)
    if coding:
        if coding.split(",")[-1].strip() != "chunked":
            return UntilClose()
        return Chunked(sizes)
    length = head.fields.get("content-length")
    if length is None:
        return UntilClose()
    lengths = {part.strip() for part in length.split(",")}
    if len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,18}", value := lengths.pop()):
        raise HttpError("its content length is malformed")
    return Counted(int(value))


class Chunked:
    """`Transfer-Encoding: chunked`. Reads of whole chunks, the common case, cost a look-up and a slice each.

    `sizes` remembers size lines that were checked; a transport may share it between its connections.
    """

    __slots__ = ("_aligned", "_left", "_line", "_sizes", "_state", "done", "surplus")

    def __init__(self, sizes: dict[bytes, int] | None = None) -> None:
        self.done = self.surplus = False
        self._aligned = True  # the next byte begins a chunk
        self._state = "size"
        self._left = 0
        self._line = b""
        self._sizes: dict[bytes, int] = {} if sizes is None else sizes

    def feed(self, data: bytes) -> bytes:
        """See `Body.feed`."""
        if not self._aligned:
            return self._walk(data)
        end = data.find(b"\r\n", 0, 10)
        size = self._sizes.get(data[:end])
        if size is not None and len(data) == end + size + 4 and data.endswith(b"\r\n"):
            return data[end + 2 : -2]
        return self._several(data)

    def _several(self, data: bytes) -> bytes:
        """Whole chunks as long as there are any, then whatever is left."""
        pieces: list[bytes] = []
        at, known = 0, self._sizes.get
        while (end := data.find(b"\r\n", at, at + 10)) > 0:
            size = known(data[at:end])
            if size is None or data[end + 2 + size : end + 4 + size] != b"\r\n":
                break
            pieces.append(data[end + 2 : end + 2 + size])
            at = end + 4 + size
        if at < len(data):
            pieces.append(self._walk(data[at:] if at else data))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def closed(self) -> str | None:
        """See `Body.closed`."""
        return None if self.done else "the connection was closed before the answer's end"

    def _walk(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.done:
            if self._state == "data":
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = "data end"
            else:
                at = self._take_line(data, at)
        self.surplus = at < len(data)
        self._aligned = self._state == "size" and not self._line
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take_line(self, data: bytes, at: int) -> int:
        """Read up to the end of a line of framing, if it is there; returns where to go on."""
        end = data.find(b"\n", at) + 1
        self._line += data[at:end] if end else data[at:]
        if len(self._line) > MAX_LINE_BYTES:
            raise HttpError("a line of its chunked framing is too long")
        if not end:
            return len(data)
        line, self._line = self._line, b""
        self._framing(line)
        return end

    def _framing(self, line: bytes) -> None:
        if self._state == "size":
            self._begin(line)
        elif self._state == "data end":
            if line != b"\r\n":
                raise HttpError("a chunk is longer than it said")
            self._state = "size"
        elif line == b"\r\n":  # the end of the trailer
            self.done = True

    def _begin(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise HttpError("a chunk size is malformed")
        self._left = int(match[1], 16)
        self._state = "data" if self._left else "trailer"
        if self._left and len(line) == len(match[1]) + 2 and len(self._sizes) < _SIZES_KEPT:
            self._sizes[match[1]] = self._left


class Counted:
    """`Content-Length`."""

    __slots__ = ("done", "left", "surplus")

    def __init__(self, n_bytes: int) -> None:
        self.left = n_bytes
        self.done = n_bytes == 0
        self.surplus = False

    def feed(self, data: bytes) -> bytes:
        """See `Body.feed`."""
        piece = data[: self.left]
        self.left -= len(piece)
        self.done = not self.left
        self.surplus = len(piece) < len(data)
        return piece

    def closed(self) -> str | None:
        """See `Body.closed`."""
        return None if self.done else "the connection was closed before the answer's end"


class UntilClose:
    """Neither: the body ends with the connection."""

    __slots__ = ("done", "surplus")

    def __init__(self) -> None:
        self.done = self.surplus = False

    def feed(self, data: bytes) -> bytes:
        """See `Body.feed`."""
        return data

    def closed(self) -> str | None:
        """See `Body.closed`."""
        return None
