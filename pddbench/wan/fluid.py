"""The `model` backend of the WAN: TCP flows as fluids that share a line. No packets, no privileges, no ticking.

A flow's rate is the least of its fair share of the line (max-min), its cap, and its window / RTT. The window grows by
what was delivered in each RTT, which is a doubling while nothing else limits the flow (slow start), up to cap x RTT.
Between two events all rates are constant, so the state moves from event to event and never in steps of time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pddbench.wan.clock import Clock
from pddbench.wan.link import Link
from pddbench.wan.transfer import INITIAL_WINDOW_BYTES, sending_s, transfer_s

_SLACK_BYTES = 0.5  # less than a byte left is nothing left
_SLACK_S = 1e-9  # events closer than a nanosecond are one (float resolution over days)


class _Flow:
    """A transfer: bytes left, its window, and what its current round trip has delivered."""

    __slots__ = ("arrives_s", "left", "on_arrived", "opens_s", "rate", "round_bytes", "round_end_s", "total", "window")

    def __init__(self, total: float, opens_s: float, on_arrived: Callable[[], None]) -> None:
        self.total = self.left = float(total)
        self.window = float(INITIAL_WINDOW_BYTES)
        self.round_bytes = 0.0
        self.round_end_s = math.inf
        self.rate = 0.0
        self.opens_s, self.arrives_s = opens_s, math.inf
        self.on_arrived = on_arrived


class FluidLink:
    """One direction of a link on a clock. Ids of flows are the caller's; bytes are model bytes."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self.link = link
        self._clock = clock
        self._rtt_s, self._cap, self._rate = link.rtt_s, link.flow_bytes_s, link.rate_bytes_s
        self._flows: dict[int, _Flow] = {}  # all that have not arrived
        self._active: dict[int, _Flow] = {}  # those that send
        self._updated_s = clock.now()
        self._version = 0
        self.delivered_bytes = 0.0

    def send(self, flow_id: int, n_bytes: float, on_arrived: Callable[[], None]) -> None:
        """Start a fresh flow; `on_arrived` is called when its last byte has reached the other end."""
        opens_s = self._clock.now() + self._rtt_s  # after the handshake
        flow = self._flows[flow_id] = _Flow(n_bytes, opens_s, on_arrived)
        self._clock.call_at(opens_s, self._open, flow_id, flow)

    def cancel(self, flow_id: int) -> None:
        """Stop a flow: it will not arrive, and its share goes to the others. Unknown or arrived ones are ignored."""
        flow = self._flows.pop(flow_id, None)
        if flow is not None and flow_id in self._active:
            self._advance()
            self._active.pop(flow_id, None)
            self._reschedule()

    def sent_bytes(self, flow_id: int) -> float:
        """Bytes a flow has sent by now; 0 when unknown."""
        flow = self._flows.get(flow_id)
        if flow is None:
            return 0.0
        since_s = max(0.0, self._clock.now() - self._updated_s)
        return min(flow.total, flow.total - flow.left + (flow.rate * since_s if flow_id in self._active else 0.0))

    def predict_s(self, n_bytes: float) -> float:
        """Seconds a transfer started now would take if the flows that send now went on."""
        return transfer_s(self.link, n_bytes, flows=len(self._flows) + 1)

    def remaining_s(self, flow_id: int) -> float:
        """Seconds until a flow has arrived, if the flows that are there now stay. 0: arrived, or unknown."""
        flow = self._flows.get(flow_id)
        if flow is None:
            return 0.0
        if flow_id not in self._active and flow.left > 0:  # in its handshake
            return flow.opens_s - self._clock.now() + self._sending_s(flow.left, flow.window) + self._rtt_s / 2
        if flow.left <= 0:
            return flow.arrives_s - self._clock.now()
        return self._sending_s(flow.total - self.sent_bytes(flow_id), flow.window) + self._rtt_s / 2

    def _sending_s(self, n_bytes: float, window_bytes: float) -> float:
        return sending_s(self.link, n_bytes, window_bytes, len(self._flows))

    def _open(self, flow_id: int, flow: _Flow) -> None:
        """The handshake is over: the flow begins to send."""
        if self._flows.get(flow_id) is not flow:
            return
        self._advance()
        if self._rtt_s > 0 and flow.window < self._cap * self._rtt_s:
            flow.round_end_s = self._clock.now() + self._rtt_s
        else:
            flow.window = math.inf
        self._active[flow_id] = flow
        self._reschedule()

    def _advance(self) -> None:
        """Move all flows to now at their rates; those with nothing left are on their way to the other end."""
        now = self._clock.now()
        elapsed_s, self._updated_s = max(0.0, now - self._updated_s), max(now, self._updated_s)
        for flow_id, flow in list(self._active.items()):
            moved = min(flow.left, flow.rate * elapsed_s)
            if flow.left - moved <= _SLACK_BYTES + flow.rate * _SLACK_S:
                moved = flow.left
                self._finish(flow_id, flow)
            flow.left -= moved
            flow.round_bytes += moved
            self.delivered_bytes += moved
            if flow.round_end_s <= now + _SLACK_S:
                self._next_round(flow)

    def _finish(self, flow_id: int, flow: _Flow) -> None:
        del self._active[flow_id]
        flow.arrives_s = self._updated_s + self._rtt_s / 2
        self._clock.call_at(flow.arrives_s, self._arrive, flow_id, flow)

    def _arrive(self, flow_id: int, flow: _Flow) -> None:
        if self._flows.get(flow_id) is flow:
            del self._flows[flow_id]
            flow.on_arrived()

    def _next_round(self, flow: _Flow) -> None:
        """A round trip is over: the window has grown by what was acknowledged."""
        flow.window += flow.round_bytes
        flow.round_bytes = 0.0
        if flow.window >= self._cap * self._rtt_s:
            flow.window, flow.round_end_s = math.inf, math.inf
        else:
            flow.round_end_s += self._rtt_s

    def _share(self) -> None:
        """Max-min fair rates: the most limited flows first, what they leave goes to the others."""
        limits = [(min(self._cap, flow.window / self._rtt_s if self._rtt_s else math.inf), flow_id)
                  for flow_id, flow in self._active.items()]  # fmt: skip
        limits.sort()
        free, waiting = self._rate, len(limits)
        for limit, flow_id in limits:
            rate = min(limit, free / waiting)
            self._active[flow_id].rate = rate
            free, waiting = free - rate, waiting - 1

    def _reschedule(self) -> None:
        """New rates, and one call at the next change (an older call finds that it is out of date)."""
        self._share()
        self._version += 1
        if self._active:
            next_s = min(min(self._updated_s + f.left / f.rate, f.round_end_s) for f in self._active.values())
            self._clock.call_at(next_s, self._on_event, self._version)

    def _on_event(self, version: int) -> None:
        if version == self._version:
            self._advance()
            self._reschedule()
