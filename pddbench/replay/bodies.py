"""Request bodies made ahead of their time in a thread, so that encoding a long prompt never delays a send."""

from __future__ import annotations

import hashlib
import heapq
import threading
import time
from collections import deque
from collections.abc import Callable

AHEAD_NS = 3_000_000_000
STEP_NS = 100_000_000  # and so much more at once: the thread is not woken for every request
MAX_BYTES = 256 << 20
MOST_REST_NS = 2_000_000

Made = tuple[bytes, str]
"""A body and its SHA-256."""


class BodyStore:
    """Encodes bodies, soonest due first. A thread of its own, because a busy event loop would starve a task of it.

    Requests with a known due time are encoded when it is near; those whose parent was just sent as soon as there is
    nothing more urgent. Bounded in bytes. `late` counts bodies that were not ready when they were due.
    """

    def __init__(self, bodies: Callable[[int], bytes]) -> None:
        self._bodies = bodies
        self._making = threading.Lock()  # `bodies` need not bear two callers at once
        self._state = threading.Condition()
        self._known: list[tuple[int, int]] = []
        self._open: deque[int] = deque()
        self._wanted: set[int] = set()
        self._made: dict[int, Made | Exception] = {}
        self._made_bytes = 0
        self._closed = False
        self._urgent = True  # what was taken last is due soon, or somebody waits for it
        self.late = 0
        self._thread = threading.Thread(target=self._run, name="bodies", daemon=True)
        self._thread.start()

    def expect(self, index: int, due_ns: int | None = None) -> None:
        """Body `index` will be needed, at `due_ns` if that is known."""
        with self._state:
            self._wanted.add(index)
            if due_ns is None:
                self._open.append(index)
            else:
                heapq.heappush(self._known, (due_ns, index))
            if due_ns is None or self._known[0][1] == index:  # else the thread waits for an earlier one anyway
                self._state.notify()

    def ready(self, indices: list[int]) -> bool:
        """Whether these are made, or no more can be for now."""
        with self._state:
            return self._made_bytes >= MAX_BYTES or all(index in self._made for index in indices)

    def take(self, index: int) -> tuple[bytes, str, bool]:
        """The body, its SHA-256, and whether it had to be waited for. Raises what encoding it raised."""
        made = self._pop(index)
        late = made is None
        if made is None:
            self.late += 1
            with self._making:  # the thread may be at it right now
                made = self._pop(index) or self._make(index)
        if isinstance(made, Exception):
            raise made
        return *made, late

    def forget(self, index: int) -> None:
        """Body `index` will not be needed after all."""
        self._pop(index)

    def close(self) -> None:
        """End the thread."""
        with self._state:
            self._closed = True
            self._state.notify()
        self._thread.join()

    def _pop(self, index: int) -> Made | Exception | None:
        with self._state:
            self._wanted.discard(index)
            made = self._made.pop(index, None)
            if isinstance(made, tuple):
                was_full = self._made_bytes >= MAX_BYTES
                self._made_bytes -= len(made[0])
                if was_full:  # waking the thread costs a switch to it: not for every request
                    self._state.notify()
            return made

    def _run(self) -> None:
        """The thread: make what is wanted next until closed."""
        while (index := self._wait()) is not None:
            began_ns = time.monotonic_ns()
            with self._making:
                if index not in self._wanted:
                    continue  # taken meanwhile
                made: Made | Exception
                try:
                    made = self._make(index)
                except Exception as error:  # noqa: BLE001  # raised again by `take`
                    made = error
                self._keep(index, made)
            if not self._urgent:  # as long again for others: who holds the interpreter holds everybody else up
                time.sleep(min(time.monotonic_ns() - began_ns, MOST_REST_NS) / 1e9)

    def _make(self, index: int) -> Made:
        body = self._bodies(index)
        return body, hashlib.sha256(body).hexdigest()

    def _keep(self, index: int, made: Made | Exception) -> None:
        with self._state:
            if index in self._wanted:
                self._made[index] = made
                self._made_bytes += len(made[0]) if isinstance(made, tuple) else 0

    def _wait(self) -> int | None:
        """The body to make next, as soon as there is one; None when closed."""
        with self._state:
            while not self._closed:
                index, wait_s = self._next()
                if index is not None:
                    return index
                self._state.wait(wait_s)
            return None

    def _next(self) -> tuple[int | None, float | None]:
        """The body to make now, or how long there is nothing to do (None: until something changes)."""
        while self._known and self._gone(self._known[0][1]):
            heapq.heappop(self._known)
        while self._open and self._gone(self._open[0]):
            self._open.popleft()
        if self._made_bytes >= MAX_BYTES:
            return None, None
        wait_ns = None
        if self._known:
            wait_ns = self._known[0][0] - AHEAD_NS - time.monotonic_ns()
            if wait_ns <= STEP_NS:
                self._urgent = wait_ns < -AHEAD_NS // 2
                return heapq.heappop(self._known)[1], None
        if self._open:
            self._urgent = False
            return self._open.popleft(), None
        return None, None if wait_ns is None else wait_ns / 1e9

    def _gone(self, index: int) -> bool:
        return index in self._made or index not in self._wanted
