"""A's end of the link to B: messages on one connection, each KV transfer on a fresh one of its own.

Over packets (`netem`, `tun`) the link is the network's. With the `model` backend there are none: a transfer's bytes
leave when the fluid model says that they would have arrived, and messages wait one way on each side.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from pddbench.deploy.emulator.liveclock import LiveClock
from pddbench.deploy.minipdd.messages import Hello, Kv, Message, frame, read_message
from pddbench.deploy.minipdd.spec import MiniSpec
from pddbench.wan.fluid import FluidLink
from pddbench.wan.sockets import pin
from pddbench.wan.transfer import transfer_s

_SO_MAX_PACING_RATE = 47
_READ_BYTES = 1 << 18


class Delayed:
    """Where messages go: at once over packets; `delay_s` later, in order, where the link is a model."""

    def __init__(self, writer: asyncio.StreamWriter, clock: LiveClock, delay_s: float) -> None:
        self._writer, self._clock, self._delay_s = writer, clock, delay_s
        self._socket = writer.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> int:
        """Send a message: its size on the wire."""
        raw = frame(message)
        if self._delay_s:
            self._clock.call_at(self._clock.now() + self._delay_s, self._writer.write, raw)
        else:
            self._writer.write(raw)
        return len(raw)


class Line:
    """The connections to B, made by `open`; what comes from B goes to `on_message`, its end to `on_lost`."""

    def __init__(
        self,
        spec: MiniSpec,
        clock: LiveClock,
        on_message: Callable[[Message], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._spec, self._clock, self._on_message, self._on_lost = spec, clock, on_message, on_lost
        self._model = FluidLink(spec.link, clock) if spec.wan_backend == "model" else None
        self._peer = ("", 0)
        self._sending = 0
        self._sent_bytes: dict[int, int] = {}  # of each transfer, until somebody asks
        self._out: Delayed | None = None
        self._reading: asyncio.Task[None] | None = None
        self.kv_bytes = 0

    async def open(self, peer: tuple[str, int]) -> None:
        """Connect."""
        self._peer = peer
        reader, writer = await asyncio.open_connection(*peer)
        self._out = Delayed(writer, self._clock, one_way_s(self._spec))
        writer.write(frame(Hello()))
        self._reading = asyncio.ensure_future(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (message := await read_message(reader)) is not None:
            self._on_message(message)
        self._on_lost()

    def send(self, message: Message) -> int:
        """Send a message: its size on the wire."""
        assert self._out is not None
        return self._out.send(message)

    def predict_s(self, n_bytes: int) -> float:
        """Seconds a transfer started now is expected to take, by the link's own law."""
        return transfer_s(self._spec.link, n_bytes, flows=self._sending + 1)

    async def send_kv(self, kv: Kv, path: Path) -> None:
        """Send a slot file; returns when its bytes have left. Cancelled, it breaks off."""
        self._sending += 1
        self._sent_bytes[kv.rid] = 0
        try:
            await self._as_modelled(kv)
            await self._stream(kv, path)
            self.kv_bytes += kv.n_bytes
        finally:
            self._sending -= 1

    def sent_bytes(self, rid: int) -> int:
        """Bytes of a transfer that had left when it ended or was broken off (to 256 KiB over packets); once."""
        return self._sent_bytes.pop(rid, 0)

    async def _as_modelled(self, kv: Kv) -> None:
        """Wait until the fluid model has the bytes at the other end; nothing where there are packets."""
        if self._model is None:
            return
        arrived = asyncio.Event()
        self._model.send(kv.rid, kv.n_bytes, arrived.set)
        try:
            await arrived.wait()
        except asyncio.CancelledError:
            self._sent_bytes[kv.rid] = round(self._model.sent_bytes(kv.rid))
            self._model.cancel(kv.rid)
            raise

    async def _stream(self, kv: Kv, path: Path) -> None:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self._peer[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as sock, path.open("rb") as file:
            sock.setblocking(False)
            self._set(sock)
            await loop.sock_connect(sock, self._peer)
            await loop.sock_sendall(sock, frame(kv))
            while part := file.read(_READ_BYTES):
                await loop.sock_sendall(sock, part)
                self._sent_bytes[kv.rid] += len(part)

    def _set(self, sock: socket.socket) -> None:
        """The congestion control that the link is verified with (best effort), and the cap of one flow."""
        link = self._spec.link
        pin(sock, link.congestion_control)
        if self._model is None and link.flow_rate_mbit < link.rate_mbit:
            sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, int(link.flow_bytes_s))


def one_way_s(spec: MiniSpec) -> float:
    """What a message must wait before it is sent: nothing where packets do."""
    return spec.link.rtt_s / 2 if spec.wan_backend == "model" else 0.0
