"""KV as real bytes over real TCP: each transfer is a connection of its own from cluster A to cluster B.

The kernel does what the fluid model computes: handshake, slow start, sharing, loss. Bytes are model bytes / `kv_scale`
over a link whose rate is divided alike (`wan.link.wire_link`). A transfer's announcement (`KvArrived`) and what must
not overtake it (`Drop`) follow its bytes on its own connection; B half-closes it when it has the announcement.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable

import msgspec

from pddbench.deploy.emulator.liveclock import LiveClock
from pddbench.deploy.emulator.messages import HandOff, Hello, KvArrived, Message
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.wire import filler_header, framed
from pddbench.wan.link import wire_link
from pddbench.wan.sockets import pace, pin, tcp_info
from pddbench.wan.transfer import INITIAL_WINDOW_BYTES, sending_s, transfer_s

FLOW = "flow"  # the purpose of a transfer's connection
_FILLER = memoryview(bytes(1 << 20))
_FRAME_LIMIT = 1 << 31  # bytes of filler behind one header


class _Flow:
    """One transfer on its connection."""

    def __init__(self, link: PacketLink, total: int, on_sent: Callable[[], None]) -> None:
        self._link, self.left, self._on_sent = link, total, on_sent
        self._head = memoryview(framed(Hello(FLOW)))  # goes before what is left of the filler
        self._frame = 0  # filler bytes that the last header still announces
        self._sent = self._heard = self.connected = False
        self.sock = link.new_socket()
        error = self.sock.connect_ex(link.address)
        link.loop.add_writer(self.sock, self._write)
        if error not in (0, errno.EINPROGRESS):
            link.broken(OSError(error, "connect"))

    def say(self, frame: bytes) -> None:
        """Send a message behind what is there; all filler must have been taken by the kernel."""
        self._head = memoryview(bytes(self._head) + frame)
        self._link.loop.add_writer(self.sock, self._write)

    def _write(self) -> None:
        try:
            if not self.connected:
                self._connected()
            while self._head or self.left:
                self._send()
        except BlockingIOError:
            return
        except OSError as error:
            self._link.broken(error)
            return
        self._link.loop.remove_writer(self.sock)
        if not self._sent:
            self._sent = True
            self._link.clock.enter(self._on_sent)
        elif self._heard:
            self.close()

    def _connected(self) -> None:
        if number := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(number, "connect")
        self.sock.getpeername()  # raises while it is not
        self.connected = True
        self._link.loop.add_reader(self.sock, self._read)

    def _send(self) -> None:
        if not self._head and not self._frame:
            self._frame = min(self.left, _FRAME_LIMIT)
            self._head = memoryview(filler_header(self._frame))
        if self._head:
            self._head = self._head[self.sock.send(self._head) :]
            return
        sent = self.sock.send(_FILLER[: min(self._frame, len(_FILLER))])
        self.left, self._frame = self.left - sent, self._frame - sent
        self._link.sent_wire_bytes += sent

    def _read(self) -> None:
        """B says nothing here: it half-closes when it has everything."""
        try:
            said = self.sock.recv(1)
        except BlockingIOError:
            return
        except OSError as error:
            self._link.broken(error)
            return
        if not said:
            self._heard = True
            self._link.loop.remove_reader(self.sock)
            self._link.over(self)
            if not self._head:
                self.close()

    def close(self, *, abort: bool = False) -> None:
        """End it; `abort`: what the kernel still has must not cross the line."""
        self._link.loop.remove_writer(self.sock)
        self._link.loop.remove_reader(self.sock)
        if abort:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class PacketLink:
    """What cluster A needs of the link (`cluster_a.KvLink`), by packets. `on_arrived` here: the kernel has it all."""

    def __init__(
        self,
        spec: EmulatorSpec,
        clock: LiveClock,
        loop: asyncio.AbstractEventLoop,
        address: tuple[str, int],
        broken: Callable[[OSError], None],
    ) -> None:
        self.clock, self.loop, self.address, self.broken = clock, loop, address, broken
        self._scale = spec.kv_scale
        self._wire = wire_link(spec.link, spec.kv_scale, spec.speed)
        # the law in experiment seconds and real bytes: the wire's figures with the speed taken out again
        rates = {name: getattr(self._wire, name) / spec.speed for name in ("rate_mbit", "flow_rate_mbit")}
        self._law = msgspec.structs.replace(spec.link, **rates)
        self._flows: dict[int, _Flow] = {}  # those whose bytes the kernel has not all taken
        self._announced: dict[int, _Flow] = {}  # by request, until B has the announcement
        self.sent_wire_bytes = 0
        self._total: dict[int, int] = {}
        self._retransmitted = 0
        with self.new_socket() as probe:
            self.congestion_control = pin(probe, spec.link.congestion_control)
        if self.congestion_control != spec.link.congestion_control:
            raise OSError(errno.ENOENT, f"this kernel has no congestion control {spec.link.congestion_control!r}")

    def new_socket(self) -> socket.socket:
        """A socket for a flow: pinned, paced, not yet connected."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        pin(sock, self._law.congestion_control)
        pace(sock, self._wire.flow_bytes_s, capped=self._wire.flow_rate_mbit < self._wire.rate_mbit)
        return sock

    def send(self, flow_id: int, n_bytes: float, on_arrived: Callable[[], None]) -> None:
        """Start a transfer; `on_arrived` when its last byte is on its way, so that the announcement goes behind it."""
        total = self._total[flow_id] = max(1, round(n_bytes / self._scale))

        def on_sent() -> None:
            if flow_id in self._flows:  # what was due before may have cancelled it
                on_arrived()

        self._flows[flow_id] = _Flow(self, total, on_sent)

    def announce(self, message: KvArrived | HandOff) -> None:
        """Behind a transfer's bytes: what they were."""
        flow, total = self._flows.pop(message.transfer), self._total.pop(message.transfer)
        if isinstance(message, KvArrived):
            message.wire_bytes = total
        self._announced[message.rid] = flow
        flow.say(framed(message))

    def follow(self, rid: int, message: Message) -> bool:
        """Send a message behind a request's announcement; False when B has that already, and any way will do."""
        flow = self._announced.get(rid)
        if flow is not None:
            flow.say(framed(message))
        return flow is not None

    def over(self, flow: _Flow) -> None:
        """B has all of a flow."""
        self._retransmitted += tcp_info(flow.sock).retransmitted
        self._announced = {rid: other for rid, other in self._announced.items() if other is not flow}

    def cancel(self, flow_id: int) -> None:
        """Stop a transfer: it will not arrive. Unknown ones, and those the kernel has, are ignored."""
        flow = self._flows.pop(flow_id, None)
        if flow is not None:
            del self._total[flow_id]
            flow.close(abort=True)

    def sent_bytes(self, flow_id: int) -> float:
        """Model bytes of a transfer that the kernel has taken by now; 0 when it has all of them, or is unknown."""
        flow = self._flows.get(flow_id)
        return 0.0 if flow is None else (self._total[flow_id] - flow.left) * self._scale

    def predict_s(self, n_bytes: float) -> float:
        """Seconds a transfer started now would take if the flows that send now went on."""
        return transfer_s(self._law, n_bytes / self._scale, flows=len(self._flows) + 1)

    def remaining_s(self, flow_id: int) -> float:
        """Seconds until a transfer arrives, from its own window, if the others stay. 0: sent, or unknown."""
        flow = self._flows.get(flow_id)
        if flow is None:
            return 0.0
        rtt_s = self._law.rtt_s
        window = tcp_info(flow.sock).window_bytes if flow.connected else INITIAL_WINDOW_BYTES
        handshake_s = 0.0 if flow.connected else rtt_s
        return handshake_s + sending_s(self._law, flow.left, window, len(self._flows)) + rtt_s / 2

    def figures(self) -> dict[str, float]:
        """What it has sent so far, and how many segments TCP sent again."""
        flying = [tcp_info(flow.sock).retransmitted for flow in (*self._flows.values(), *self._announced.values())]
        return {
            "kv_sent_wire_bytes": float(self.sent_wire_bytes),
            "kv_retransmitted_segments": float(self._retransmitted + sum(flying)),
        }
