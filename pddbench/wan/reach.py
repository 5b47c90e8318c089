"""Round trips to a real destination, before and while its traffic is shaped, and what the shaping carried.

Nothing of ours answers there, so what any host answers is timed: a TCP connect to a port that is shaped (a refusal is
an answer too), else an echo request. Only a destination of one address is asked: a network's are somebody else's.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import statistics
import struct
import time

import msgspec

from pddbench.wan.destination import Destination
from pddbench.wan.shape import Shape

_TRIPS, _LEAST_TRIPS = 7, 3
_TIMEOUT_S = 1.0
_SILENT = 2  # without an answer at the start: nobody is there
_ECHO = {4: (8, 0, socket.IPPROTO_ICMP), 6: (128, 129, socket.IPPROTO_ICMPV6)}  # type of request and reply
_SLACK_MS, _SLACK = 1.0, 0.05  # as of `verify`


class Trips(msgspec.Struct, frozen=True):
    """Round trips in ms to an address, and by what; none: why not."""

    how: str
    rtt_ms: list[float] = []
    why_not: str = ""

    @property
    def median_ms(self) -> float:
        """Of what came back."""
        return statistics.median(self.rtt_ms)


def trips(to: Destination, count: int = _TRIPS, slower_ms: float = 0.0) -> Trips:
    """Round trips to a destination; `slower_ms`: what it may take longer than an answer is usually waited for."""
    network = ipaddress.ip_network(to.network)
    if network.num_addresses > 1:
        return Trips("", why_not=f"{to} is {network.num_addresses:,} addresses: one alone would be timed")
    address = str(network.network_address)
    timeout_s = _TIMEOUT_S + slower_ms / 1e3
    how = f"TCP connect to {to.ports[0][0]}" if to.ports else "ping"
    rtt_ms: list[float] = []
    try:
        for index in range(count):
            took_s = _connect_s(address, to.ports[0][0], timeout_s) if to.ports else _ping_s(address, index, timeout_s)
            rtt_ms += [] if took_s is None else [took_s * 1e3]
            if index + 1 == _SILENT and not rtt_ms:
                break
    except OSError as error:
        return Trips(how, why_not=f"{how} to {address}: {error.strerror or error}")
    if len(rtt_ms) < min(_LEAST_TRIPS, count):
        return Trips(how, why_not=f"{address} does not answer ({how})")
    return Trips(how, rtt_ms)


def _connect_s(address: str, port: int, timeout_s: float) -> float | None:
    """Seconds until a connection was there, or refused; None: neither."""
    start = time.perf_counter()
    try:
        with socket.create_connection((address, port), timeout_s):
            return time.perf_counter() - start
    except ConnectionRefusedError:
        return time.perf_counter() - start
    except TimeoutError:
        return None


def _ping_s(address: str, number: int, timeout_s: float) -> float | None:
    """Seconds until an echo came back; None: it did not. `OSError` without the right to raw sockets."""
    version = 6 if ":" in address else 4
    request, reply, protocol = _ECHO[version]
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    body = struct.pack("!HH", os.getpid() & 0xFFFF, number) + os.urandom(8)
    with socket.socket(family, socket.SOCK_RAW, protocol) as sock:
        sock.connect((address, 0))
        start = time.perf_counter()
        sock.send(_packet(request, body, version))
        while (left_s := start + timeout_s - time.perf_counter()) > 0:
            sock.settimeout(left_s)
            try:
                data = sock.recv(2048)
            except TimeoutError:
                return None
            data = data[(data[0] & 15) * 4 :] if version == 4 else data  # IPv4 comes with its header
            if data[0] == reply and data[4:] == body:
                return time.perf_counter() - start
    return None


def _packet(kind: int, body: bytes, version: int) -> bytes:
    """An echo request; of IPv6 the kernel makes the checksum."""
    if version == 6:
        return struct.pack("!BBH", kind, 0, 0) + body
    words = struct.unpack(f"!{(4 + len(body)) // 2}H", struct.pack("!BBH", kind, 0, 0) + body)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBH", kind, 0, ~total & 0xFFFF) + body


def compared(to: Destination, before: Trips, now: Trips, shape: Shape, both_ways: bool) -> str:
    """A line: what a round trip takes longer now, and whether that is what was asked."""
    if before.why_not or now.why_not:
        return f"delay not measured: {now.why_not or before.why_not}"
    wanted = shape.delay_ms * (2 if both_ways else 1)
    more = now.median_ms - before.median_ms
    slack = max(_SLACK_MS, _SLACK * wanted) + 3 * shape.jitter_ms
    verdict = "as asked" if abs(more - wanted) <= slack else "NOT AS ASKED"
    return (
        f"{to}: a round trip ({now.how}) takes {now.median_ms:.2f} ms, {before.median_ms:.2f} before: "
        f"{more:.2f} ms more, {wanted:g} asked: {verdict}"
    )


class Carried:
    """The highest rate that the shaped traffic reached, from counts of its bytes taken now and then."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self.mbit = 0.0

    def count(self, n_bytes: int) -> None:
        """Bytes since the start, counted now."""
        now_s = time.monotonic()
        if self._last is not None:
            with contextlib.suppress(ZeroDivisionError):
                self.mbit = max(self.mbit, (n_bytes - self._last[1]) * 8e-6 / (now_s - self._last[0]))
        self._last = now_s, n_bytes

    def words(self, shape: Shape, packets: int, drops: int) -> str:
        """A line for the end."""
        asked = f" of {shape.rate_mbit:g} asked" if shape.rate_mbit else ""
        return f"carried {packets} packets, at most {self.mbit:.4g} Mbit/s{asked}; {drops} lost or dropped"
