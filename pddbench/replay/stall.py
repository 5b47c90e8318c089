"""The stall timeout: a request that gets no byte for too long is given up."""

from __future__ import annotations

import asyncio
import time

from pddbench.replay.exchange import Exchange


class StallTimer:
    """Cancels the current task when no byte came for `timeout_s`. Looks once a period, costs nothing a byte."""

    def __init__(self, exchange: Exchange, timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.expired = False
        self._exchange = exchange
        self._timeout_ns = round(timeout_s * 1e9)
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(timeout_s, self._look)

    def _look(self) -> None:
        left_ns = self._exchange.last_byte_ns + self._timeout_ns - time.monotonic_ns()
        if left_ns > 0:
            self._handle = self._loop.call_later(left_ns / 1e9, self._look)
        else:
            self.expired = True
            self.task.cancel()

    def note(self, exchange: Exchange, where: str, timeout_s: float) -> None:
        """Say in the exchange that it timed out, and take the cancellation back."""
        self.task.uncancel()
        exchange.ending = "timeout"
        exchange.error = f"no byte for {timeout_s:g} s"
        if exchange.sent_ns is None:
            exchange.error = f"no connection to {where} within {timeout_s:g} s"

    def cancel(self) -> None:
        """The exchange has ended."""
        self._handle.cancel()
