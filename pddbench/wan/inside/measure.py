"""Measures a link from inside: `serve ADDRESS` in one side, one of the measures (`rtt`, `load`, …) in the other.

`serve` prints the port (the same number for UDP and TCP) and ends with its stdin. The others print one JSON object;
`watch` one a line, until it is told to end.
"""

from __future__ import annotations

import json
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from pddbench.wan.inside.kernel import say

_CHUNK = bytes(256 * 1024)
_WATCH_TIMEOUT_S = "2"  # above any queue of the link
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h: when the kernel got it, CLOCK_REALTIME
_REPORT = 8  # bytes of a count
_DATAGRAM_BYTES = 1400
_ECHO = "!qq"  # when a datagram came, how long it lay: ns
_ORDER_BYTES = 64  # fixed, so that what follows it on the stream is not part of it


def main(arguments: list[str]) -> None:
    """The first argument names what to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for pddbench, which ends us when it is done
    name, *rest = arguments
    if name == "serve":
        serve(rest[0])
        return
    address = (rest[0], int(rest[1]))
    if name == "watch":
        watch(address, *rest[2:])
        return
    measures: dict[str, Callable[..., dict[str, object]]]
    measures = {"rtt": rtt, "load": load, "datagrams": datagrams, "fetch": fetch}
    say(json.dumps(measures[name](address, *rest[2:])))


def serve(host: str) -> None:
    """UDP: echo short datagrams, count long ones. TCP: a line `sink` counts and reports, `source N` sends N bytes."""
    tcp = socket.create_server((host, 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    udp.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    udp.bind(tcp.getsockname())
    say(str(tcp.getsockname()[1]))
    threading.Thread(target=_serve_udp, args=(udp,), daemon=True).start()
    threading.Thread(target=_serve_tcp, args=(tcp,), daemon=True).start()
    sys.stdin.read()


def _serve_udp(udp: socket.socket) -> None:
    """Echo short datagrams, each with when it came (the clock is one for both sides) and how long it lay here, ns."""
    while True:
        data, arrived_ns, peer = _receive(udp)
        if len(data) < _DATAGRAM_BYTES:
            udp.sendto(data + struct.pack(_ECHO, arrived_ns, time.time_ns() - arrived_ns), peer)


def _receive(udp: socket.socket) -> tuple[bytes, int, tuple[str, int]]:
    """A datagram, when the kernel got it (a busy machine reads it later: no delay of the link), and its sender."""
    data, ancillary, _, peer = udp.recvmsg(2048, 64)
    for level, kind, value in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, ns = struct.unpack("qq", value)
            return data, seconds * 10**9 + ns, peer
    return data, time.time_ns(), peer


def _serve_tcp(tcp: socket.socket) -> None:
    while True:
        connection, _ = tcp.accept()
        threading.Thread(target=_connection, args=(connection,), daemon=True).start()


def _connection(connection: socket.socket) -> None:
    """One transfer; a peer that goes away ends it."""
    try:
        with connection:
            word, number, control = connection.recv(_ORDER_BYTES, socket.MSG_WAITALL).decode().split()
            set_congestion_control(connection, control)
            if word == "source":
                _send(connection, int(number))
            else:
                _count(connection, float(number))
    except OSError:
        return


def _order(word: str, number: str, control: str) -> bytes:
    return f"{word} {number} {control}".encode().ljust(_ORDER_BYTES)


def _send(connection: socket.socket, left: int) -> None:
    view = memoryview(_CHUNK)
    while left > 0:
        left -= connection.send(view[: min(left, len(_CHUNK))])


def _count(connection: socket.socket, every_s: float) -> None:
    """Read and drop; report the count so far every so often, on the connection itself."""
    buffer, total, next_s = bytearray(1 << 20), 0, time.monotonic() + every_s
    while got := connection.recv_into(buffer):
        total += got
        if time.monotonic() >= next_s:
            next_s += every_s
            connection.sendall(total.to_bytes(_REPORT, "big") + time.monotonic_ns().to_bytes(_REPORT, "big"))


def set_congestion_control(connection: socket.socket, name: str) -> str:
    """Ask for one by name; the one that the socket has then."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError:
        pass  # not allowed here: what it is, is reported
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def rtt(address: tuple[str, int], count: str, timeout_s: str) -> dict[str, object]:
    """Round trips of small datagrams, one at a time; a lost one is counted, not timed.

    From the send to the kernel's stamp of the answer, without the time it lay at the other end; `there_ms`: the
    way to it, of each. `sent_s`: from when
    to when each of those that came back was sent, `began_s`: when the first of all was (CLOCK_MONOTONIC).
    """
    times_ms: list[float] = []
    there_ms: list[float] = []
    sent_s: list[tuple[float, float]] = []
    lost, began_s = 0, time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        udp.connect(address)
        udp.settimeout(float(timeout_s))
        for index in range(int(count)):
            wanted, answer = index.to_bytes(8, "big"), b""
            start, before_s = time.time_ns(), time.monotonic()
            try:
                udp.send(wanted)
                sent = before_s, time.monotonic()
                while answer[:8] != wanted:  # an older one, late
                    answer, arrived, _ = _receive(udp)
            except (TimeoutError, ConnectionRefusedError):
                lost += 1
                continue
            came, lay = struct.unpack(_ECHO, answer[8:24])
            times_ms.append((arrived - start - lay) / 1e6)
            there_ms.append((came - start) / 1e6)
            sent_s.append(sent)
    return {"rtt_ms": times_ms, "there_ms": there_ms, "sent_s": sent_s, "lost": lost, "began_s": began_s}


def watch(address: tuple[str, int], every_s: str, count: str) -> None:
    """Some round trips now and then, a line of JSON each time, until stdin ends or nobody reads."""
    while True:
        try:
            found = rtt(address, count, _WATCH_TIMEOUT_S)
        except OSError as error:  # no device, no route
            found = {"rtt_ms": [], "sent_s": [], "lost": int(count), "began_s": time.monotonic(), "why": error.strerror}
        say(json.dumps(found))
        if select.select([sys.stdin], [], [], float(every_s))[0]:
            return


def load(address: tuple[str, int], warm_s: str, measured_s: str, control: str) -> dict[str, object]:
    """Throughput of one TCP flow at its receiver, after a warm-up: the receiver's own counts and clock."""
    with socket.create_connection(address) as connection:
        used = set_congestion_control(connection, control)
        connection.sendall(_order("sink", "0.1", control))
        connection.setblocking(False)
        reports = _drive(connection, time.monotonic() + float(warm_s) + float(measured_s))
    start = next((r for r in reports if r[1] >= reports[0][1] + float(warm_s) * 1e9), None) if reports else None
    if start is None or start == reports[-1]:
        return {"bytes": 0, "seconds": 0.0, "congestion_control": used}
    end = reports[-1]
    return {"bytes": end[0] - start[0], "seconds": (end[1] - start[1]) / 1e9, "congestion_control": used}


def _drive(connection: socket.socket, until_s: float) -> list[tuple[int, int]]:
    """Send as fast as it goes, and collect the receiver's reports (bytes, ns)."""
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, both)
        while (left := until_s - time.monotonic()) > 0:
            for _, events in selector.select(left):
                if events & selectors.EVENT_READ:
                    received += connection.recv(4096)
                if events & selectors.EVENT_WRITE:
                    try:
                        connection.send(_CHUNK)
                    except BlockingIOError:
                        pass
    numbers = [int.from_bytes(received[i : i + _REPORT], "big") for i in range(0, len(received) - _REPORT + 1, _REPORT)]
    return list(zip(numbers[::2], numbers[1::2], strict=False))


def datagrams(address: tuple[str, int], count: str, per_s: str) -> dict[str, object]:
    """Send long datagrams at an even pace; the link's own counters say what became of them."""
    payload, start, gap = bytes(_DATAGRAM_BYTES), time.monotonic(), 1 / float(per_s)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect(address)
        sent = 0
        for index in range(int(count)):
            while (wait := start + index * gap - time.monotonic()) > 0:
                time.sleep(wait)
            try:
                udp.send(payload)
                sent += 1
            except (BlockingIOError, ConnectionRefusedError):
                continue
    return {"sent": sent}


def fetch(address: tuple[str, int], n_bytes: str, repeats: str, control: str) -> dict[str, object]:
    """Seconds from before the connect until connected, and to the last of `n_bytes`; a fresh connection each time."""
    connected_s, times_s = [], []
    buffer = bytearray(1 << 20)
    for _ in range(int(repeats)):
        start, left = time.perf_counter_ns(), int(n_bytes)
        with socket.create_connection(address) as connection:
            connected_s.append((time.perf_counter_ns() - start) / 1e9)
            connection.sendall(_order("source", n_bytes, control))
            while left > 0 and (got := connection.recv_into(buffer)):
                left -= got
        times_s.append((time.perf_counter_ns() - start) / 1e9)
    return {"connected_s": connected_s, "seconds": times_s}
