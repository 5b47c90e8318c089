"""Limits on starting requests: a rate and a number in flight. Brakes, never the pacer: what they cost is recorded."""

from __future__ import annotations

import asyncio
import time

_BURST_S = 0.05


class Brake:
    """First come, first served. `wait` returns how long a request was held back, in ns; `done` frees its place."""

    def __init__(self, max_start_rate: float | None, max_concurrency: int | None) -> None:
        self._places = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self._throttler = None
        if max_start_rate:
            from asyncio_throttle import Throttler  # type: ignore[attr-defined]

            # it lets a whole period's quota go at once and polls: keep its period short and its callers in a queue
            quota = max(1, int(max_start_rate * _BURST_S))
            period_s = quota / max_start_rate
            self._throttler = Throttler(quota, period_s, retry_interval=min(0.01, period_s / 4))
            self._queue = asyncio.Lock()

    @property
    def free(self) -> bool:
        """Whether there is no limit at all."""
        return self._places is None and self._throttler is None

    async def wait(self) -> int:
        """Wait for a place and for the rate."""
        start_ns = time.monotonic_ns()
        if self._places is not None:
            await self._places.acquire()
        if self._throttler is not None:
            try:
                async with self._queue:
                    await self._throttler.acquire()  # type: ignore[no-untyped-call]
            except asyncio.CancelledError:
                self.done()
                raise
        return time.monotonic_ns() - start_ns

    def done(self) -> None:
        """A request that had waited has ended."""
        if self._places is not None:
            self._places.release()
