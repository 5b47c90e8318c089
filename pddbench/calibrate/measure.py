"""Runs the engine, as a run uses it, against the known-truth server at growing loads, and compares every stamp."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from pddbench.analyze.quantiles import quantile
from pddbench.calibrate.server import truth_ns
from pddbench.errors import WorldError
from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.frames import connect_wait_ns
from pddbench.replay.kernel import KernelClock, on_our_clock
from pddbench.replay.spool import RequestFrames, SpoolWriter
from pddbench.replay.spools import Spools
from pddbench.replay.sse import SseParser
from pddbench.replay.stream import arrival_times, kernel_ns
from pddbench.runfolder.spooled import save_plan, spool_path, spool_paths
from pddbench.scratch import scratch_folder
from pddbench.workload.plan import Plan, PlannedRequest
from pddbench.workload.requests import Requests

RATE = 25.0  # events a second a stream
LOADS = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 80_000)  # events a second
TTFT_US = 20_000
_ARM = "calibrate"


class Quantiles(msgspec.Struct, frozen=True):
    """Of an error, milliseconds; null without samples."""

    p50: float | None
    p99: float | None
    largest: float | None


class Level(msgspec.Struct, kw_only=True):
    """One load and what was seen. Errors are our stamps minus the server's; `used` are those a report would use.

    `server_late_p99_ms`: how late the server was itself. `within`: the stated error holds. With several workers each
    figure is that of the worst of them, as in a run; `events_s`, `streams` and the like are of all together.
    """

    events_s: int
    streams: int
    starts_s: float
    seen_events_s: int
    failed: int
    ttft_used: Quantiles
    ttft_user: Quantiles
    ttft_kernel: Quantiles
    gap_used: Quantiles
    drift: Quantiles
    cpu_share: float
    server_late_p99_ms: float
    within: bool
    attempt: int = 1


def measure(
    error_ms: float,
    life_s: float,
    loads: Sequence[int] = LOADS,
    said: Callable[[Level], None] | None = None,
    workers: int = 1,
) -> list[Level]:
    """Load after load until one exceeds `error_ms` (P99 of TTFT error and of drift), each for 3 `life_s`.

    Several workers have a server each: what is looked for is the client's limit. A load that fails is tried once
    more: on a shared host a turn given to somebody else is not the instrument's limit.
    """
    levels: list[Level] = []
    for events_s in loads:
        level = _level(events_s, error_ms, life_s, workers, 1)
        if not level.within:
            level = _level(events_s, error_ms, life_s, workers, 2)
        levels.append(level)
        if said is not None:
            said(level)
        if not level.within:
            break
    return levels


def _level(events_s: int, error_ms: float, life_s: float, workers: int, attempt: int) -> Level:
    from pddbench.runner.execute import in_loop

    plan, rate = plan_of(events_s, life_s, workers)
    with ExitStack() as stack:
        servers = [stack.enter_context(served()) for _ in range(workers)]
        folder = stack.enter_context(scratch_folder("calibrate"))
        targets = [_target(port, plan, rate, life_s) for port, _ in servers]
        cpu_share = in_loop(lambda: _run(plan, targets[0], folder) if workers == 1 else _run_by(plan, targets, folder))
        there = spool_paths(folder, _ARM, 1)
        spools = Spools([path for _, path in there], [worker for worker, _ in there], len(plan.requests))
        stack.callback(spools.close)
        if cpu_share is None:
            cpu_share = _busiest(spools)
        level = _judge(spools, plan, events_s, error_ms, life_s, cpu_share)
    level.server_late_p99_ms = max(reports["late_p99_ms"] for _, reports in servers)
    level.attempt = attempt
    return level


@contextmanager
def served() -> Iterator[tuple[int, dict[str, float]]]:
    """A running server: its port, and a dict that holds its report afterwards."""
    reports: dict[str, float] = {}
    command = [sys.executable, "-m", "pddbench.calibrate.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        port = process.stdout.readline().strip()
        if not port.isdigit():
            raise WorldError("the calibration server did not start")
        yield int(port), reports
        process.stdin.close()
        reports |= msgspec.json.decode(process.stdout.readline(), type=dict[str, float])


def plan_of(events_s: int, life_s: float, workers: int = 1) -> tuple[Plan, float]:
    """Twice as many requests as streams, evenly over two lives, and the rate of each stream."""
    streams = max(workers, round(events_s / RATE))
    step_ns = life_s / streams * 1e9
    requests = [
        PlannedRequest(
            index=i,
            request_id=f"c{i}",
            session_id=f"c{i}",
            turn=0,
            kind="root",
            phase="measure",
            parents=(),
            start_ns=round(i * step_ns),
            gap_ns=0,
            prefix_of=-1,
            prefix_tokens=0,
            input_tokens=1,
            output_tokens=max(2, round(RATE * life_s)),
            cached_tokens_planned=0,
            plan_sha256="",
        )
        for i in range(2 * streams)
    ]
    return Plan(Requests(requests).sealed(), "think", ""), events_s / streams


def _target(port: int, plan: Plan, rate: float, life_s: float) -> Target:
    headers = {
        "x-ttft-us": str(TTFT_US),
        "x-itl-us": str(round(1e6 / rate)),
        "x-ntok": str(plan.requests[0].output_tokens),
    }
    return Target(url=f"http://127.0.0.1:{port}/v1/completions", headers=headers, stall_timeout_s=10 + 3 * life_s)


async def _run(plan: Plan, target: Target, folder: Path) -> float | None:
    """One replay in this process; the share of a core it took."""
    (folder / "spool").mkdir()
    spool = SpoolWriter(spool_path(folder, _ARM, 1), _ARM, 1, len(plan.requests))
    cpu_s, start_s = time.process_time(), time.monotonic()
    try:
        await replay(ReplayJob(plan, target, lambda index: b'{"prompt": "x"}', spool))
        await asyncio.sleep(0)
    finally:
        spool.close()
    return (time.process_time() - cpu_s) / (time.monotonic() - start_s)


async def _run_by(plan: Plan, targets: Sequence[Target], folder: Path) -> float | None:
    """One replay by as many workers as targets."""
    from pddbench.runner.worker import WorkerJob
    from pddbench.runner.workers import replay_by_workers
    from pddbench.runner.writer import WriterSettings

    save_plan(folder, 1, plan)
    writer = WriterSettings(
        model=_ARM, chat=False, token_ids=True, fields={}, limit_field="max_tokens", min_tokens=False, words=(),
        overhead_tokens=0, turn_overhead_tokens=0, token_id_range=(0, 1000),
    )  # fmt: skip
    jobs = [
        WorkerJob(folder=str(folder), arm=_ARM, repeat=1, worker=worker, workers=len(targets), target=target,
                  writer=writer, salt="", speed=1.0, on_parent_failure="continue")
        for worker, target in enumerate(targets)
    ]  # fmt: skip
    await replay_by_workers(jobs, asyncio.Event())
    return None


def _busiest(spools: Spools) -> float:
    """Mean CPU share of the busiest worker, by its own samples."""
    shares: dict[int, list[float]] = {}
    for worker, sample in spools.health:
        shares.setdefault(worker, []).append(sample.cpu_share)
    return max((sum(own) / len(own) for own in shares.values()), default=0.0)


class _Errors:
    """Errors gathered over a worker's requests of a level, ns."""

    def __init__(self) -> None:
        self.used: list[int] = []
        self.user: list[int] = []
        self.kernel: list[int] = []
        self.gaps: list[int] = []
        self.drift: list[int] = []
        self.events = 0
        self.failed = 0
        self.first_ns, self.last_ns = 2**63, 0

    def add(self, one: RequestFrames, clock: KernelClock) -> None:
        """One request: its stamps against the server's."""
        if one.ended is None or one.ended.ending != "eof" or one.handed is None or one.answered is None:
            self.failed += 1
            return
        if one.answered.sent_ns is not None:  # as the rule `send_lag`: connecting apart
            wait_ns = connect_wait_ns(one.handed, one.answered) or 0
            self.drift.append(one.answered.sent_ns - one.handed.due_ns - wait_ns)
        self.first_ns, self.last_ns = min(self.first_ns, one.handed.due_ns), max(self.last_ns, one.ended.end_ns)
        reads = on_our_clock(one.reads, clock)
        times, parser, before = arrival_times(reads), SseParser(), None
        for number, read in enumerate(reads):
            for event in parser.feed(read[1], number):
                truth = truth_ns(event.data)
                if truth is None:
                    continue
                error = times[number] - truth
                if before is None:
                    self.used.append(error)
                    self.user.append(read[0] - truth)
                    if (stamp := kernel_ns(read)) is not None:
                        self.kernel.append(stamp - truth)
                else:
                    self.gaps.append(abs(error - before))
                before = error
                self.events += 1


def _judge(spools: Spools, plan: Plan, events_s: int, error_ms: float, life_s: float, cpu_share: float) -> Level:
    each: dict[int | None, _Errors] = {}
    for index in range(len(plan.requests)):
        frames, clock, worker = spools.request(index)
        each.setdefault(worker, _Errors()).add(frames, clock)
    errors = list(each.values())
    used, drift = _worst(one.used for one in errors), _worst(one.drift for one in errors)
    events, failed = sum(one.events for one in errors), sum(one.failed for one in errors)
    complete = events == sum(request.output_tokens for request in plan.requests)
    held = all(q.p99 is not None and q.p99 <= error_ms for q in (used, drift))
    streams = len(plan.requests) // 2
    span_ns = max(one.last_ns for one in errors) - min(one.first_ns for one in errors)
    return Level(
        events_s=events_s,
        streams=streams,
        starts_s=streams / life_s,
        seen_events_s=round(events / max(1e-9, span_ns / 1e9)),
        failed=failed,
        ttft_used=used,
        ttft_user=_worst(one.user for one in errors),
        ttft_kernel=_worst(one.kernel for one in errors),
        gap_used=_worst(one.gaps for one in errors),
        drift=drift,
        cpu_share=cpu_share,
        server_late_p99_ms=0.0,
        within=held and complete and not failed,
    )


def _worst(each: Iterable[list[int]]) -> Quantiles:
    """Of the worker with the largest P99; one without samples is the worst."""
    return max(map(_quantiles, each), key=lambda q: float("inf") if q.p99 is None else q.p99)


def _quantiles(values_ns: list[int]) -> Quantiles:
    """P50, P99 and the largest, ms."""
    import numpy as np

    if not values_ns:
        return Quantiles(None, None, None)
    values = np.sort(np.array(values_ns, dtype=np.float64) / 1e6)
    most = values[:-1] if 1 < len(values) < 100 else values  # P99 is never the largest alone, as in the rules of trust
    return Quantiles(*(round(float(q), 4) for q in (quantile(values, 0.5), quantile(most, 0.99), values[-1])))
