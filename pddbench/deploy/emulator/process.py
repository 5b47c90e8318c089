"""The processes of a deployment: `python -m pddbench.deploy.emulator.process a|b|router`, spec as JSON on stdin.

A process says where it listens by one JSON line on stdout, and ends when its stdin does: then its parent has died.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from pddbench.deploy.emulator.cluster_a import ClusterA
from pddbench.deploy.emulator.cluster_b import ClusterB
from pddbench.deploy.emulator.liveclock import LiveClock
from pddbench.deploy.emulator.messages import AskStats, Drop, HandOff, Hello, KvArrived, Message, Stats
from pddbench.deploy.emulator.node import ProcessSpec, connect, figures, listen, lost
from pddbench.deploy.emulator.packets import FLOW, PacketLink
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.wire import Wire
from pddbench.timeliness import ask_for_short_slices
from pddbench.wan.fluid import FluidLink
from pddbench.wan.steps import Step, Waits, shifted

_PUMP_S = 0.005  # wall seconds between two lots of filler; arrival times are the link's and do not depend on it


class FilledLink:
    """The fluid link, with KV as real filler bytes (model bytes / `kv_scale`) in pace with it."""

    def __init__(self, spec: EmulatorSpec, clock: LiveClock, loop: asyncio.AbstractEventLoop) -> None:
        self._fluid = FluidLink(spec.link, clock, spec.kv_flows, spec.kv_warm)
        self._scale, self._loop = spec.kv_scale, loop
        self._filled: dict[int, tuple[int, int]] = {}  # transfer -> (filler bytes sent, of how many)
        self._pumping = False
        self.wire: Wire | None = None
        self.wire_bytes: dict[int, int] = {}  # of transfers that have arrived, until they are announced
        self.sent_wire_bytes = 0
        self.predict_s, self.remaining_s = self._fluid.predict_s, self._fluid.remaining_s
        self.sent_bytes = self._fluid.sent_bytes
        self.follow = self._fluid.follow

    def send(self, flow_id: int, n_bytes: float, on_arrived: Callable[[], None]) -> None:
        """See `wan.fluid.FluidLink.send`."""
        self._filled[flow_id] = (0, max(1, round(n_bytes / self._scale)))
        self._fluid.send(flow_id, n_bytes, lambda: self._arrived(flow_id, on_arrived))
        if not self._pumping:
            self._pumping = True
            self._loop.call_later(_PUMP_S, self._pump)

    def cancel(self, flow_id: int) -> None:
        """See `wan.fluid.FluidLink.cancel`."""
        self._fluid.cancel(flow_id)
        self._filled.pop(flow_id, None)

    def figures(self) -> dict[str, float]:
        """What it has sent so far."""
        return {"kv_sent_wire_bytes": float(self.sent_wire_bytes), "link_changes": float(self._fluid.changes)}

    def taken_wire_bytes(self, transfer: int) -> int:
        """Filler bytes of a transfer that has arrived (its second flow has the negative number); forgotten by this."""
        return self.wire_bytes.pop(transfer, 0) + self.wire_bytes.pop(-transfer, 0)

    def _pump(self) -> None:
        for flow_id, (_, total) in list(self._filled.items()):
            self._fill(flow_id, min(total, int(self._fluid.sent_bytes(flow_id) / self._scale)))
        self._pumping = bool(self._filled)
        if self._pumping:
            self._loop.call_later(_PUMP_S, self._pump)

    def _fill(self, flow_id: int, upto: int) -> None:
        filled, total = self._filled[flow_id]
        if upto > filled and self.wire is not None:
            self.wire.send_filler(upto - filled)
            self.sent_wire_bytes += upto - filled
            self._filled[flow_id] = (upto, total)

    def _arrived(self, flow_id: int, on_arrived: Callable[[], None]) -> None:
        total = self._filled[flow_id][1]
        self._fill(flow_id, total)
        del self._filled[flow_id]
        self.wire_bytes[flow_id] = total
        on_arrived()


class _End:
    """One end of a modelled link, whose schedule begins when the launcher says so; packets wait by themselves."""

    def __init__(self, spec: ProcessSpec, clock: LiveClock) -> None:
        self._deployment, self._epoch_ns, self._delay_s = spec.deployment, spec.epoch_ns, spec.control_delay_s
        self._clock, self._waits = clock, Waits()

    def begin(self, t0_ns: int) -> tuple[Sequence[Step], float]:
        """The zero of the run, on CLOCK_MONOTONIC: the steps, and that zero on the clock."""
        start_s = (t0_ns - self._epoch_ns) / 1e9 * self._deployment.speed
        self._waits = Waits(shifted(self._deployment.link_steps, start_s))
        return self._deployment.link_steps, start_s

    def across(self, send: Callable[[Message], None]) -> Callable[[Message], None]:
        """What sends a message that is due at the other end now, or when the link is back."""
        return partial(self._crossed, send) if self._deployment.link_steps and self._delay_s else send

    def _crossed(self, send: Callable[[Message], None], message: Message) -> None:
        now_s = self._clock.now()
        arrives_s = self._waits.arrives_s(now_s, self._delay_s)
        if arrives_s > now_s:
            self._clock.call_at(arrives_s, send, message)
        else:
            send(message)


class ProcessA:
    """Cluster A: one connection from the router, two to B (control, KV)."""

    def __init__(self, spec: ProcessSpec, loop: asyncio.AbstractEventLoop) -> None:
        self._spec, self._loop = spec, loop
        deployment = spec.deployment
        self.clock = LiveClock(loop, deployment.speed, spec.epoch_ns)
        self._link: FilledLink | PacketLink | None = None
        if deployment.arm != "baseline":
            self._link = (
                PacketLink(deployment, self.clock, loop, spec.peers["b"], _broken)
                if spec.packets
                else FilledLink(deployment, self.clock, loop)
            )
        self._router: Wire | None = None
        self._control: Wire | None = None
        self._kv: Wire | None = None
        self._end = end = _End(spec, self.clock)
        to_b, to_b_kv = end.across(self._to_b), end.across(self._to_b_kv)
        self._cluster = ClusterA(
            deployment, self.clock, self._link, self._to_router, to_b, to_b_kv, spec.control_delay_s
        )

    def begin_events(self, t0_ns: int) -> None:
        """The run begins: from now on the link changes."""
        steps, start_s = self._end.begin(t0_ns)
        if isinstance(self._link, FilledLink):
            self.clock.enter(self._link.follow, steps, start_s)

    async def start(self) -> int:
        """Connect to B and listen for the router; returns the port."""
        if self._link is not None:
            b = self._spec.peers["b"]
            self._control = await connect(self._loop, b, "control", self._on_message, "cluster B")
            self._kv = await connect(self._loop, b, "kv", self._on_message, "cluster B")
            if isinstance(self._link, FilledLink):
                self._link.wire = self._kv
        return await listen(self._loop, self._spec.host, lambda: Wire(self._on_message))

    def _on_message(self, wire: Wire, message: Message) -> None:
        if isinstance(message, Hello):
            self._router = wire
            wire.on_lost = lost("the router")
        elif isinstance(message, AskStats):
            wire.send(Stats(message.number, self._figures()))
        else:
            self.clock.enter(self._cluster.on_message, message)

    def _to_router(self, message: Message) -> None:
        assert self._router is not None
        self._router.send(message)

    def _to_b(self, message: Message) -> None:
        assert self._control is not None
        self._control.send(message)

    def _to_b_kv(self, message: Message) -> None:
        """Behind the bytes that stand for the KV."""
        assert self._kv is not None
        if isinstance(self._link, PacketLink):
            if isinstance(message, (KvArrived, HandOff)):
                self._link.announce(message)
                return
            if isinstance(message, Drop) and self._link.follow(message.rid, message):
                return
        elif isinstance(message, KvArrived) and self._link is not None:
            message.wire_bytes = self._link.taken_wire_bytes(message.transfer)
        elif isinstance(message, HandOff) and self._link is not None:
            self._link.taken_wire_bytes(message.transfer)
        self._kv.send(message)

    @property
    def facts(self) -> dict[str, str]:
        """What to tell the launcher besides the port."""
        return {"congestion_control": self._link.congestion_control} if isinstance(self._link, PacketLink) else {}

    def _figures(self) -> dict[str, float]:
        out = figures(self.clock) | {"kv_sent_bytes": float(self._cluster.kv_sent_bytes)}
        if self._link is not None:
            out |= self._link.figures()
        return out | decoder_figures(self._cluster.decoder)


def _broken(error: OSError) -> None:
    """A transfer's connection failed: its KV will never be there."""
    lost(f"cluster B ({error.strerror})")()


class ProcessB:
    """Cluster B: connections from A (control, KV) and from the router."""

    def __init__(self, spec: ProcessSpec, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        deployment = spec.deployment
        self.clock = LiveClock(loop, deployment.speed, spec.epoch_ns)
        self._wires: dict[str, Wire] = {}
        self._spec = spec
        self._end = end = _End(spec, self.clock)
        to_router, to_a = end.across(self._to_router), end.across(self._to_a)
        self._cluster = ClusterB(deployment, self.clock, to_router, to_a, spec.control_delay_s)
        self._flow_wire_bytes = 0  # filler of transfers' own connections

    def begin_events(self, t0_ns: int) -> None:
        """The run begins: from now on what B sends may have to wait for the link."""
        self._end.begin(t0_ns)

    async def start(self) -> int:
        """Listen for A and the router; returns the port."""
        return await listen(self._loop, self._spec.host, lambda: Wire(self._on_message))

    def _on_message(self, wire: Wire, message: Message) -> None:
        if isinstance(message, Hello):
            self._introduced(wire, message.purpose)
        elif isinstance(message, AskStats):
            wire.send(Stats(message.number, self._figures()))
        else:
            self.clock.enter(self._cluster.on_message, message)
            if isinstance(message, KvArrived) and wire is not self._wires.get("kv"):
                self._flow_wire_bytes += wire.filler_received_bytes
                wire.half_close()

    def _introduced(self, wire: Wire, purpose: str) -> None:
        """A transfer's own connection may end at any time (it is cancelled); the others may not."""
        if purpose != FLOW:
            self._wires[purpose] = wire
            wire.on_lost = lost("the router" if purpose == "router" else "cluster A")

    def _to_router(self, message: Message) -> None:
        self._wires["router"].send(message)

    def _to_a(self, message: Message) -> None:
        self._wires["control"].send(message)

    def _figures(self) -> dict[str, float]:
        wire_bytes = self._wires["kv"].filler_received_bytes if "kv" in self._wires else 0
        wire_bytes += self._flow_wire_bytes
        received = {"kv_received_bytes": self._cluster.kv_received_bytes, "kv_received_wire_bytes": wire_bytes}
        return figures(self.clock) | {k: float(v) for k, v in received.items()} | decoder_figures(self._cluster.decoder)


def decoder_figures(decoder: Any) -> dict[str, float]:
    """Tokens, steps and the largest batch of a cluster's decode instances."""
    if decoder is None:
        return {}
    return {
        "tokens": float(decoder.tokens),
        "steps": float(decoder.steps),
        "peak_batch": float(decoder.peak_batch),
    }


def _end_with_parent(loop: asyncio.AbstractEventLoop, begin_events: Callable[[int], None] | None) -> None:
    """Exit when stdin ends: whoever held its other end is gone, however it went. A line there is a run's zero (ns)."""

    def read() -> None:
        said = os.read(sys.stdin.fileno(), 4096)
        if not said:
            os._exit(0)
        if begin_events is not None:
            begin_events(int(said))

    loop.add_reader(sys.stdin.fileno(), read)


def _end_on_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A cluster whose state machine failed must not go on: its answers could be wrong."""
    error = context.get("exception")
    sys.stderr.write("".join(traceback.format_exception(error)) if error else f"{context.get('message')}\n")
    sys.stderr.flush()
    os._exit(1)


def _process(role: str, spec: ProcessSpec, loop: asyncio.AbstractEventLoop) -> Any:
    if role == "router":
        from pddbench.deploy.emulator.router import RouterProcess

        return RouterProcess(spec, loop)
    return {"a": ProcessA, "b": ProcessB}[role](spec, loop)


async def _serve(role: str, spec: ProcessSpec) -> None:
    loop = asyncio.get_running_loop()
    if role != "router":
        loop.set_exception_handler(_end_on_error)
    try:
        process = _process(role, spec, loop)
        _end_with_parent(loop, getattr(process, "begin_events", None))
        ready = {"port": await process.start(), **getattr(process, "facts", {})}
    except OSError as error:
        ready = {"error": error.strerror or str(error), "errno": error.errno}
    gc.collect()
    gc.freeze()  # what is loaded stays: later collections look at requests only
    gc.set_threshold(50_000, 20, 100)
    if role == "router" and "port" in ready:
        process.watch()
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def main() -> None:
    """Run one process until its stdin ends."""
    role = sys.argv[1]
    if role == "router":
        import aiohttp.web  # noqa: F401  (while the clusters start: the spec comes when they listen)
        import numpy  # noqa: F401
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the parent ended before it said anything
    spec = msgspec.json.decode(line, type=ProcessSpec)
    ask_for_short_slices()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection a client
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(role, spec))


if __name__ == "__main__":
    main()
