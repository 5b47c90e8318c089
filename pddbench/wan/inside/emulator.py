"""The TUN emulator: packets between two TUN devices, with delay, jitter, rate, loss and a bounded queue each way.

`main` opens a device in each namespace (`USER_FD|- NET_FD_A NET_FD_B NAME MTU ADDRESS_A ADDRESS_B SEED [BINARY]`)
and becomes BINARY, `emulator.c` compiled, or does the same work itself, slower. The control lines are described there.
"""

from __future__ import annotations

import fcntl
import math
import os
import random
import select
import struct
import sys
import time
from collections import deque
from typing import NoReturn

from pddbench.wan.inside.enter import enter
from pddbench.wan.inside.kernel import configure, precise_timers, say, set_up

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TSO = 1 | 2 | 4 | 8  # checksums, TSO for IPv4 and IPv6, with ECN
HEADER_BYTES = 10  # struct virtio_net_hdr
_ETHERNET_BYTES = 14
_BIGGEST = HEADER_BYTES + 65536
_BATCH = 64
_NICE = -15
_QUEUE_PACKETS = 20_000  # a burst waits for us in the kernel, instead of being dropped there


def open_tun(name: str, mtu_bytes: int, address: str, peer: str) -> int:
    """A TUN device in this process's network namespace, switched on; it is gone when its file is closed."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    configure(name, mtu_bytes, _QUEUE_PACKETS, address, peer)
    set_up(name)
    return fd


def main(arguments: list[str]) -> NoReturn:
    """Say `ready` or `error REASON` on stdout, then emulate until stdin ends."""
    user_fd, net_a, net_b, name, mtu_bytes, address_a, address_b, seed, *binary = arguments
    try:
        enter(user_fd, net_a)
        tun_a = open_tun(name, int(mtu_bytes), address_a, address_b)
        enter("-", net_b)
        tun_b = open_tun(name, int(mtu_bytes), address_b, address_a)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"error {where}{error.strerror}")
        sys.exit(1)
    _go_first()
    say("ready")
    if binary:
        for fd in (tun_a, tun_b):
            os.set_inheritable(fd, True)
        os.execv(binary[0], [binary[0], str(tun_a), str(tun_b), seed])
    precise_timers()
    _Emulator(tun_a, tun_b, int(seed)).run()
    sys.exit(0)


def _go_first() -> None:
    """A line needs no turn on a busy CPU: ask for priority, which only root is given."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except PermissionError:
        pass  # said in the facts: read back from /proc


class _Direction:
    """The packets one way: figures as the `set` line gives them, and what was counted."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.delay_ns = self.jitter_ns = self.limit_bytes = 0
        self.normal = False
        self.ns_per_byte = self.to_bad = self.to_good = self.bad_loss = self.good_loss = 0.0
        self.bad = False
        self.queue: deque[tuple[int, float, int, bytes]] = deque()  # due, has left the line, bytes on it, data
        self.queued_bytes = self.last_due = self.late_sum_ns = self.late_max_ns = 0
        self.free_at = 0.0
        self.packets = self.bytes = self.lost = self.dropped = 0

    def change_rate(self, ns_per_byte: float, now: int) -> None:
        """Another rate from now on: what waits for the line leaves at it, what has left it is on its way."""
        before, self.ns_per_byte = self.ns_per_byte, ns_per_byte
        if before == ns_per_byte or not before or self.free_at <= now:
            return  # as it was, or nothing waits
        queue, self.queue = self.queue, deque()
        self.free_at, self.last_due = float(now), 0
        for due, leaves, wire, data in queue:
            if leaves > now:
                delay = due - int(leaves)
                left = min(wire, (leaves - now) / before)  # the first may be on the line in part
                self.free_at = leaves = self.free_at + left * ns_per_byte
                due = int(leaves) + delay
            self.last_due = max(due, self.last_due)
            self.queue.append((self.last_due, leaves, wire, data))


class _Emulator:
    """Both directions in one loop."""

    def __init__(self, tun_a: int, tun_b: int, seed: int) -> None:
        self._ways = (_Direction(tun_a, tun_b), _Direction(tun_b, tun_a))
        self._random = random.Random(seed)
        self._pending = b""

    def run(self) -> None:
        """Until stdin ends."""
        files = [self._ways[0].source, self._ways[1].source, 0]
        while True:
            readable, _, _ = select.select(files, [], [], self._wait_s())
            if 0 in readable and not self._control():
                return
            busy = True
            for _ in range(_BATCH):  # the control must have its turn too
                busy = False
                for way in self._ways:
                    self._deliver(way)
                    busy |= self._receive(way)
                if not busy:
                    break

    def _wait_s(self) -> float | None:
        dues = [way.queue[0][0] for way in self._ways if way.queue]
        return max(0.0, (min(dues) - time.monotonic_ns()) / 1e9) if dues else None

    def _receive(self, way: _Direction) -> bool:
        read, source, clock = os.read, way.source, time.monotonic_ns
        for _ in range(_BATCH):
            try:
                data = read(source, _BIGGEST)
            except BlockingIOError:
                return False
            self._enqueue(way, data, clock())
        return True

    def _enqueue(self, way: _Direction, data: bytes, now: int) -> None:
        length = len(data)
        if (way.to_bad or way.good_loss) and self._is_lost(way):
            way.lost += 1
            return
        if way.queued_bytes + length > way.limit_bytes:
            way.dropped += 1
            return
        wire = wire_bytes(data) if data[1] else length - HEADER_BYTES + _ETHERNET_BYTES
        free_at = way.free_at
        way.free_at = free_at = (free_at if free_at > now else now) + wire * way.ns_per_byte
        due = int(free_at) + way.delay_ns
        if way.jitter_ns:
            due = int(free_at) + max(0, way.delay_ns + int(self._variate(way.normal) * way.jitter_ns))
        if due < way.last_due:  # a line does not reorder
            due = way.last_due
        way.last_due = due
        way.queue.append((due, free_at, wire, data))
        way.queued_bytes += length
        way.packets += 1
        way.bytes += wire

    def _deliver(self, way: _Direction) -> None:
        queue, clock, write, sink = way.queue, time.monotonic_ns, os.write, way.sink
        for _ in range(_BATCH):
            if not queue or queue[0][0] > (now := clock()):
                return
            due, _, _, data = queue.popleft()
            way.queued_bytes -= len(data)
            try:
                write(sink, data)
            except OSError:
                way.dropped += 1
            late = now - due
            way.late_sum_ns += late
            if late > way.late_max_ns:
                way.late_max_ns = late

    def _is_lost(self, way: _Direction) -> bool:
        draw = self._random.random
        if draw() < (way.to_good if way.bad else way.to_bad):
            way.bad = not way.bad
        return draw() < (way.bad_loss if way.bad else way.good_loss)

    def _variate(self, normal: bool) -> float:
        draw = self._random.random
        if not normal:
            return 2 * draw() - 1
        return math.sqrt(-2 * math.log(1 - draw())) * math.cos(2 * math.pi * draw())

    def _control(self) -> bool:
        got = os.read(0, 4096)
        *lines, self._pending = (self._pending + got).split(b"\n")
        for line in lines:
            say(self._answer(line.decode()))
        return bool(got)

    def _answer(self, line: str) -> str:
        if line == "stats":
            return " ".join(
                f"{w.packets} {w.bytes} {w.lost} {w.dropped} {w.queued_bytes} {w.late_sum_ns} {w.late_max_ns}"
                for w in self._ways
            )
        try:
            self._set(line)
        except (ValueError, IndexError, OSError):
            return "error"
        return "ok"

    def _set(self, line: str) -> None:
        word, which, delay, jitter, normal, bits, to_bad, to_good, bad_loss, good_loss, limit, offload = line.split()
        if word != "set":
            raise ValueError(word)
        way = self._ways[int(which)]
        way.delay_ns, way.jitter_ns, way.limit_bytes = int(delay), int(jitter), int(limit)
        way.normal, way.bad = normal == "1", False
        way.to_bad, way.to_good = float(to_bad), float(to_good)
        way.bad_loss, way.good_loss = float(bad_loss), float(good_loss)
        way.change_rate(8e9 / float(bits) if float(bits) else 0.0, time.monotonic_ns())
        fcntl.ioctl(way.source, _TUNSETOFFLOAD, _TSO if offload == "1" else 0)


def wire_bytes(data: bytes) -> int:
    """Bytes on the line of what a TUN read gave: a super-packet is several frames, each with its own headers."""
    sizes: tuple[int, int] = struct.unpack_from("HH", data, 4)
    kind, (size, start) = data[1], sizes
    ip = len(data) - HEADER_BYTES
    if not kind or not size or start + 13 > ip:
        return ip + _ETHERNET_BYTES
    headers = start + (data[HEADER_BYTES + start + 12] >> 4) * 4
    if headers >= ip:
        return ip + _ETHERNET_BYTES
    frames = -(-(ip - headers) // size)
    return ip + (frames - 1) * headers + frames * _ETHERNET_BYTES
