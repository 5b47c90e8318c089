"""The client's own health: how late its loop runs, how busy it is, how long it waited for a core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pddbench.replay.exchange import Transport
from pddbench.replay.frames import ClockOffset, Health
from pddbench.replay.kernel import KernelClock, sample_offset
from pddbench.replay.pace import Pacer

SAMPLE_NS = 5_000_000
ROW_NS = 250_000_000


class HealthMonitor:
    """Samples loop lag every 5 ms by absolute deadlines, and gives a row and a sample of the clocks every 250 ms.

    A loop that is stuck for 35 ms misses seven deadlines; each of them is a sample, so that lag is weighed by time
    and a long stall is not one value among thousands.
    """

    def __init__(
        self,
        pacer: Pacer,
        in_flight: Callable[[], int],
        transport: Transport,
        emit: Callable[[Health | ClockOffset], None],
    ) -> None:
        self._pacer, self._in_flight, self._emit = pacer, in_flight, emit
        self._newest, self._reader_cpu_ns = transport.newest_read, transport.reader_cpu_ns
        self._one_core = len(os.sched_getaffinity(0)) == 1 if hasattr(os, "sched_getaffinity") else False
        self._lags_ns: list[int] = []
        self._gaps_ns: list[int] = []
        self._read_ns = 0
        self._next_ns = time.monotonic_ns() + SAMPLE_NS
        self._row_ns = time.monotonic_ns()
        self._cpu_ns, self._delay_ns, self._read_cpu_ns = time.process_time_ns(), run_delay_ns(), self._reader_cpu_ns()
        self._sample_clock()
        self._deadline = pacer.call_at(self._next_ns, self._sample)

    def stop(self) -> None:
        """Give the last, shorter row and stop."""
        self._deadline.cancel()
        self._row(time.monotonic_ns())

    def _sample(self) -> None:
        now_ns = time.monotonic_ns()
        while self._next_ns <= now_ns:
            self._lags_ns.append(now_ns - self._next_ns)
            self._next_ns += SAMPLE_NS
        self._sample_gap()
        if now_ns - self._row_ns >= ROW_NS:
            self._row(now_ns)
        self._deadline = self._pacer.call_at(self._next_ns, self._sample)

    def _sample_gap(self) -> None:
        """How late we were with the newest read, by the clocks' difference as last sampled."""
        newest = self._newest()
        if newest is None or newest[0] == self._read_ns:
            return
        self._read_ns, raw = newest
        stamp = self._clock.monotonic_ns(raw, self._read_ns)
        if stamp is not None:
            self._gaps_ns.append(self._read_ns - stamp)

    def _sample_clock(self) -> None:
        offset = sample_offset()
        self._clock = KernelClock([offset])
        self._emit(ClockOffset(*offset))

    def _row(self, now_ns: int) -> None:
        cpu_ns, delay_ns, read_cpu_ns = time.process_time_ns(), run_delay_ns(), self._reader_cpu_ns()
        wall_ns = max(1, now_ns - self._row_ns)
        waited = delay_ns - self._delay_ns if delay_ns is not None and self._delay_ns is not None else None
        share = (cpu_ns - self._cpu_ns) / wall_ns
        reading = (read_cpu_ns - self._read_cpu_ns) / wall_ns
        busy = share if self._one_core else max(reading, share - reading)
        self._emit(
            Health(now_ns, self._lags_ns, share, waited, rss_bytes(), self._in_flight(), self._gaps_ns, busy_share=busy)
        )
        self._sample_clock()
        self._lags_ns, self._gaps_ns = [], []
        self._row_ns, self._cpu_ns, self._delay_ns, self._read_cpu_ns = now_ns, cpu_ns, delay_ns, read_cpu_ns


def run_delay_ns() -> int | None:
    """Time the main thread was runnable but had no core, since it began (Linux schedstat; None elsewhere)."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def rss_bytes() -> int | None:
    """Resident memory of this process (Linux; None elsewhere)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
