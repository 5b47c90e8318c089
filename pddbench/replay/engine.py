"""The replay engine: sends every planned request when it is due, keeps what comes back, loses none of them.

Sessions are not tasks: a request becomes one when it is due, so that ten thousand sessions in thought cost nothing.
Nothing is parsed while the run is on; raw reads and stamps go to the spool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Literal

from pddbench.replay import frames
from pddbench.replay.bodies import AHEAD_NS, STEP_NS, BodyStore
from pddbench.replay.brake import Brake
from pddbench.replay.counts import Counts
from pddbench.replay.exchange import Exchange, Reader, Target, Transport
from pddbench.replay.health import HealthMonitor
from pddbench.replay.pace import Deadline, Pacer
from pddbench.replay.recorder import Recorder
from pddbench.replay.schedule import Schedule, Times, phases
from pddbench.replay.spool import SpoolWriter
from pddbench.replay.stream import Facts, StreamResult, interpret
from pddbench.replay.transport import make_transport
from pddbench.timeliness import ask_for_short_slices, quiet_interpreter
from pddbench.workload.history import Replies, Reply
from pddbench.workload.plan import Plan
from pddbench.workload.requests import as_columns

LEAD_NS = 50_000_000  # from the choice of t0 to t0: what is due at once is then not late
FIRST_BODIES = 1000  # are there before the clock starts, and those of the first seconds, if it does not take long
FIRST_WAIT_NS = 5_000_000_000


@dataclass
class ReplayJob:
    """What to send where. `bodies(i)` is the encoded body of request i; `speed` experiment ns a wall ns.

    `progress` is called about twice a second. `stop`, once set, ends the run: what is in flight is cancelled, what
    is left is recorded as not sent. `transport` makes the client (default: `transport.make_transport`). `replies`
    (live history) takes each reply before the requests after it are encoded; `needs_ids`: as token ids. A worker
    sends its `part` of the plan (indices, whole sessions) and starts when `start` says: it is awaited once all that
    comes before the start is done, and gives the common t0 (None: the run was stopped).
    """

    plan: Plan
    target: Target
    bodies: Callable[[int], bytes]
    spool: SpoolWriter
    speed: float = 1.0
    on_parent_failure: Literal["continue", "abandon"] = "continue"
    progress: Callable[[Counts], None] | None = None
    stop: asyncio.Event | None = None
    transport: Callable[[Target], Transport] | None = None
    replies: Replies | None = None
    needs_ids: bool = False
    part: Sequence[int] | None = None
    start: Callable[[], Awaitable[int | None]] | None = None
    on_zero: Callable[[int], None] | None = None  # told t0 (ns on CLOCK_MONOTONIC) as soon as it is chosen


@dataclass
class ReplayEnd:
    """How a run ended. `late_bodies`: encoded only when due; `t0_ns` on CLOCK_MONOTONIC."""

    status: Literal["complete", "interrupted"]
    t0_ns: int | None
    counts: Counts = field(default_factory=Counts)
    late_bodies: int = 0
    exact_timer: bool = True
    reader: Reader = "python"


async def replay(job: ReplayJob) -> ReplayEnd:
    """Run a plan against a target. Every planned request ends up in the spool, sent or not."""
    return await _Engine(job).run()


def keep_reply(replies: Replies, index: int, result: StreamResult, needs_ids: bool) -> bool:
    """Keep the reply to request `index` for live history; False when later prompts cannot be made of it."""
    usable = result.token_ids is not None if needs_ids else bool(result.contents)
    if usable:
        replies.put(index, Reply(result.reply_tokens, result.token_ids, result.contents))
    return usable


class _Engine:
    """One run. Request states: open (known), waiting (has times), in flight, recorded."""

    def __init__(self, job: ReplayJob) -> None:
        self._job = job
        self._plan = job.plan
        self._loop = asyncio.get_running_loop()
        self._pacer = Pacer(self._loop)
        self._bodies = BodyStore(job.bodies)
        self._brake = Brake(job.target.max_start_rate, job.target.max_concurrency)
        self._transport = (job.transport or make_transport)(job.target)
        self._recorder = Recorder(
            job.spool, self._transport, keep=job.on_parent_failure == "abandon", fail=self._fail, each_round=self._show
        )
        self._lead_ns = self._transport.lead_ns if self._brake.free else 0
        self._request_id = as_columns(job.plan.requests).request_id
        self._part = range(len(job.plan.requests)) if job.part is None else job.part
        self._counts = Counts(planned=len(self._part))
        self._schedule = Schedule(job.plan, (), job.speed)
        self._recorded_already = bytearray(len(job.plan.requests))
        self._left = 0
        self._waiting: dict[int, tuple[Times, Deadline]] = {}
        self._flying: dict[int, Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._in_window: set[int] = set()  # waiting or in flight, and due before the measured window ends
        self._until_ns: int | None = None  # when that is, as soon as t0 is known
        self._closed = False
        self._interrupted = False
        self._fatal: BaseException | None = None
        self._health: HealthMonitor | None = None
        self._next_root = 0
        self._next_ahead = 0

    async def run(self) -> ReplayEnd:
        """Warm up, measure, record the rest."""
        warmup, measure = phases(self._plan, self._part)
        watch = self._loop.create_task(self._watch_stop())
        t0_ns, exact_timer = None, self._pacer.exact
        ask_for_short_slices()
        with quiet_interpreter():
            self._recorder.start(self._pacer)
            try:
                await self._phase(warmup)
                t0_ns = await self._phase(measure, measured=True)
                self._record_rest()
            finally:
                await self._shut(watch)
        if self._fatal is not None:
            raise self._fatal
        status: Literal["complete", "interrupted"] = "interrupted" if self._interrupted else "complete"
        self._recorder.write(frames.Closed(status))
        self._show()
        return ReplayEnd(status, t0_ns, self._counts, self._bodies.late, exact_timer, self._transport.reader)

    async def _phase(self, indices: Sequence[int], measured: bool = False) -> int | None:
        """Send these requests and wait for the last to end; returns the phase's zero (None: it never began)."""
        if not len(indices):
            return None
        self._schedule = schedule = Schedule(self._plan, indices, self._job.speed)
        self._left, self._next_root, self._next_ahead = len(indices), 0, 0
        await self._first_bodies(schedule)
        t0_ns = None if self._stopped() else await self._start_ns(measured)
        if t0_ns is None or self._stopped():
            return None
        self._over.clear()
        schedule.t0_ns = t0_ns
        if measured:
            self._recorder.write(frames.Zero(t0_ns, self._pacer.exact, self._transport.reader))
            if self._job.on_zero is not None:
                self._job.on_zero(t0_ns)
            self._arm_window(t0_ns)
            self._health = HealthMonitor(self._pacer, self._in_flight, self._transport, self._recorder.write)
        self._look_ahead()
        self._arm_root()
        await self._over.wait()
        if self._stopped():
            await self._abort()
        if self._health is not None:
            self._health.stop()
        return t0_ns

    async def _start_ns(self, measured: bool) -> int | None:
        """The zero of a phase: ours to choose, but for the measured one of a worker."""
        if measured and self._job.start is not None:
            return await self._job.start()
        return time.monotonic_ns() + LEAD_NS

    async def _first_bodies(self, schedule: Schedule) -> None:
        """Bodies of the first roots, before the clock starts: made after it they would take the interpreter from it."""
        soon: list[int] = []
        for index in schedule.roots:
            if (due_ns := schedule.root_times(index).due_ns) >= AHEAD_NS:
                break
            self._bodies.expect(index, due_ns)
            soon.append(index)
        self._next_ahead = len(soon)
        patience_ns = time.monotonic_ns() + FIRST_WAIT_NS
        while not (self._bodies.ready(soon) or self._stopped()):
            await asyncio.sleep(0.005)
            if time.monotonic_ns() > patience_ns:
                del soon[FIRST_BODIES:]

    def _stopped(self) -> bool:
        return self._interrupted or self._closed or self._fatal is not None

    # --- the measured window

    def _arm_window(self, t0_ns: int) -> None:
        """With a window the run ends once all that was due in it has ended; until then the load goes on."""
        if self._plan.window is not None:
            self._until_ns = t0_ns + round(self._plan.window.until_ns / self._job.speed)
            self._pacer.call_at(self._until_ns, self._close_window)

    def _close_window(self) -> None:
        """End the run when the window is over and nothing that was due in it is open."""
        if self._until_ns is None or time.monotonic_ns() < self._until_ns or self._in_window:
            return
        roots = self._schedule.roots[self._next_root : self._next_root + 1]
        if not any(self._schedule.root_times(index).due_ns < self._until_ns for index in roots):
            self._closed = True
            self._over.set()

    # --- starting

    def _look_ahead(self) -> None:
        """Order the bodies of the roots that are due soon, and look again when the next one is."""
        roots, now_ns = self._schedule.roots, time.monotonic_ns()
        while self._next_ahead < len(roots):
            index = roots[self._next_ahead]
            due_ns = self._schedule.root_times(index).due_ns
            if due_ns - AHEAD_NS - STEP_NS > now_ns:
                self._pacer.call_at(due_ns - AHEAD_NS, self._look_ahead)
                return
            self._bodies.expect(index, due_ns)
            self._next_ahead += 1

    def _arm_root(self) -> None:
        """Only the next root waits in the pacer."""
        roots = self._schedule.roots
        if self._next_root < len(roots) and not self._stopped():
            index = roots[self._next_root]
            self._next_root += 1
            self._wait(index, self._schedule.root_times(index), self._start_root)

    def _wait(self, index: int, times: Times, start: Callable[[int], None]) -> None:
        if self._until_ns is not None and times.due_ns < self._until_ns:
            self._in_window.add(index)
        self._waiting[index] = times, self._pacer.call_at(times.due_ns - self._lead_ns, lambda: start(index))

    def _start_root(self, index: int) -> None:
        self._start(index)
        self._arm_root()

    def _start(self, index: int) -> None:
        """A request is due, or about to be: the transport sends it at its time."""
        times, _ = self._waiting[index]
        task = self._loop.create_task(self._send(index, times))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # --- one request

    async def _send(self, index: int, times: Times) -> None:
        """Wait for the brakes, hand the body over, and record what happened."""
        held_ns = 0 if self._brake.free else await self._brake.wait()
        try:
            if self._stopped():
                return
            exchange, body = self._hand_over(index, times, held_ns)
            try:
                await self._transport.perform(exchange, body, self._request_id(index))
            finally:
                if self._was_too_early(exchange):
                    self._take_back(exchange, times)
                else:
                    self._land(exchange)
        finally:
            self._brake.done()

    def _hand_over(self, index: int, times: Times, held_ns: int) -> tuple[Exchange, bytes]:
        body, sha256, late = self._bodies.take(index)
        exchange = Exchange(index, time.monotonic_ns(), times.due_ns)
        late = late and exchange.handed_ns > times.due_ns
        del self._waiting[index]
        self._flying[index] = exchange
        self._counts.sent += 1
        self._recorder.add(
            exchange,
            frames.Handed(
                index, exchange.handed_ns, times.scheduled_ns, times.ready_ns, times.due_ns, held_ns, sha256, late
            ),
        )
        if self._job.replies is None:  # else they are encoded once this reply is there
            for child in self._schedule.children.get(index, ()):
                self._bodies.expect(child)
        return exchange, body

    def _was_too_early(self, exchange: Exchange) -> bool:
        """Whether the run was stopped before the request left, and before it should have."""
        return exchange.ending == "cancelled" and exchange.sent_ns is None and time.monotonic_ns() < exchange.due_ns

    def _take_back(self, exchange: Exchange, times: Times) -> None:
        """It was prepared, and not sent."""
        index = exchange.index
        del self._flying[index]
        self._recorder.forget(exchange)
        self._counts.sent -= 1
        self._not_sent(index, "interrupted" if self._interrupted else "run_ended", times)

    def _land(self, exchange: Exchange) -> None:
        """An exchange has ended, well or not: record it and release those who waited for it."""
        index = exchange.index
        if exchange.ending is None:  # an error of ours, about to end the run
            exchange.ending, exchange.error = "cancelled", "the run failed"
        end_ns = exchange.end_ns if exchange.end_ns is not None else time.monotonic_ns()
        self._recorder.flush(exchange)
        self._recorder.write(frames.Ended(index, end_ns, exchange.ending, exchange.error))
        del self._flying[index]
        self._counts.done += 1
        good = exchange.ending == "eof" and exchange.status is not None and exchange.status < 300
        self._counts.failed += not good
        if self._job.on_parent_failure == "abandon" and not self._answered_well(exchange):
            for child in self._schedule.drop(index):
                self._not_sent(child, "parent_failed")
        else:
            self._release(index, end_ns)
        self._recorded(index)

    def _release(self, index: int, end_ns: int) -> None:
        if self._stopped():
            return
        for child, times in self._schedule.release(index, end_ns):
            self._bodies.expect(child, times.due_ns)
            self._wait(child, times, self._start)

    def _answered_well(self, exchange: Exchange) -> bool:
        """Whether the requests after it can go on; asked (and parsed during the run) to abandon sessions.

        With live history its reply is kept for them; a reply that cannot be repeated is as bad as none.
        """
        assert exchange.ending is not None
        reads = self._recorder.take_kept(exchange.index)
        if not self._schedule.children.get(exchange.index):
            return True
        result = interpret(reads, Facts(exchange.ending, exchange.status, exchange.content_type))
        if self._job.replies is None or result.outcome != "ok":
            return result.outcome == "ok"
        return keep_reply(self._job.replies, exchange.index, result, self._job.needs_ids)

    # --- recording

    def _recorded(self, index: int) -> None:
        self._recorded_already[index] = True
        if self._job.replies is not None:
            self._job.replies.done(index)
        self._left -= 1
        if index in self._in_window:
            self._in_window.discard(index)
            self._close_window()
        if self._left == 0:
            self._over.set()

    def _not_sent(self, index: int, reason: str, times: Times | None = None) -> None:
        if index in self._waiting:
            times, deadline = self._waiting.pop(index)
            deadline.cancel()
        stamps = (times.scheduled_ns, times.ready_ns, times.due_ns) if times else (None, None, None)
        self._recorder.write(frames.NotSent(index, reason, *stamps))
        self._counts.not_sent += 1
        self._bodies.forget(index)
        self._recorded(index)

    def _record_rest(self) -> None:
        """Everything that is still open was not sent."""
        if self._fatal is None:
            for index in filterfalse(self._recorded_already.__getitem__, self._part):
                self._not_sent(index, "interrupted" if self._interrupted else "run_ended")

    def _in_flight(self) -> int:
        return len(self._flying) - self._recorder.early

    def _show(self) -> None:
        self._counts.in_flight = self._in_flight()
        if self._job.progress is not None:
            self._job.progress(self._counts)

    # --- stopping

    async def _watch_stop(self) -> None:
        if self._job.stop is not None:
            await self._job.stop.wait()
            self._interrupted = True
            self._over.set()

    def _fail(self, error: BaseException) -> None:
        """Something of our own failed (the spool cannot be written, say): the run ends."""
        if self._fatal is None:
            self._fatal = error
        self._over.set()

    async def _abort(self) -> None:
        """Cancel what is in flight and wait until it is recorded."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shut(self, watch: asyncio.Task[None]) -> None:
        self._pacer.close()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await self._abort()
        self._bodies.close()
        await self._transport.close()
