"""Prefill instances: first come, first served; time by fresh tokens and the prefix they attend to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pddbench.deploy.emulator.spec import Chip
from pddbench.wan.clock import Clock


def prefill_s(chip: Chip, fresh: int, prefix: int) -> float:
    """Seconds to prefill `fresh` tokens on a cached prefix."""
    return chip.prefill_a_s + chip.prefill_b_s * fresh + chip.prefill_c_s * fresh * (prefix + fresh / 2)


class Prefill:
    """A queue before `count` instances of a chip."""

    def __init__(self, clock: Clock, chip: Chip, count: int) -> None:
        self._clock, self._chip, self._idle = clock, chip, count
        self._queue: deque[tuple[int, Callable[[], tuple[int, int]], Callable[[], None]]] = deque()

    def submit(self, rid: int, measure: Callable[[], tuple[int, int]], done: Callable[[], None]) -> None:
        """Queue a prompt: `measure` gives (fresh, prefix) tokens when it starts, `done` is called when it ends."""
        self._queue.append((rid, measure, done))
        self._start()

    def drop(self, rid: int) -> None:
        """Take a prompt out of the queue; one that has started runs to its end."""
        self._queue = deque(item for item in self._queue if item[0] != rid)

    def _start(self) -> None:
        while self._idle and self._queue:
            _, measure, done = self._queue.popleft()
            fresh, prefix = measure()
            self._idle -= 1
            self._clock.call_at(self._clock.now() + prefill_s(self._chip, fresh, prefix), self._end, done)

    def _end(self, done: Callable[[], None]) -> None:
        self._idle += 1
        done()
        self._start()
