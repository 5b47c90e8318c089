"""Runs the engine, as a run uses it, against the known-truth server at growing loads, and compares every stamp."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pddbench.analyze.quantiles import quantile
from pddbench.calibrate.server import truth_ns
from pddbench.errors import WorldError
from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.kernel import KernelClock, on_our_clock
from pddbench.replay.spool import Spool, SpoolWriter, read_spool
from pddbench.replay.sse import SseParser
from pddbench.replay.stream import arrival_times, kernel_ns
from pddbench.workload.plan import Plan, PlannedRequest

RATE = 25.0  # events a second a stream
LOADS = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 80_000)  # events a second
TTFT_US = 20_000


class Quantiles(msgspec.Struct, frozen=True):
    """Of an error, milliseconds; null without samples."""

    p50: float | None
    p99: float | None
    largest: float | None


class Level(msgspec.Struct, kw_only=True):
    """One load and what was seen. Errors are our stamps minus the server's; `used` are those a report would use.

    `server_late_p99_ms`: how late the server was itself. `within`: the stated error holds.
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
    error_ms: float, life_s: float, loads: Sequence[int] = LOADS, said: Callable[[Level], None] | None = None
) -> list[Level]:
    """Load after load until one exceeds `error_ms` (P99 of TTFT error and of drift), each for 3 `life_s`.

    A load that fails is tried once more: on a shared host a turn given to somebody else is not the instrument's limit.
    """
    levels: list[Level] = []
    for events_s in loads:
        level = _level(events_s, error_ms, life_s, 1)
        if not level.within:
            level = _level(events_s, error_ms, life_s, 2)
        levels.append(level)
        if said is not None:
            said(level)
        if not level.within:
            break
    return levels


def _level(events_s: int, error_ms: float, life_s: float, attempt: int) -> Level:
    from pddbench.runner.execute import in_loop

    plan, rate = plan_of(events_s, life_s)
    with served() as (port, reports), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibrate.spool"
        cpu_s, wall_s = in_loop(lambda: _run(plan, port, path, rate, life_s))
        spool = read_spool(path)
    try:
        level = _judge(spool, plan, events_s, error_ms, life_s, cpu_s / wall_s)
    finally:
        spool.close()
    level.server_late_p99_ms, level.attempt = reports["late_p99_ms"], attempt
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


def plan_of(events_s: int, life_s: float) -> tuple[Plan, float]:
    """Twice as many requests as streams, evenly over two lives, and the rate of each stream."""
    streams = max(1, round(events_s / RATE))
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
    return Plan(requests, "think", ""), events_s / streams


async def _run(plan: Plan, port: int, path: Path, rate: float, life_s: float) -> tuple[float, float]:
    """CPU and wall seconds of one replay."""
    headers = {
        "x-ttft-us": str(TTFT_US),
        "x-itl-us": str(round(1e6 / rate)),
        "x-ntok": str(plan.requests[0].output_tokens),
    }
    spool = SpoolWriter(path, "calibrate", 1, len(plan.requests))
    target = Target(url=f"http://127.0.0.1:{port}/v1/completions", headers=headers, stall_timeout_s=10 + 3 * life_s)
    cpu_s, start_s = time.process_time(), time.monotonic()
    try:
        await replay(ReplayJob(plan, target, lambda index: b'{"prompt": "x"}', spool))
        await asyncio.sleep(0)
    finally:
        spool.close()
    return time.process_time() - cpu_s, time.monotonic() - start_s


class _Errors:
    """Errors gathered over the requests of a level, ns."""

    def __init__(self) -> None:
        self.used: list[int] = []
        self.user: list[int] = []
        self.kernel: list[int] = []
        self.gaps: list[int] = []
        self.drift: list[int] = []
        self.events = 0
        self.failed = 0
        self.first_ns, self.last_ns = 2**63, 0

    def add(self, spool: Spool, index: int, clock: KernelClock) -> None:
        """One request: its stamps against the server's."""
        one = spool.request(index)
        if one.ended is None or one.ended.ending != "eof" or one.handed is None or one.answered is None:
            self.failed += 1
            return
        self.drift.append(one.handed.handed_ns - one.handed.due_ns)  # as the rule `send_lag`: connecting apart
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


def _judge(spool: Spool, plan: Plan, events_s: int, error_ms: float, life_s: float, cpu_share: float) -> Level:
    clock = KernelClock([(sample.t_ns, sample.offset_ns) for sample in spool.clock_offsets])
    errors = _Errors()
    for request in plan.requests:
        errors.add(spool, request.index, clock)
    used, drift = _quantiles(errors.used), _quantiles(errors.drift)
    complete = errors.events == sum(request.output_tokens for request in plan.requests)
    held = all(q.p99 is not None and q.p99 <= error_ms for q in (used, drift))
    streams = len(plan.requests) // 2
    return Level(
        events_s=events_s,
        streams=streams,
        starts_s=streams / life_s,
        seen_events_s=round(errors.events / max(1e-9, (errors.last_ns - errors.first_ns) / 1e9)),
        failed=errors.failed,
        ttft_used=used,
        ttft_user=_quantiles(errors.user),
        ttft_kernel=_quantiles(errors.kernel),
        gap_used=_quantiles(errors.gaps),
        drift=drift,
        cpu_share=cpu_share,
        server_late_p99_ms=0.0,
        within=held and complete and not errors.failed,
    )


def _quantiles(values_ns: list[int]) -> Quantiles:
    """P50, P99 and the largest, ms."""
    import numpy as np

    if not values_ns:
        return Quantiles(None, None, None)
    values = np.sort(np.array(values_ns, dtype=np.float64) / 1e6)
    most = values[:-1] if 1 < len(values) < 100 else values  # P99 is never the largest alone, as in the rules of trust
    return Quantiles(*(round(float(q), 4) for q in (quantile(values, 0.5), quantile(most, 0.99), values[-1])))
