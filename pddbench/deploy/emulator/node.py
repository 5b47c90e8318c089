"""What every process of a deployment shares: what it is told, how it connects, and what it reports of itself."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from pddbench.deploy.emulator.liveclock import LiveClock
from pddbench.deploy.emulator.messages import Hello, Message
from pddbench.deploy.emulator.observe import EventLog
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.wire import Wire
from pddbench.wan.backends import PACKET_BACKENDS
from pddbench.wan.sockets import pin

MOST_EVENTS = 500_000  # 20 MB; about 50,000 requests of pdd


class ProcessSpec(msgspec.Struct):
    """What a process is told on its stdin. `peers`: address of the clusters that are up already.

    `host` is where a cluster listens (its end of the link, if there are packets); `listener` is the router's socket,
    made by the launcher: a socket of the host serves the host's clients also from within a namespace.
    """

    deployment: EmulatorSpec
    epoch_ns: int
    peers: dict[str, tuple[str, int]]
    host: str = "127.0.0.1"
    listener: int = -1
    roles: bool = False  # whether what each role does is kept, up to `MOST_EVENTS` of a cluster

    def event_log(self) -> EventLog:
        """A cluster's own; it keeps nothing unless asked."""
        return EventLog(MOST_EVENTS if self.roles else 0)

    @property
    def packets(self) -> bool:
        """Whether the link has real packets, and so its own delay."""
        return self.deployment.wan_backend in PACKET_BACKENDS

    @property
    def control_delay_s(self) -> float:
        """One-way delay to add to control messages: the network's own, unless it has none."""
        return 0.0 if self.packets else self.deployment.link.rtt_s / 2


def figures(clock: LiveClock) -> dict[str, float]:
    """What every process reports of itself; lateness of timers in wall nanoseconds."""
    late = clock.lateness
    return {
        "cpu_s": time.process_time(),
        "timer_calls": float(late.count),
        "late_p50_ns": float(late.quantile_ns(0.5)),
        "late_p99_ns": float(late.quantile_ns(0.99)),
        "late_max_ns": float(late.max_ns),
        **_from_proc(),
    }


def _from_proc() -> dict[str, float]:
    """What Linux says of this process: memory, and seconds it could run but had no core (lateness of the host's)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        waited_ns = int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return {}
    return {"rss_bytes": float(pages * resource.getpagesize()), "run_delay_s": waited_ns / 1e9}


def lost(who: str) -> Callable[[], None]:
    """What to do when a connection to another process breaks: a deployment with a part missing must not go on."""

    def end() -> None:
        sys.stderr.write(f"the connection to {who} was lost\n")
        sys.stderr.flush()
        os._exit(1)

    return end


async def connect(
    loop: asyncio.AbstractEventLoop,
    address: tuple[str, int],
    purpose: str,
    on_message: Callable[[Wire, Message], None],
    who: str,
) -> Wire:
    """A connection to another process, introduced by its purpose."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        pin(sock)
        await loop.sock_connect(sock, address)
        _, wire = await loop.create_connection(lambda: Wire(on_message, lost(who)), sock=sock)
    except BaseException:
        sock.close()
        raise
    wire.send(Hello(purpose))
    return wire


async def listen(loop: asyncio.AbstractEventLoop, host: str, factory: Callable[[], Wire]) -> int:
    """Listen on a free port; connections get the listener's congestion control."""
    sock = socket.create_server((host, 0), backlog=1024)
    pin(sock)
    server = await loop.create_server(factory, sock=sock)
    port: int = server.sockets[0].getsockname()[1]
    return port
