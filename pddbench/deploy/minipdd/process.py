"""The processes of ours in a miniature deployment: `python -m pddbench.deploy.minipdd.process a|b`, `Part` on stdin.

A holds the front and cluster A, B holds cluster B. A process says where it listens by one JSON line on stdout, and ends
when its stdin does: then its parent has died.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from pddbench.deploy.emulator.liveclock import LiveClock
from pddbench.deploy.minipdd.cluster_b import ClusterB
from pddbench.deploy.minipdd.line import Delayed, Line, one_way_s
from pddbench.deploy.minipdd.llama import Llama
from pddbench.deploy.minipdd.messages import Hello, Kv, read_message
from pddbench.deploy.minipdd.spec import Part
from pddbench.timeliness import ask_for_short_slices


async def serve_a(part: Part) -> int:
    """Connect to B (unless baseline) and serve HTTP on the socket that was inherited; returns its port."""
    from aiohttp import web

    from pddbench.deploy.minipdd.cluster_a import ClusterA
    from pddbench.deploy.minipdd.front import Front

    loop = asyncio.get_running_loop()
    spec = part.spec
    engines = {role: Llama(role, url, spec.slots) for role, url in part.engines.items()}
    line = None
    if part.peer is not None:
        line = Line(spec, LiveClock(loop, 1.0, part.epoch_ns), lambda message: cluster.on_message(message), _lost("B"))
    cluster = ClusterA(spec, engines, Path(part.folder), line)
    if line is not None and part.peer is not None:
        await line.open(part.peer)
    front = Front(spec, cluster, engines["P"], part.token)
    runner = web.AppRunner(front.application(), access_log=None, handler_cancellation=True, read_bufsize=1 << 20)
    await runner.setup()
    listener = socket.socket(fileno=part.http_fd)
    await web.SockSite(runner, listener, backlog=1024).start()
    port: int = listener.getsockname()[1]
    return port


async def serve_b(part: Part) -> int:
    """Listen for A; returns the port."""
    loop = asyncio.get_running_loop()
    [(role, url)] = part.engines.items()
    cluster = ClusterB(Llama(role, url, part.spec.slots), Path(part.folder))
    clock = LiveClock(loop, 1.0, part.epoch_ns)

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await read_message(reader)
        if isinstance(first, Hello):
            cluster.attach(Delayed(writer, clock, one_way_s(part.spec)))
            await cluster.read_control(reader)
            _lost("A")()
        elif isinstance(first, Kv):
            await cluster.read_kv(first, reader)
            writer.close()

    server = await asyncio.start_server(on_connection, part.listen, 0, limit=1 << 20)
    port: int = server.sockets[0].getsockname()[1]
    return port


def _lost(name: str) -> Callable[[], None]:
    """A deployment with a part missing must not go on."""

    def end() -> None:
        sys.stderr.write(f"the connection to cluster {name} was lost\n")
        sys.stderr.flush()
        os._exit(1)

    return end


def _end_with_parent(loop: asyncio.AbstractEventLoop) -> None:
    """Exit when stdin ends: whoever held its other end is gone, however it went."""

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            os._exit(0)

    loop.add_reader(sys.stdin.fileno(), read)


async def _serve(name: str, part: Part) -> None:
    _end_with_parent(asyncio.get_running_loop())
    port = await {"a": serve_a, "b": serve_b}[name](part)
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Run one process until its stdin ends."""
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the parent ended before it said anything
    part = msgspec.json.decode(line, type=Part)
    ask_for_short_slices()
    asyncio.run(_serve(sys.argv[1], part))


if __name__ == "__main__":
    main()
