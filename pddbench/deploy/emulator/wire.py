"""Framed messages over TCP between the processes, with filler bytes that stand for KV."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from pddbench.deploy.emulator.messages import Message, decode, encode

_FILLER = memoryview(bytes(1 << 20))


def framed(message: Message) -> bytes:
    """A message as it goes over a connection, with no filler behind it."""
    body = encode(message)
    return len(body).to_bytes(4, "big") + b"\0\0\0\0" + body


def filler_header(n_bytes: int) -> bytes:
    """What announces filler bytes, below 2^32."""
    return b"\0\0\0\0" + n_bytes.to_bytes(4, "big")


class Wire(asyncio.Protocol):
    """One connection. Each frame: length of the message, length of the filler after it (4 bytes each), both bodies."""

    def __init__(self, on_message: Callable[[Wire, Message], None], on_lost: Callable[[], None] | None = None) -> None:
        self._on_message, self.on_lost = on_message, on_lost
        self._buffer = bytearray()
        self._filler_left = 0
        self._transport: asyncio.Transport | None = None
        self.filler_received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands: small frames must not wait for acknowledgements."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by isinstance
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone; whether that matters is up to what the connection was for."""
        if self.on_lost is not None:
            self.on_lost()

    def send(self, message: Message) -> None:
        """Send a message."""
        self._write(framed(message))

    def half_close(self) -> None:
        """Nothing more will come from here; the other end may still send."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def send_filler(self, n_bytes: int) -> None:
        """Send bytes that mean nothing."""
        while n_bytes > 0:
            part = min(n_bytes, len(_FILLER))
            self._write(filler_header(part))
            self._write(_FILLER[:part])
            n_bytes -= part

    def _write(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Take frames off with a cursor: cutting the rest per frame would be quadratic."""
        skipped = min(self._filler_left, len(data))
        self._filler_left -= skipped
        self.filler_received_bytes += skipped
        self._buffer += memoryview(data)[skipped:]
        at, end = 0, len(self._buffer)
        while end - at >= 8 and not self._filler_left:
            size = int.from_bytes(self._buffer[at : at + 4], "big")
            if end - at < 8 + size:
                break
            filler = int.from_bytes(self._buffer[at + 4 : at + 8], "big")
            body = self._buffer[at + 8 : at + 8 + size]
            at += 8 + size
            skipped = min(filler, end - at)
            self.filler_received_bytes += skipped
            self._filler_left = filler - skipped
            at += skipped
            if size:
                self._on_message(self, decode(body))
        del self._buffer[:at]
