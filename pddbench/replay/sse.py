"""Server-sent events, the whole of the format (WHATWG HTML, 9.2.6), parsed incrementally and in linear time.

Works on bytes: line ends and field names are ASCII, so a UTF-8 character split over two reads cannot hurt. An event
belongs to the read that brought the byte which completed it (the first CR or LF of its blank line).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

MAX_EVENT_BYTES = 64 << 20
_LINE_END = re.compile(rb"\r\n?|\n")
_BOM = b"\xef\xbb\xbf"
_FIELD, _BETWEEN = b"data: ", b"\n\ndata: "


class SseError(Exception):
    """The bytes are not a stream of events that could be kept: one sentence."""


class Event(NamedTuple):
    """One dispatched event: its data (lines joined by LF), its type (empty: message) and the read that completed it."""

    data: bytes
    read: int
    event: bytes
    last_id: bytes


class SseParser:
    """Feed reads in order, take events. Nothing is copied twice, and no byte is searched twice."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._line: list[bytes] = []  # pieces of a line whose end has not come
        self._line_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = b""
        self.last_id = b""
        self.retry_ms: int | None = None
        self._swallow_lf = False
        self._start: bytes | None = b""  # bytes held back until a byte order mark can be told; None: past it

    def feed(self, data: bytes, read: int = 0) -> list[Event]:
        """Events that the bytes of read number `read` complete. Raises `SseError` above the size bound."""
        if self._start is not None:
            data = self._past_bom(data)
        elif self._is_one_event(data):
            return [Event(data[6:-2], read, b"", self.last_id)]
        if self._swallow_lf and data:
            self._swallow_lf = False
            if data[0] == 0x0A:
                data = data[1:]
        events: list[Event] = []
        position = 0
        for end in _LINE_END.finditer(data):
            line = data[position : end.start()]
            position = end.end()
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)
                self._line.clear()
                self._line_bytes = 0
            if line:
                self._field(line)
            else:
                self._dispatch(read, events)
        if position < len(data):
            self._keep(data[position:] if position else data)
        elif data.endswith(b"\r"):
            self._swallow_lf = True
        return events

    def _is_one_event(self, data: bytes) -> bool:
        """Whether a read is one whole event of one line, and nothing was left before it: what most reads are."""
        return (
            data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n")
            and b"\r" not in data
            and len(data) <= self._max_bytes
            and not (self._line or self._data or self._event or self._swallow_lf)
        )

    def close(self) -> int:
        """The stream has ended: how many bytes of an unfinished event are dropped, as the standard wants."""
        return self._data_bytes + self._line_bytes + len(self._start or b"")

    def _past_bom(self, data: bytes) -> bytes:
        """Take a byte order mark off the start of the stream, even one that comes byte by byte."""
        head = (self._start or b"") + data
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._start = head
            return b""
        self._start = None
        return head.removeprefix(_BOM)

    def _keep(self, piece: bytes) -> None:
        self._line.append(piece)
        self._line_bytes += len(piece)
        self._check(self._line_bytes + self._data_bytes)

    def _check(self, n_bytes: int) -> None:
        if n_bytes > self._max_bytes:
            raise SseError(f"an event is larger than {self._max_bytes} bytes")

    def _field(self, line: bytes) -> None:
        """One line that is not blank: a field, or a comment when it starts with a colon."""
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
            self._check(self._data_bytes)
        elif name == b"event":
            self._event = value
        elif name == b"id" and b"\0" not in value:
            self.last_id = value
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value[:18])

    def _dispatch(self, read: int, events: list[Event]) -> None:
        """A blank line: hand out the event, if it has data."""
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(Event(data, read, self._event, self.last_id))
            self._data = []
            self._data_bytes = 0
        self._event = b""


class PlainStream(NamedTuple):
    """A stream whose events are all plain: the data of each, and which of the stream's pieces completed it."""

    events: list[bytes]
    numbers: Sequence[int]


def plain_stream(pieces: Sequence[bytes]) -> PlainStream | None:
    """The stream in these pieces, if all its events are plain; else None.

    Plain is one line `data: …` and a blank one, both ended by LF, from the stream's first byte to its last. Anything
    else (comments, other fields, CR, an event that is cut off, one that is too large) is for `SseParser`.
    """
    whole = b"".join(pieces)
    if not (whole.startswith(_FIELD) and whole.endswith(b"\n\n")) or b"\r" in whole or len(whole) > MAX_EVENT_BYTES:
        return None
    events = whole[len(_FIELD) : -2].split(_BETWEEN)
    if whole.count(b"\n") != 2 * len(events):
        return None
    if len(events) == len(pieces) and all(piece[-2:] == b"\n\n" for piece in pieces):
        return PlainStream(events, range(len(events)))
    ends = list(accumulate(map(len, pieces)))
    sizes = (len(event) + len(_FIELD) + 2 for event in events)
    return PlainStream(events, [bisect_left(ends, end) for end in accumulate(sizes)])
