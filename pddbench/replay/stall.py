"""When a request is given up: no byte for too long, or no end for far too long (a server can ping for ever)."""

from __future__ import annotations

import asyncio
import time

from pddbench.replay.exchange import Exchange


class StallTimer:
    """Cancels the current task when no byte came for `timeout_s`, or `limit_s` have passed since the start.

    Looks once a period, costs nothing a byte.
    """

    def __init__(self, exchange: Exchange, timeout_s: float, limit_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.expired = False
        self._exchange = exchange
        self._timeout_ns = round(timeout_s * 1e9)
        self._limit_ns = max(time.monotonic_ns(), exchange.due_ns) + round(limit_s * 1e9)
        self._limit_s, self._over = limit_s, False
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(min(timeout_s, limit_s), self._look)

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        self._over = now_ns >= self._limit_ns
        if self._exchange.source is not None:
            self._exchange.last_byte_ns = max(self._exchange.last_byte_ns, self._exchange.source.last_byte_ns())
        left_ns = min(self._exchange.last_byte_ns + self._timeout_ns, self._limit_ns) - now_ns
        if left_ns > 0:
            self._handle = self._loop.call_later(left_ns / 1e9, self._look)
        else:
            self.expired = True
            self.task.cancel()

    def note(self, exchange: Exchange, where: str, timeout_s: float) -> None:
        """Say in the exchange that it timed out, and take the cancellation back."""
        self.task.uncancel()
        exchange.ending = "timeout"
        exchange.error = f"no end within {self._limit_s:g} s" if self._over else f"no byte for {timeout_s:g} s"
        if exchange.sent_ns is None:
            exchange.error = f"no connection to {where} within {timeout_s:g} s"

    def cancel(self) -> None:
        """The exchange has ended."""
        self._handle.cancel()
