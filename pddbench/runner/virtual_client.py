"""An ideal client in virtual time: it sends what is due when it is due, and gives up as a live one does.

What is sent when, where a measured window ends a run, and after what silence a request is left are the rules of
`replay.engine` and `replay.stall`; how a request is sent and what is kept of it is the subclass's.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pddbench.replay.engine import LEAD_NS
from pddbench.replay.schedule import Schedule, Times, phases
from pddbench.wan.clock import VirtualClock
from pddbench.workload.plan import NS, Plan

if TYPE_CHECKING:
    from pddbench.replay.stream import Ending
    from pddbench.workload.experiment import Workload

STOPPED = "stopped while in flight"
_GARBAGE_EVERY = 200_000  # objects; at 700 a run spends a seventh of its time looking at what is no garbage


@dataclass(frozen=True)
class Manners:
    """How long a client waits without a byte, and for an end at all; whether a session ends with a failed turn."""

    stall_timeout_s: float = 300.0
    request_limit_s: float = 3600.0
    abandon: bool = False

    @classmethod
    def of(cls, work: Workload) -> Manners:
        """Those of an experiment."""
        return cls(work.stall_timeout_s, work.request_limit_s, work.parent_failure == "abandon")


class VirtualClient(ABC):
    """One arm, one repeat, on a clock of its own; `run()` once."""

    def __init__(self, plan: Plan, clock: VirtualClock, manners: Manners) -> None:
        self.plan, self.manners = plan, manners
        self._clock = clock
        self._schedule = Schedule(plan, (), 1.0)
        self.t0_ns = 0
        self._until_ns: int | None = None  # end of the measured window
        self._in_window: set[int] = set()  # due before that, and not over
        self._waiting: dict[int, Times] = {}  # due later
        self._flying: dict[int, int] = {}  # index -> when it was sent
        self._left = 0  # of the phase that is on
        self._recorded = bytearray(len(plan.requests))
        self._closed = False

    def run(self) -> None:
        """Warm-ups, then the rest."""
        with _rarely_collected():
            before, rest = phases(self.plan, range(len(self.plan.requests)))
            self._phase(before)
            self._phase(rest, measured=True)

    def _phase(self, indices: Sequence[int], measured: bool = False) -> None:
        """Send these and go on until the last of them has ended; later events are the next phase's."""
        self._schedule = Schedule(self.plan, indices, 1.0)
        self._schedule.t0_ns = self.t0_ns = self._now_ns() + LEAD_NS
        self._left = len(indices)
        if measured:
            self._begin_measured()
            if self.plan.window is not None:
                self._until_ns = self.t0_ns + self.plan.window.until_ns
        for index in self._schedule.roots:
            self._wait(index, self._schedule.root_times(index))
        if self._until_ns is not None:
            self._clock.run(self._until_ns / NS)
        step = self._clock.step
        while self._left > 0 and (self._until_ns is None or self._in_window) and step():
            pass
        if self._until_ns is not None:
            self._close(indices)

    def _close(self, indices: Sequence[int]) -> None:
        """The window is over, and all that was due in it: what is in flight is left, the rest is not sent."""
        self._closed = True
        now_ns = self._now_ns()
        for index in list(self._flying):
            self._leave(index, now_ns, "cancelled", STOPPED)
            self._over(index, now_ns, good=False)
        for index in indices:
            if not self._recorded[index]:
                self._not_sent(index, "run_ended", self._waiting.get(index))

    def _now_ns(self) -> int:
        return round(self._clock.now() * NS)

    def _wait(self, index: int, times: Times) -> None:
        if self._until_ns is not None and times.due_ns < self._until_ns:
            self._in_window.add(index)
        self._waiting[index] = times
        self._clock.call_at(times.due_ns / NS, self._send, index)

    def _send(self, index: int) -> None:
        if self._closed:
            return
        times = self._waiting.pop(index)
        self._flying[index] = times.due_ns
        self._submit(index, times)
        if index in self._flying:
            wait_s = min(self.manners.stall_timeout_s, self.manners.request_limit_s)
            self._clock.call_at(times.due_ns / NS + wait_s, self._look, index)

    def _look(self, index: int) -> None:
        """As `replay.stall`: no end for too long, or no byte."""
        sent_ns = self._flying.get(index)
        if sent_ns is None:
            return
        now_ns, manners = self._now_ns(), self.manners
        limit_ns = sent_ns + round(manners.request_limit_s * NS)
        left_ns = min(self._last_byte_ns(index) + round(manners.stall_timeout_s * NS), limit_ns) - now_ns
        if left_ns > 0:
            self._clock.call_at((now_ns + left_ns) / NS, self._look, index)
            return
        over = f"no end within {manners.request_limit_s:g} s"
        self._leave(
            index, now_ns, "timeout", over if now_ns >= limit_ns else f"no byte for {manners.stall_timeout_s:g} s"
        )
        self._over(index, now_ns, good=False)

    def _over(self, index: int, end_ns: int, good: bool) -> None:
        """A request has ended; its children may be due."""
        del self._flying[index]
        self._record(index)
        if not good and self.manners.abandon:
            for child in self._schedule.drop(index):
                self._record(child)
                self._not_sent(child, "parent_failed", None)
        elif not self._closed:
            for child, times in self._schedule.release(index, end_ns):
                self._wait(child, times)

    def _record(self, index: int) -> None:
        self._recorded[index] = True
        self._left -= 1
        self._in_window.discard(index)

    @abstractmethod
    def _submit(self, index: int, times: Times) -> None:
        """Send a request now."""

    @abstractmethod
    def _last_byte_ns(self, index: int) -> int:
        """When the last byte of an answer under way came."""

    @abstractmethod
    def _leave(self, index: int, end_ns: int, ending: Ending, error: str) -> None:
        """Go away from an answer under way (`timeout`, `cancelled`)."""

    @abstractmethod
    def _not_sent(self, index: int, reason: str, times: Times | None) -> None:
        """A request will not be sent."""

    def _begin_measured(self) -> None:  # noqa: B027  (nothing to do is usual)
        """The measured phase begins: `t0_ns` is its zero."""


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """A simulation makes millions of objects and hardly a cycle: the collector looks less often."""
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
