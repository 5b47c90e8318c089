"""The `model` backend of the WAN: TCP flows as fluids that share a line. No packets, no privileges, no ticking.

A flow's rate is the least of its fair share of the line (max-min), its cap, and its window / RTT. The window grows by
what was delivered in each RTT, which is a doubling while nothing else limits the flow (slow start), up to cap x RTT.
Between two events all rates are constant, so the state moves from event to event and never in steps of time. Flows
whose windows are open all have the same rate: what such a flow has received is one number for all of them, and an
event costs as much as there are flows in slow start, however many others there are. While the line has room for the
caps of all of them, flows do not feel one another, and each is followed by the closed form, without any event.

A line that is cut carries nothing, and its flows go on afterwards with the windows they had: TCP's retransmission
timer, which makes the wait up to twice as long, is not in the model.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from pddbench.wan.clock import Clock
from pddbench.wan.link import Link
from pddbench.wan.steps import Step
from pddbench.wan.transfer import INITIAL_WINDOW_BYTES, sending_s, transfer_s

_SLACK_BYTES = 0.5  # less than a byte left is nothing left
_SLACK_S = 1e-9  # events closer than a nanosecond are one (float resolution over days)


class _Flow:
    """A transfer: bytes left (of an open one: until all open ones have got `target`), its window, its round trip."""

    __slots__ = ("arrives_s", "left", "on_arrived", "opens_s", "rate", "round_bytes", "round_end_s", "target",
                 "total", "window")  # fmt: skip

    def __init__(self, total: float, opens_s: float, window: float, on_arrived: Callable[[], None]) -> None:
        self.total = self.left = float(total)
        self.window = window
        self.round_bytes = self.rate = self.target = 0.0
        self.round_end_s = math.inf
        self.opens_s, self.arrives_s = opens_s, math.inf
        self.on_arrived = on_arrived


class FluidLink:
    """One direction of a link on a clock. Ids of transfers are the caller's; bytes are model bytes.

    A transfer is `parallel` TCP flows, which start with open windows when they are `warm` (connections in use).
    """

    def __init__(self, link: Link, clock: Clock, parallel: int = 1, warm: bool = False) -> None:
        self.link = link
        self._clock, self._parallel, self._warm = clock, parallel, warm
        self._rtt_s, self._rate = link.rtt_s, link.rate_bytes_s
        self._cap = min(link.flow_bytes_s * parallel, self._rate)
        self._flows: dict[int, _Flow] = {}  # all that have not arrived
        self._free: dict[int, _Flow] = {}  # those that send and do not feel any other
        self._growing: dict[int, _Flow] = {}  # those that send, in slow start
        self._open: dict[int, _Flow] = {}  # those that send, with open windows
        self._targets: list[tuple[float, int, _Flow]] = []
        self._received = 0.0  # bytes that a flow open all the time would have got
        self._open_rate = 0.0
        self._updated_s = clock.now()
        self._version = 0
        self.delivered_bytes = 0.0
        self._shut_out: list[tuple[int, _Flow]] = []  # those whose handshake met a line that is cut
        self.changes = 0

    def follow(self, steps: Sequence[Step], start_s: float) -> None:
        """Change the line at times of the clock: `start_s` is the zero of the steps."""
        for step in steps:
            self._clock.call_at(start_s + step.at_s, self._change, step.rate_share)

    def _change(self, rate_share: float) -> None:
        """From now on the line has a share of its rate. What predicts (`predict_s`) is not told."""
        self._advance()
        for flow_id, flow in list(self._free.items()):
            self._join_others(flow_id, flow)
        self._rate = self.link.rate_bytes_s * rate_share
        self.changes += 1
        if self._rate > 0:
            opens_s = self._clock.now() + (0.0 if self._warm else self._rtt_s)
            for flow_id, flow in self._shut_out:
                flow.opens_s = opens_s
                self._clock.call_at(opens_s, self._begin, flow_id, flow)
            self._shut_out = []
        self._reschedule()

    def send(self, flow_id: int, n_bytes: float, on_arrived: Callable[[], None]) -> None:
        """Start a transfer; `on_arrived` is called when its last byte has reached the other end."""
        opens_s = self._clock.now() + (0.0 if self._warm else self._rtt_s)  # after the handshake
        window = math.inf if self._warm else float(INITIAL_WINDOW_BYTES) * self._parallel
        flow = self._flows[flow_id] = _Flow(n_bytes, opens_s, window, on_arrived)
        self._clock.call_at(opens_s, self._begin, flow_id, flow)

    def cancel(self, flow_id: int) -> None:
        """Stop a flow: it will not arrive, and its share goes to the others. Unknown or arrived ones are ignored."""
        flow = self._flows.pop(flow_id, None)
        if flow is not None and self._free.pop(flow_id, None) is flow:
            self.delivered_bytes += flow.total - self._rest(flow)[0]
        elif flow is not None and (flow_id in self._growing or flow_id in self._open):
            self._advance()
            self._growing.pop(flow_id, None)
            self._open.pop(flow_id, None)
            self._reschedule()

    def sent_bytes(self, flow_id: int) -> float:
        """Bytes a flow has sent by now; 0 when unknown."""
        flow = self._flows.get(flow_id)
        if flow is None:
            return 0.0
        if flow_id in self._free:
            return flow.total - self._rest(flow)[0]
        since_s = max(0.0, self._clock.now() - self._updated_s)
        if flow_id in self._open:
            return min(flow.total, flow.total - flow.target + self._received + self._open_rate * since_s)
        return min(flow.total, flow.total - flow.left + (flow.rate * since_s if flow_id in self._growing else 0.0))

    def predict_s(self, n_bytes: float) -> float:
        """Seconds a transfer started now would take if the flows that send now went on."""
        share = n_bytes / self._parallel
        return transfer_s(self.link, share, not self._warm, (len(self._flows) + 1) * self._parallel)

    def remaining_s(self, flow_id: int) -> float:
        """Seconds until a flow has arrived, if the flows that are there now stay. 0: arrived, or unknown."""
        flow = self._flows.get(flow_id)
        if flow is None:
            return 0.0
        if flow.arrives_s < math.inf:
            return flow.arrives_s - self._clock.now()
        if flow_id in self._free:
            left, window, _ = self._rest(flow)
            return self._sending_s(left, window) + self._rtt_s / 2
        if flow_id not in self._growing and flow_id not in self._open:  # in its handshake
            return flow.opens_s - self._clock.now() + self._sending_s(flow.left, flow.window) + self._rtt_s / 2
        return self._sending_s(flow.total - self.sent_bytes(flow_id), flow.window) + self._rtt_s / 2

    def _sending_s(self, n_bytes: float, window_bytes: float) -> float:
        parallel = self._parallel
        return sending_s(self.link, n_bytes / parallel, window_bytes / parallel, len(self._flows) * parallel)

    def _begin(self, flow_id: int, flow: _Flow) -> None:
        """The handshake is over: the flow begins to send."""
        if self._flows.get(flow_id) is not flow:
            return
        if self._rate <= 0:
            self._shut_out.append((flow_id, flow))
            return
        if (len(self._free) + 1) * self._cap <= self._rate and not self._growing and not self._open:
            flow.opens_s = self._clock.now()
            self._free[flow_id] = flow
            self._clock.call_at(flow.opens_s + self._alone_s(flow), self._end_free, flow_id, flow)
            return
        self._advance()
        for other_id, other in list(self._free.items()):
            self._join_others(other_id, other)
        self._follow(flow_id, flow, self._rtt_s)
        self._reschedule()

    def _alone_s(self, flow: _Flow) -> float:
        """Seconds that a free flow takes to send everything."""
        parallel = self._parallel
        return sending_s(self.link, flow.left / parallel, flow.window / parallel, parallel)

    def _end_free(self, flow_id: int, flow: _Flow) -> None:
        if self._free.get(flow_id) is flow:
            del self._free[flow_id]
            flow.left = 0.0
            self.delivered_bytes += flow.total
            self._arrives(flow_id, flow, self._clock.now())

    def _rest(self, flow: _Flow) -> tuple[float, float, float]:
        """Of a free flow now: bytes left, window, and seconds since its round trip began."""
        since_s, left, window = self._clock.now() - flow.opens_s, flow.left, flow.window
        while window < self._cap * self._rtt_s and since_s >= self._rtt_s and left > window:
            since_s, left, window = since_s - self._rtt_s, left - window, window * 2
        rate = self._cap if window >= self._cap * self._rtt_s else window / self._rtt_s
        return max(0.0, left - rate * since_s), window, since_s

    def _join_others(self, flow_id: int, flow: _Flow) -> None:
        """The line becomes narrow: a free flow goes on among the others from where it stands."""
        del self._free[flow_id]
        before = flow.left
        flow.left, flow.window, since_s = self._rest(flow)
        self.delivered_bytes += before - flow.left
        if flow.left <= _SLACK_BYTES:
            self.delivered_bytes += flow.left
            self._arrives(flow_id, flow, self._clock.now())
            return
        flow.round_bytes = (
            0.0 if self._rtt_s <= 0 else min(flow.window, self._cap * self._rtt_s) * since_s / self._rtt_s
        )
        self._follow(flow_id, flow, self._rtt_s - since_s)

    def _follow(self, flow_id: int, flow: _Flow, round_s: float) -> None:
        """From now on a flow moves from event to event; its round trip ends in `round_s`."""
        if self._rtt_s > 0 and flow.window < self._cap * self._rtt_s:
            flow.round_end_s = self._clock.now() + round_s
            self._growing[flow_id] = flow
        else:
            self._open_up(flow_id, flow)

    def _open_up(self, flow_id: int, flow: _Flow) -> None:
        """Its window limits a flow no more."""
        flow.window = flow.round_end_s = math.inf
        flow.target = self._received + flow.left
        self._open[flow_id] = flow
        heapq.heappush(self._targets, (flow.target, flow_id, flow))

    def _advance(self) -> None:
        """Move all flows to now at their rates; those with nothing left are on their way to the other end."""
        now = self._clock.now()
        elapsed_s, self._updated_s = max(0.0, now - self._updated_s), max(now, self._updated_s)
        self._received += self._open_rate * elapsed_s
        self.delivered_bytes += self._open_rate * elapsed_s * len(self._open)
        for flow_id, flow in list(self._growing.items()):
            moved = min(flow.left, flow.rate * elapsed_s)
            if flow.left - moved <= _SLACK_BYTES + flow.rate * _SLACK_S:
                moved = flow.left
                del self._growing[flow_id]
                self._finish(flow_id, flow)
            flow.left -= moved
            flow.round_bytes += moved
            self.delivered_bytes += moved
            if flow.left and flow.round_end_s <= now + _SLACK_S:
                self._next_round(flow_id, flow)
        slack = _SLACK_BYTES + self._open_rate * _SLACK_S
        while (first := self._first()) is not None and first[0] - self._received <= slack:
            target, flow_id, flow = heapq.heappop(self._targets)
            self.delivered_bytes += target - self._received
            flow.left = 0.0
            del self._open[flow_id]
            self._finish(flow_id, flow)

    def _first(self) -> tuple[float, int, _Flow] | None:
        """The open flow that ends next."""
        while self._targets and self._open.get(self._targets[0][1]) is not self._targets[0][2]:
            heapq.heappop(self._targets)
        return self._targets[0] if self._targets else None

    def _finish(self, flow_id: int, flow: _Flow) -> None:
        self._arrives(flow_id, flow, self._updated_s)

    def _arrives(self, flow_id: int, flow: _Flow, sent_s: float) -> None:
        """All of it was sent at `sent_s`: half an RTT later it is there."""
        flow.arrives_s = sent_s + self._rtt_s / 2
        self._clock.call_at(flow.arrives_s, self._arrive, flow_id, flow)

    def _arrive(self, flow_id: int, flow: _Flow) -> None:
        if self._flows.get(flow_id) is flow:
            del self._flows[flow_id]
            flow.on_arrived()

    def _next_round(self, flow_id: int, flow: _Flow) -> None:
        """A round trip is over: the window has grown by what was acknowledged."""
        flow.window += flow.round_bytes
        flow.round_bytes = 0.0
        if flow.window >= self._cap * self._rtt_s:
            del self._growing[flow_id]
            self._open_up(flow_id, flow)
        else:
            flow.round_end_s += self._rtt_s

    def _share(self) -> None:
        """Max-min fair rates: the most limited flows first, what they leave goes to the others."""
        growing = sorted(self._growing.values(), key=lambda flow: flow.window)
        free, waiting = self._rate, len(growing) + len(self._open)
        for flow in growing:
            flow.rate = min(self._cap, flow.window / self._rtt_s, free / waiting)
            free, waiting = free - flow.rate, waiting - 1
        self._open_rate = min(self._cap, free / waiting) if waiting else 0.0

    def _reschedule(self) -> None:
        """New rates, and one call at the next change (an older call finds that it is out of date)."""
        self._share()
        self._version += 1
        next_s = math.inf
        for flow in self._growing.values():
            ends_s = self._updated_s + flow.left / flow.rate if flow.rate > 0 else math.inf
            next_s = min(next_s, ends_s, flow.round_end_s)
        first = self._first()
        if first is not None and self._open_rate > 0:
            next_s = min(next_s, self._updated_s + max(0.0, first[0] - self._received) / self._open_rate)
        if next_s < math.inf:
            self._clock.call_at(next_s, self._on_event, self._version)

    def _on_event(self, version: int) -> None:
        if version == self._version:
            self._advance()
            self._reschedule()
