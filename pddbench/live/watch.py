"""What is known of one run so far, from the frames of its spool. Pure but for the clock that the caller gives.

A request's first token is looked for with the very parser of the analysis, and once it is found the frames of that
request are skipped undecoded: the cost is per request, not per token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pddbench import limits
from pddbench.live.own import NS, Own
from pddbench.live.spread import Spread
from pddbench.replay import frames
from pddbench.replay.chunks import decode, token_text
from pddbench.replay.frames import NO_INDEX, kind_of
from pddbench.replay.kernel import KernelClock, on_our_clock
from pddbench.replay.sse import SseError, SseParser
from pddbench.replay.stream import arrival_times, kernel_ns
from pddbench.text import printable

RATE_WINDOW_NS = 10 * NS
_READS = kind_of(frames.Reads)


class Flying:
    """A request that has been handed over and has not ended."""

    __slots__ = ("answered", "due_ns", "handed", "parser", "status")

    def __init__(self, handed: frames.Handed) -> None:
        self.due_ns = handed.due_ns
        self.handed: frames.Handed | None = handed  # None: how late it was sent is counted
        self.status: int | None = None
        self.parser: SseParser | None = SseParser()  # None: no more to be read of it
        self.answered = False  # whether a first token came


class Watch:
    """One arm and repeat, from the spools of one or several client processes.

    Counts are of the measured requests only: those handed over before their spool names the run's zero are warm-ups.
    """

    def __init__(self, arm: str, repeat: int, planned: int, speed: float = 1.0) -> None:
        self.arm, self.repeat, self.planned, self.speed = arm, repeat, planned, speed
        self.sent = self.done = self.failed = self.not_sent = self.warmups = 0
        self.t0_ns: int | None = None
        self.status: str | None = None
        self.errors: deque[str] = deque(maxlen=20)  # not yet shown
        self.flying: dict[tuple[int, int], Flying] = {}  # by spool and index
        self._begun: set[int] = set()  # spools that have named their zero
        self._closed: set[int] = set()
        self.ttft = Spread()
        self.own: dict[int, Own] = {}  # by spool: each client process has its own
        self.silent_failures = 0  # failed before a first token
        self._ends: deque[int] = deque()
        self._clock = KernelClock([])
        self._unstamped = 0  # first tokens without a stamp of the kernel's
        self._exact: dict[int, bool] = {}  # by spool: starts are paced by a timerfd

    def wants(self, kind: int, index: int, spool: int = 0) -> bool:
        """Whether a frame says anything that is not known: reads of a request only until its first token."""
        if kind != _READS or index == NO_INDEX:
            return True
        one = self.flying.get((spool, index))
        return one is not None and one.parser is not None

    def take(self, frame: Any, spool: int = 0) -> None:
        """Note one frame of the spool of that number."""
        match frame:
            case frames.Reads():
                self._reads(frame, self.flying.get((spool, frame.index)))
            case frames.Handed():
                self._handed(frame, spool)
            case frames.Answered():
                if (one := self.flying.get((spool, frame.index))) is not None:
                    self._sent(frame, one, spool)
                    one.status = frame.status
                    if frame.status is not None and frame.status >= 300:
                        one.parser = None  # an error's body holds no token
            case frames.Ended():
                self._ended(frame, self.flying.pop((spool, frame.index), None))
            case frames.NotSent():
                self.not_sent += 1
            case frames.Health():
                self.own.setdefault(spool, Own()).take(frame)
            case frames.ClockOffset():
                self._clock = KernelClock([(frame.t_ns, frame.offset_ns)])
            case frames.Zero():
                self._begun.add(spool)
                self._exact[spool] = frame.exact_timer is True
                self.t0_ns = frame.t0_ns
            case frames.Closed():
                self._closed.add(spool)
                if self._closed >= self._begun:
                    self.status = frame.status

    def _handed(self, frame: frames.Handed, spool: int) -> None:
        if spool not in self._begun:
            self.warmups += 1
            return
        self.sent += 1
        self.flying[spool, frame.index] = Flying(frame)

    def _sent(self, frame: frames.Answered, one: Flying, spool: int) -> None:
        """How late it was, once, as the rows will have it."""
        if one.handed is None or frame.sent_ns is None:
            return
        handed, one.handed = one.handed, None
        wait_ns = handed.throttle_wait_ns + (frames.connect_wait_ns(handed, frame) or 0)
        self.own.setdefault(spool, Own()).send_lag.add((frame.sent_ns - handed.due_ns - wait_ns) / NS)

    def _reads(self, frame: frames.Reads, one: Flying | None) -> None:
        if one is None or one.parser is None:
            return
        reads = on_our_clock(frame.reads, self._clock)
        try:
            for number, read in enumerate(reads):
                for event in one.parser.feed(read[1], number):
                    if _bears_tokens(event.data):
                        self._unstamped += kernel_ns(reads[number]) is None
                        self.ttft.add((arrival_times(reads)[number] - one.due_ns) * self.speed / NS)
                        one.parser, one.answered = None, True
                        return
        except (SseError, ValueError):
            one.parser = None  # what is wrong with it is said after the run

    def _ended(self, frame: frames.Ended, one: Flying | None) -> None:
        if one is None:
            return
        self.done += 1
        self._ends.append(frame.end_ns)
        if frame.ending == "eof" and one.status is not None and one.status < 300:
            return
        self.failed += 1
        self.silent_failures += not one.answered
        said = f"HTTP {one.status}" if one.status is not None and one.status >= 300 else frame.ending
        self.errors.append(said + (f": {printable(frame.error, 120)}" if frame.error else ""))

    # --- answers

    def rate_per_s(self, now_ns: int) -> float | None:
        """Requests that ended a wall second, over the last 10 s (from the run's zero, if that is later)."""
        while self._ends and self._ends[0] < now_ns - RATE_WINDOW_NS:
            self._ends.popleft()
        if self.t0_ns is None or now_ns <= self.t0_ns:
            return None
        return len(self._ends) / (min(RATE_WINDOW_NS, now_ns - self.t0_ns) / NS)

    def waiting_s(self, now_ns: int) -> float:
        """How long the longest wait for a first token is now, experiment seconds: what no quantile holds yet."""
        waits = [now_ns - one.due_ns for one in self.flying.values() if one.parser is not None]
        return max(waits, default=0) * self.speed / NS

    def worst(self, figure: Callable[[Own], float | None]) -> float | None:
        """A figure of our own processes: that of the worst."""
        return max((value for one in self.own.values() if (value := figure(one)) is not None), default=None)

    def _in_no_figure(self, send_lag_s: float | None, limit_s: float) -> bool:
        """Whether a late loop spoils nothing so far: the kernel stamped every arrival, a timerfd paces, starts are in
        time. What rule `loop_lag` asks besides (merged reads, slow connections) is known only after the run."""
        by_kernel = self.ttft.n > 0 and not self._unstamped
        paced = bool(self._exact) and all(self._exact.values())
        return by_kernel and paced and (send_lag_s is None or send_lag_s <= limit_s)

    def health(self) -> tuple[str, str]:
        """(`good`, `warn` or `bad`, why in words): would this run be believed if it ended now?"""
        median_s = self.ttft.quantile(0.5)
        limit_s = limits.lag_limit_s(None if median_s is None else median_s / self.speed)
        lags = {"loop lag": self.worst(Own.loop_lag_p99_s), "send lag": self.worst(Own.send_lag_p99_s)}
        late = [f"{name} P99 {1e3 * lag:.1f} ms" for name, lag in lags.items() if lag is not None and lag > limit_s]
        said = f"{', '.join(late)}, above {1e3 * limit_s:.1f} ms"
        if late and not self._in_no_figure(lags["send lag"], limit_s):
            return "bad", said
        cpu = self.worst(Own.cpu_share)
        if cpu is not None and cpu > limits.CPU_LIMIT:
            return "bad", f"our process takes {100 * cpu:.0f}% of a core"
        if late:
            return "warn", f"{said}; arrivals have the kernel's stamps, so that it is in no TTFT"
        close = [name for name, lag in lags.items() if lag is not None and lag > limit_s / 2]
        if close:
            return "warn", f"{' and '.join(close)} above half of the limit"
        return "good", "our own clock is on time" if lags["loop lag"] is not None else "no sample yet"


def _bears_tokens(data: bytes) -> bool:
    data = data.strip()
    if not data or data == b"[DONE]":
        return False
    return any(token_text(choice) for choice in decode(data).choices or ())
