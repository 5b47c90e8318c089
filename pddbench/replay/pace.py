"""A pacer on absolute CLOCK_MONOTONIC deadlines: a timerfd in the event loop, without asyncio's 1 ms rounding.

All deadlines share one heap and one timer, so that ten thousand waiting sessions cost a logarithm an event. Where
the platform has no timerfd the loop's own timers are used (about 1 ms late).
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
import struct
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
NS = 1_000_000_000


class Deadline:
    """A callback at a time; `cancel` makes it nothing."""

    __slots__ = ("callback", "t_ns")

    def __init__(self, t_ns: int, callback: Callable[[], object]) -> None:
        self.t_ns = t_ns
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Never call back."""
        self.callback = None


class Pacer:
    """Calls back at absolute times of `time.monotonic_ns()`, in order of time, then of asking."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[int, int, Deadline]] = []
        self._order = itertools.count()
        self._armed_ns: int | None = None
        self._firing = False
        self._handle: asyncio.TimerHandle | None = None
        self._timer = _Timer.create()
        if self._timer is not None:
            loop.add_reader(self._timer.fd, self._fire)

    @property
    def exact(self) -> bool:
        """Whether a timerfd is in use."""
        return self._timer is not None

    def call_at(self, t_ns: int, callback: Callable[[], object]) -> Deadline:
        """Call `callback()` at `t_ns`; at once, but from the loop, when that is past."""
        deadline = Deadline(t_ns, callback)
        heapq.heappush(self._heap, (t_ns, next(self._order), deadline))
        if not self._firing and (self._armed_ns is None or t_ns < self._armed_ns):
            self._arm(t_ns)
        return deadline

    async def until(self, t_ns: int) -> None:
        """Return at `t_ns`, immediately when that is past."""
        if t_ns <= time.monotonic_ns():
            return
        future: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        deadline = self.call_at(t_ns, wake)
        try:
            await future
        finally:
            deadline.cancel()

    def close(self) -> None:
        """Forget all deadlines and release the timer."""
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fd)
            self._timer.close()
            self._timer = None

    def _arm(self, t_ns: int) -> None:
        self._armed_ns = t_ns
        if self._timer is not None:
            self._timer.set(max(t_ns, 1))
            return
        if self._handle is not None:
            self._handle.cancel()
        wait_s = max(0, t_ns - time.monotonic_ns()) / NS
        self._handle = self._loop.call_later(wait_s, self._fire)

    def _fire(self) -> None:
        """Run what is due; a callback that raises is reported by the loop and stops nothing else."""
        if self._timer is not None:
            self._timer.acknowledge()
        heap = self._heap
        self._armed_ns, self._firing = None, True  # armed once, when all that is due has been called
        try:
            while heap and heap[0][0] <= time.monotonic_ns():
                callback = heapq.heappop(heap)[2].callback
                if callback is not None:
                    callback()
        finally:
            self._firing = False
            self._rearm()

    def _rearm(self) -> None:
        """Set the timer to the first deadline that is still wanted."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        if heap:
            self._arm(heap[0][0])


class _Timer:
    """A timerfd: by the standard library from Python 3.13, by the C library before."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @staticmethod
    def create() -> _Timer | None:
        """A new timer, or None where the platform has none."""
        if not sys.platform.startswith("linux"):
            return None
        try:
            if sys.version_info >= (3, 13):
                return _Timer(os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC))
            fd = _libc().timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError):
            return None
        return _Timer(fd) if fd >= 0 else None

    def set(self, t_ns: int) -> None:
        """Expire once, at an absolute time."""
        if sys.version_info >= (3, 13):
            os.timerfd_settime_ns(self.fd, flags=os.TFD_TIMER_ABSTIME, initial=t_ns)
            return
        value = struct.pack("qqqq", 0, 0, *divmod(t_ns, NS))
        if _libc().timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, value, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def acknowledge(self) -> None:
        """Take the expiration, if there was one."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass  # armed anew for a later time after it had become readable

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self.fd)


_LIBC: list[ctypes.CDLL] = []


def _libc() -> ctypes.CDLL:
    """The C library, loaded when first needed."""
    if not _LIBC:
        _LIBC.append(ctypes.CDLL(None, use_errno=True))
    return _LIBC[0]
