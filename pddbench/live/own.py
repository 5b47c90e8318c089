"""How one of our own client processes is, from the health frames of its spool."""

from __future__ import annotations

from collections import deque

from pddbench import limits
from pddbench.live.spread import Spread
from pddbench.replay.frames import Health

NS = 1_000_000_000


class Own:
    """Lags since the run began, in wall seconds; CPU and waiting over the last 5 s."""

    def __init__(self) -> None:
        self.loop_lag, self.send_lag = Spread(), Spread()
        self.kernel_gap = Spread()  # how much later than the kernel we stamped, where a spool tells it
        self.rss_bytes: int | None = None
        self._cpu: deque[tuple[int, float]] = deque()
        self._waited: deque[tuple[int, int]] = deque()  # when, and for how long there was no core until then

    def take(self, frame: Health) -> None:
        """Note a sample."""
        for lag_ns in frame.loop_lag_ns:
            self.loop_lag.add(lag_ns / NS)
        for gap_ns in getattr(frame, "kernel_gap_ns", ()):
            self.kernel_gap.add(gap_ns / NS)
        self.rss_bytes = frame.rss_bytes
        busy = frame.busy_share
        self._cpu.append((frame.t_ns, frame.cpu_share if busy is None else busy))
        if frame.run_delay_ns is not None:
            self._waited.append((frame.t_ns, frame.run_delay_ns))
        for kept in (self._cpu, self._waited):
            while kept and kept[0][0] < frame.t_ns - limits.CPU_WINDOW_S * NS:
                kept.popleft()

    def cpu_share(self) -> float | None:
        """CPU of a core, as the rule `client_cpu` counts it; null: no sample yet."""
        return sum(share for _, share in self._cpu) / len(self._cpu) if self._cpu else None

    def waited_share(self) -> float | None:
        """Share of the time in which the process could have run and had no core; null: not known yet."""
        if len(self._waited) < 2:
            return None
        span_ns = self._waited[-1][0] - self._waited[0][0]
        return sum(waited_ns for _, waited_ns in list(self._waited)[1:]) / span_ns if span_ns > 0 else None

    def loop_lag_p99_s(self) -> float | None:
        """P99 of the event loop's lag."""
        return _p99(self.loop_lag)

    def send_lag_p99_s(self) -> float | None:
        """P99 of handed over - due - throttle wait."""
        return _p99(self.send_lag)

    def kernel_gap_p99_s(self) -> float | None:
        """P99 of how much later than the kernel we stamped."""
        return _p99(self.kernel_gap)

    def rss(self) -> float | None:
        """Resident memory, bytes."""
        return self.rss_bytes


def _p99(lags: Spread) -> float | None:
    """P99, but never the largest sample, as in the verdict: below 100 samples the second largest stands for it."""
    return lags.quantile(min(0.99, (lags.n - 1) / lags.n) if lags.n > 1 else 0.99)
