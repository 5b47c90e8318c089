"""Model time on a live event loop: absolute deadlines from a timerfd, so no rounding to a millisecond and no drift."""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
import struct
import time
from collections.abc import Callable

_CLOCK_MONOTONIC, _TFD_TIMER_ABSTIME = 1, 1
_SUB_BUCKETS = 16  # per power of two: quantiles are within 6%


class Lateness:
    """How late calls ran, wall nanoseconds: a histogram of constant size."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.max_ns = 0

    def add(self, late_ns: int) -> None:
        """One call."""
        late_ns = max(late_ns, 1)
        shift = max(0, late_ns.bit_length() - 5)
        key = (shift * 2 * _SUB_BUCKETS) + (late_ns >> shift)
        self._counts[key] = self._counts.get(key, 0) + 1
        self.count += 1
        self.max_ns = max(self.max_ns, late_ns)

    def quantile_ns(self, q: float) -> int:
        """The q-quantile (upper edge of its bucket); 0 without calls."""
        seen, need = 0, q * self.count
        for key in sorted(self._counts):
            seen += self._counts[key]
            if seen >= need and seen:
                shift, mantissa = divmod(key, 2 * _SUB_BUCKETS)
                return min(self.max_ns, (mantissa + 1 << shift) - 1)
        return 0


class _TimerFd:
    """An absolute one-shot timer of the kernel, read through the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_fire: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._on_fire = on_fire
        loop.add_reader(self._fd, self._read)

    def arm(self, due_ns: int) -> None:
        due_ns = max(due_ns, 1)
        value = struct.pack("qqqq", 0, 0, due_ns // 10**9, due_ns % 10**9)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, value, None)

    def _read(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass
        self._on_fire()


class _LoopTimer:
    """The event loop's own timer, where there is no timerfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_fire: Callable[[], None]) -> None:
        self._loop, self._on_fire = loop, on_fire
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, due_ns: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0, due_ns - time.monotonic_ns()) / 1e9, self._on_fire)


def _timer(loop: asyncio.AbstractEventLoop, on_fire: Callable[[], None]) -> _TimerFd | _LoopTimer:
    try:
        return _TimerFd(loop, on_fire)
    except (OSError, AttributeError):
        return _LoopTimer(loop, on_fire)


class LiveClock:
    """Model seconds = (monotonic − epoch) x speed. All processes of a deployment share the epoch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, speed: float, epoch_ns: int) -> None:
        self._speed, self._epoch_ns = speed, epoch_ns
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = itertools.count()
        self._armed_s: float | None = None
        self._logical_s: float | None = None
        self._timer = _timer(loop, self._fire)
        self.lateness = Lateness()

    def now(self) -> float:
        """Model time: of the call that is running, else of the wall clock."""
        if self._logical_s is not None:
            return self._logical_s
        return (time.monotonic_ns() - self._epoch_ns) * self._speed / 1e9

    def call_at(self, t: float, fn: Callable[..., object], *args: object) -> None:
        """See `wan.clock.Clock`."""
        heapq.heappush(self._heap, (t, next(self._order), fn, args))
        if self._logical_s is None and (self._armed_s is None or t < self._armed_s):
            self._arm(t)

    def enter(self, fn: Callable[..., object], *args: object) -> None:
        """Handle something that came from outside: first what was due before it, so that time never runs backwards."""
        self._run_due()
        self._logical_s = (time.monotonic_ns() - self._epoch_ns) * self._speed / 1e9
        try:
            fn(*args)
        finally:
            self._logical_s = None
            self._rearm()

    def _wall_ns(self, t: float) -> int:
        return self._epoch_ns + int(t / self._speed * 1e9)

    def _arm(self, t: float) -> None:
        self._armed_s = t
        self._timer.arm(self._wall_ns(t))

    def _rearm(self) -> None:
        if self._heap and (self._armed_s is None or self._heap[0][0] < self._armed_s):
            self._arm(self._heap[0][0])

    def _fire(self) -> None:
        self._armed_s = None
        self._run_due()
        self._rearm()

    def _run_due(self) -> None:
        heap = self._heap
        try:
            while heap:
                late_ns = time.monotonic_ns() - self._wall_ns(heap[0][0])
                if late_ns < 0:
                    break
                self._logical_s, _, fn, args = heapq.heappop(heap)
                self.lateness.add(late_ns)
                fn(*args)
        finally:
            self._logical_s = None
