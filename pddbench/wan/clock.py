"""Model time: what the emulator's pure code needs of a clock, and one without any waiting.

The same engine code runs live (`deploy.emulator.liveclock`) and in virtual time; it only ever asks for the time and
for a call at a time. Seconds are model seconds.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Time and timers. Inside a timer's callback `now()` is the time it was due, however late it runs."""

    def now(self) -> float:
        """Model seconds since the deployment's epoch."""
        ...

    def call_at(self, t: float, fn: Callable[..., object], *args: object) -> None:
        """Call `fn(*args)` at model time `t`; calls due at the same time keep their order."""
        ...


class VirtualClock:
    """A clock that jumps from one call to the next: bit-for-bit repeatable."""

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Time of the call that is running, else of the last one."""
        return self._now

    def call_at(self, t: float, fn: Callable[..., object], *args: object) -> None:
        """See `Clock`; a time that has passed means now."""
        heapq.heappush(self._heap, (max(t, self._now), next(self._order), fn, args))

    def run(self, until_s: float = math.inf) -> None:
        """Make all calls due up to `until_s`, in order, and stop there (or at the last call when it is infinite)."""
        while self._heap and self._heap[0][0] <= until_s:
            self.step()
        if until_s < math.inf:
            self._now = max(self._now, until_s)

    def step(self) -> bool:
        """Make the next call; False when there is none."""
        if not self._heap:
            return False
        self._now, _, fn, args = heapq.heappop(self._heap)
        fn(*args)
        return True
