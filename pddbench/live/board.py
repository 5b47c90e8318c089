"""All runs of an experiment as one snapshot: what terminal, lines, page and Prometheus show."""

from __future__ import annotations

import contextlib
import functools
import math
from pathlib import Path
from typing import Any

import msgspec

from pddbench import __version__
from pddbench.live.own import NS, Own
from pddbench.live.tail import Tail
from pddbench.live.watch import RATE_WINDOW_NS, Watch

QUANTILES = (0.5, 0.9, 0.99)


class Announced(msgspec.Struct):
    """The first message to the viewer: which runs will be made, in order, and the run folder.

    `requests` are the measured ones of a run, `planned_s` the wall seconds that one takes at least.
    """

    name: str
    folder: str
    runs: list[tuple[str, int]]
    requests: int
    planned_s: float
    speed: float = 1.0
    simulated: bool = False


class Board:
    """The runs in order. Reads spools when asked to; holds no clock."""

    def __init__(self, announced: Announced) -> None:
        self.announced = announced
        self.watches = [Watch(arm, repeat, announced.requests, announced.speed) for arm, repeat in announced.runs]
        self.number = 0  # of the run that is on, from 1; 0: none yet
        self.began_ns: int | None = None
        self._tails: dict[Path, Tail] = {}
        self._took_s: list[float] = []
        self._begun_ns = 0

    @property
    def current(self) -> Watch | None:
        """The run that is on."""
        return self.watches[self.number - 1] if self.number else None

    def begin(self, now_ns: int) -> None:
        """The next run begins; what the one before left unread is read."""
        self.finish(now_ns)
        self.number = min(self.number + 1, len(self.watches))
        self._begun_ns = now_ns
        self.began_ns = now_ns if self.began_ns is None else self.began_ns

    @property
    def reading(self) -> bool:
        """Whether a spool of the current run has been found."""
        return bool(self._tails)

    def _look(self, watch: Watch) -> None:
        """Open the spools of the current run that have come to be: one, or one of each client process."""
        folder, run = Path(self.announced.folder) / "spool", f"{watch.arm}.{watch.repeat}"
        for path in [*folder.glob(f"{run}.spool"), *folder.glob(f"{run}.w*.spool")]:
            if path not in self._tails:
                with contextlib.suppress(FileNotFoundError):  # the run is just being put away
                    self._tails[path] = Tail(path)

    def read(self) -> None:
        """Whatever was written since the last time."""
        watch = self.current
        if watch is None:
            return
        self._look(watch)
        for number, tail in enumerate(self._tails.values()):
            for frame in tail.frames(functools.partial(watch.wants, spool=number)):
                watch.take(frame, number)

    def count(self, sent: int, in_flight: int, done: int, failed: int, not_sent: int) -> None:
        """How far the current run says it is; only where no spool of it was found."""
        watch = self.current
        if watch is not None and not self.reading:
            watch.sent, watch.done, watch.failed, watch.not_sent = sent, done, failed, not_sent

    def finish(self, now_ns: int) -> None:
        """The current run is over."""
        self.read()
        for tail in self._tails.values():
            tail.close()
        if self._tails:
            self._took_s.append((now_ns - self._begun_ns) / NS)
            watch = self.watches[self.number - 1]
            watch.status = watch.status or "over"
        self._tails.clear()

    def left_s(self, now_ns: int) -> float | None:
        """Wall seconds until the last run ends, about: by the plan, by the rate so far, by the runs that ended."""
        watch = self.current
        if watch is None or self.announced.simulated:
            return None
        a_run_s = max([self.announced.planned_s, *self._took_s[-1:]])
        later_s = (len(self.watches) - self.number) * a_run_s
        if watch.status is not None:
            return later_s
        begun_ns = watch.t0_ns if watch.t0_ns is not None else now_ns
        by_plan_s = self.announced.planned_s - (now_ns - begun_ns) / NS
        # before the first ten seconds are over a rate says more about the beginning than about the end
        rate = watch.rate_per_s(now_ns) if now_ns - begun_ns >= RATE_WINDOW_NS else None
        by_rate_s = (watch.planned - watch.done - watch.not_sent) / rate if rate else 0.0
        return max(by_plan_s, by_rate_s, 0.0) + later_s

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """Everything as JSON-able values (an infinite time is "inf"); times in seconds, TTFT in experiment time."""
        runs = [self._run(i, watch, now_ns) for i, watch in enumerate(self.watches, 1)]
        return {
            "pddbench": __version__,
            "name": self.announced.name,
            "speed": self.announced.speed,
            "elapsed_s": None if self.began_ns is None else (now_ns - self.began_ns) / NS,
            "left_s": self.left_s(now_ns),
            "number": self.number,
            "runs": runs,
        }

    def _run(self, number: int, watch: Watch, now_ns: int) -> dict[str, Any]:
        on = number == self.number and watch.status is None
        state = "waiting" if number > self.number else "running" if on else "over"
        if on and watch.t0_ns is None:
            state = "simulating" if self.announced.simulated else "warming up" if watch.sent else "starting"
        lamp, why = watch.health()
        quantiles = {f"p{100 * q:g}": _plain(watch.ttft.quantile(q, watch.silent_failures)) for q in QUANTILES}
        return {
            "arm": watch.arm, "repeat": watch.repeat, "state": state, "planned": watch.planned, "sent": watch.sent,
            "done": watch.done, "failed": watch.failed, "not_sent": watch.not_sent, "in_flight": len(watch.flying),
            "rate_per_s": watch.rate_per_s(now_ns) if on else None, "ttft_s": quantiles,
            "ttft_n": watch.ttft.n, "waiting_s": watch.waiting_s(now_ns) if on else 0.0,
            "health": lamp, "health_why": why, "cpu_share": watch.worst(Own.cpu_share),
            "waited_share": watch.worst(Own.waited_share), "rss_bytes": watch.worst(Own.rss),
            "loop_lag_p99_s": watch.worst(Own.loop_lag_p99_s), "send_lag_p99_s": watch.worst(Own.send_lag_p99_s),
            "kernel_gap_p99_s": watch.worst(Own.kernel_gap_p99_s),
        }  # fmt: skip


def _plain(value: float | None) -> float | str | None:
    return "inf" if value == math.inf else value
