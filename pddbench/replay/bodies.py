"""Request bodies made ahead of their time, so that encoding a long prompt never delays a send."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable

AHEAD_NS = 3_000_000_000
MAX_BYTES = 256 << 20
ROUND_S = 0.1
TURN_NS = 500_000  # short bodies share a turn of the loop, so that a busy loop cannot starve them


class BodyStore:
    """Encodes bodies one at a time, soonest due first, yielding to the loop between them.

    Requests with a known due time are encoded when it is near; those whose parent was just sent as soon as there is
    nothing more urgent. Bounded in bytes. `late` counts bodies that had to be made when they were already due.
    """

    def __init__(self, bodies: Callable[[int], bytes]) -> None:
        self._bodies = bodies
        self._ready: dict[int, tuple[bytes, str]] = {}
        self._ready_bytes = 0
        self._known: list[tuple[int, int]] = []
        self._open: deque[int] = deque()
        self._taken: set[int] = set()
        self._wake = asyncio.Event()
        self.late = 0

    def expect(self, index: int, due_ns: int | None = None) -> None:
        """Body `index` will be needed, at `due_ns` if that is known."""
        if due_ns is None:
            self._open.append(index)
            self._wake.set()
        elif index not in self._ready:
            if not self._known or due_ns - time.monotonic_ns() < AHEAD_NS // 2:
                self._wake.set()  # what is due later waits for the next round
            heapq.heappush(self._known, (due_ns, index))

    def take(self, index: int) -> tuple[bytes, str, bool]:
        """The body, its SHA-256, and whether it had to be made now."""
        made = self._ready.pop(index, None)
        self._taken.add(index)
        if made is None:
            self.late += 1
            return *self._make(index), True
        self._ready_bytes -= len(made[0])
        self._wake.set()
        return *made, False

    def forget(self, index: int) -> None:
        """Body `index` will not be needed after all."""
        made = self._ready.pop(index, None)
        self._taken.add(index)
        if made is not None:
            self._ready_bytes -= len(made[0])

    async def prepare(self, indices: Iterable[int]) -> None:
        """Make the first bodies before the clock starts, as far as memory allows."""
        for index in indices:
            if self._ready_bytes >= MAX_BYTES:
                return
            self._keep(index)
            await asyncio.sleep(0)

    async def run(self) -> None:
        """Make bodies until cancelled."""
        turn_ends_ns = 0
        while True:
            index, wait_s = self._next()
            if index is not None:
                self._keep(index)
                if time.monotonic_ns() > turn_ends_ns:
                    await asyncio.sleep(0)
                    turn_ends_ns = time.monotonic_ns() + TURN_NS
                continue
            self._wake.clear()
            timer = asyncio.get_running_loop().call_later(max(wait_s, ROUND_S), self._wake.set) if wait_s else None
            await self._wake.wait()
            if timer is not None:
                timer.cancel()

    def _keep(self, index: int) -> None:
        self._ready[index] = made = self._make(index)
        self._ready_bytes += len(made[0])

    def _make(self, index: int) -> tuple[bytes, str]:
        body = self._bodies(index)
        return body, hashlib.sha256(body).hexdigest()

    def _next(self) -> tuple[int | None, float | None]:
        """The body to make now, or how long there is nothing to do (None: until something changes)."""
        self._skip_made()
        if self._ready_bytes >= MAX_BYTES:
            return None, None
        wait_ns = None
        if self._known:
            wait_ns = self._known[0][0] - AHEAD_NS - time.monotonic_ns()
            if wait_ns <= 0:
                return heapq.heappop(self._known)[1], None
        if self._open:
            return self._open.popleft(), None
        return None, wait_ns / 1e9 if wait_ns is not None else None

    def _skip_made(self) -> None:
        """Drop from both queues what was made or taken meanwhile."""
        while self._known and self._gone(self._known[0][1]):
            heapq.heappop(self._known)
        while self._open and self._gone(self._open[0]):
            self._open.popleft()

    def _gone(self, index: int) -> bool:
        return index in self._ready or index in self._taken
