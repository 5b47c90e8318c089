"""A link that is measured before, beside and after what runs over it, and what was found to be wrong with it.

Before and after: `wan.verify`, with the line filled. Beside: every few seconds some small datagrams (below 1% of the
link), and the kernel or the emulator read back. Beside load a round trip may be long, because the line's queue is full;
it may never be shorter than the delay that was asked, and the line may never carry more than its rate. A link whose
schedule changes it is judged by what it should be at that time; after the load it is as asked again.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pddbench.errors import PddbenchError
from pddbench.wan.meter import Meter
from pddbench.wan.openlink import Counted, WanLink
from pddbench.wan.schedule import Scheduled
from pddbench.wan.steps import Step
from pddbench.wan.verify import RTT_SLACK, RTT_SLACK_MS, Verification

EVERY_S = 5.0
TRIES = 3  # a busy machine delays packets for a moment; a wrong link is wrong each time
_SILENT = 3  # probes in a row without any answer
_PACKETS = 5
_STALLED_S = 30.0  # a probe whose datagrams are all lost takes ten
_RATE_SLACK, _RATE_SLACK_BYTES = 0.05, 100_000  # headers that a queue does not count; what passes during two counts
_QUIET_SHARE, _QUIET_S, _QUIET_LIMIT_S = 0.02, 0.25, 30.0


class Guard:
    """Watches an open link. `problems` is empty as long as it is what was asked."""

    def __init__(self, link: WanLink, every_s: float = EVERY_S, tries: int = TRIES) -> None:
        self.link, self._every_s, self._tries = link, every_s, tries
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="wan-guard", daemon=True)
        self._start = self._heard_s = time.monotonic()
        self._rtt_ms: list[float] = []
        self._lost = self._probes = self._silent = 0
        self._meter: Meter | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._before: Verification | None = None
        self._after: Verification | None = None
        self._schedule: Scheduled | None = None
        self._carried: tuple[float, Counted] | None = None
        self.problems: list[str] = []
        self.dead = False  # the link is gone: nothing over it can go on

    def begin(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Measure the idle link, then begin to watch. Raises `WorldError` when it cannot be measured at all.

        A link that is not as asked is measured again, unless `stopped` says that nobody waits for it any more.
        """
        self._before = self._verified("before the load", load=True, stopped=stopped)
        self._start = time.monotonic()
        self._meter = Meter(self.link.side_a, self.link.side_b)
        self._watcher = self._meter.watch(self._every_s, _PACKETS)
        self._heard_s = time.monotonic()
        self._thread.start()

    def begin_schedule(self, steps: Sequence[Step], start_s: float, speed: float = 1.0) -> None:
        """Change the link from now on: `start_s` is the zero of the steps on CLOCK_MONOTONIC, `speed` as in a run."""
        if steps:
            self._schedule = Scheduled(self.link, steps, start_s, speed)
            self._schedule.start()

    def end(self, load: bool = True) -> None:
        """Stop watching, and measure again; `load=False` without filling the line. Once; harmless after that."""
        if self._stop.is_set():
            return
        self._end_schedule()
        self._end_watching()
        if self._before is None or self.dead:
            return
        try:
            if self._schedule is not None:
                self._schedule.restore()
            if load:
                self._wait_until_quiet()
            self._after = self._verified("after the load", load=load)
        except PddbenchError as error:
            self._problem(f"after the load: {error}")

    def close(self) -> None:
        """Stop watching, without another measurement, and take the link down; harmless when done twice."""
        if self._schedule is not None:
            self._schedule.stop()
        self._end_watching()
        self.link.close()

    def _end_schedule(self) -> None:
        """No further changes; those that failed, or came late, made another link than the one described."""
        if self._schedule is None:
            return
        self._schedule.stop()
        if self._schedule.error is not None:
            self._problem(f"the link could not be changed: {self._schedule.error}")
        for change in self._schedule.applied:
            if words := change.late_words(self._schedule.speed):
                self._problem(words)

    def _verified(self, when: str, *, load: bool, stopped: Callable[[], bool] = lambda: False) -> Verification:
        for _ in range(self._tries):
            found = self.link.verify(load=load)
            if found.ok:
                return found
            if stopped():
                break
        self.problems += [f"{when}: {finding.words()}" for finding in found.findings if not finding.ok]
        return found

    def _wait_until_quiet(self) -> None:
        """KV that nobody waits for may still be on its way: it would share the line with the measurement."""
        until = time.monotonic() + _QUIET_LIMIT_S
        shapes = dict(zip(("a_to_b", "b_to_a"), self.link.shapes, strict=True))
        before = self.link.counters()
        while time.monotonic() < until:
            time.sleep(_QUIET_S)
            now = self.link.counters()
            if all((now[way]["bytes"] - before[way]["bytes"]) * 8 <= _QUIET_SHARE * _QUIET_S * 1e6
                   * (shape.rate_mbit or 1.0) for way, shape in shapes.items()):  # fmt: skip
                return
            before = now

    def _watch(self) -> None:
        """The thread: one probe after the other, and what was set read back."""
        assert self._watcher is not None
        try:
            while not self._stop.is_set():
                self._look(self._watcher)
        except (PddbenchError, OSError) as error:
            self._problem(f"beside the load the link could not be measured: {error}")
            self.dead = self.dead or not self._alive()

    def _end_watching(self) -> None:
        """Let the thread and the processes that measure go."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._watcher is not None:
            for stream in (self._watcher.stdin, self._watcher.stdout):
                assert stream is not None
                stream.close()
            self._watcher.kill()
            self._watcher.wait()
        if self._meter is not None:
            self._meter.close()
        self._watcher = self._meter = None

    def _look(self, watcher: subprocess.Popen[bytes]) -> None:
        """The next probe, if there is one by then; the link is read back after each."""
        stdout = watcher.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], 0.2)
        if not readable:
            if time.monotonic() > self._heard_s + self._every_s + _STALLED_S:
                self._problem("beside the load the link was not measured: the probe does not answer")
            return
        self._heard_s = time.monotonic()
        line = stdout.readline()
        if not line:
            raise OSError("the probe ended")
        self._judge(json.loads(line))
        try:
            self.link.check_unchanged()
            self._judge_rate()
        except PddbenchError as error:
            self._problem(str(error))
            self.dead = self.dead or not self._alive()

    def _alive(self) -> bool:
        try:
            self.link.counters()
        except PddbenchError:
            return False
        return True

    def _judge(self, probe: dict[str, Any]) -> None:
        """A probe beside the load: never faster than asked, and some answer."""
        times: list[float] = probe["rtt_ms"]
        self._probes += 1
        self._lost += probe["lost"]
        self._rtt_ms += times
        shapes = self.link.shapes
        wanted = sum(shape.delay_ms for shape in shapes)
        jitter = sum(shape.jitter_ms for shape in shapes)
        floor = wanted - max(RTT_SLACK_MS, RTT_SLACK * wanted) - 4 * jitter
        if times and min(times) < floor:
            self._problem(f"a round trip took {min(times):.2f} ms, less than the {wanted:g} ms that were asked")
        if any(self.link.was_cut(*sent_s) for sent_s in probe["sent_s"]):
            self._problem("a probe came back that was sent while the link was to be cut")
        if self.link.cut_since(probe["began_s"]):
            return  # silence is what was asked
        self._silent = 0 if times else self._silent + 1
        if self._silent == _SILENT:
            self._problem(f"no probe came back for {_SILENT * self._every_s:g} s")

    def _judge_rate(self) -> None:
        """What each direction carried since the last look: not more than its rate, whatever the load.

        What was in the queue then may have got its place in the line under an earlier rate. Counting takes a while on
        a busy machine: the time is taken from before the one to after the other. A change in between: nothing is known.
        """
        begin_s = time.monotonic()
        counted = self.link.counted()
        now_s = time.monotonic()
        before, self._carried = self._carried, (begin_s, counted)
        if before is None or before[1].change != counted.change:
            return
        for way, shape in zip(("a_to_b", "b_to_a"), counted.shapes, strict=True):
            then, now = before[1].counters[way], counted.counters[way]
            waiting = now["queued_bytes"] - then["queued_bytes"]
            n_bytes = now["bytes"] - then["bytes"] - waiting
            most = (shape.rate_mbit or math.inf) * 1e6 / 8 * (now_s - before[0])
            slack = _RATE_SLACK * (most + abs(waiting)) + _RATE_SLACK_BYTES
            if n_bytes > most + slack + then["queued_bytes"]:
                mbit = n_bytes * 8e-6 / (now_s - before[0])
                self._problem(f"{way} carried {mbit:.4g} Mbit/s, more than the {shape.rate_mbit:g} that were asked")

    def _problem(self, text: str) -> None:
        """Keep what is wrong, once, with its time."""
        with self._lock:
            if not any(text in known for known in self.problems):
                self.problems.append(f"{time.monotonic() - self._start:.0f} s after the start: {text}")

    @property
    def changes(self) -> list[dict[str, Any]]:
        """How the schedule has changed the link so far (`steps.Applied`)."""
        return [msgspec.to_builtins(change) for change in self._schedule.applied] if self._schedule else []

    def facts(self) -> dict[str, Any]:
        """For the manifest: what was asked, measured before, beside and after, and whether it was right throughout."""
        times = sorted(self._rtt_ms)
        spread = {"min": times[0], "p50": times[len(times) // 2], "max": times[-1]} if times else None
        beside = {"every_s": self._every_s, "probes": self._probes, "lost": self._lost, "rtt_ms": spread}
        facts: dict[str, Any] = {}
        with contextlib.suppress(PddbenchError):  # a dead link has nothing to say; its death is among the problems
            facts = self.link.facts | {"counters": self.link.counters()}
        facts.pop("verifications", None)
        schedule = self._schedule
        return facts | {
            "changes_not_reached": [msgspec.to_builtins(step) for step in schedule.not_reached] if schedule else [],
            "ok": not self.problems,
            "problems": list(self.problems),
            "before": self._before.facts() if self._before else None,
            "beside": beside,
            "after": self._after.facts() if self._after else None,
        }
