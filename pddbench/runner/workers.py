"""Several client processes for one run: started, started together, stopped together, their ends made one.

Nothing is shared while a run is on: each worker has its sessions, its spool, its brakes and its own pipe to us. A
worker that dies ends the run, because the load is no longer the planned one; what all of them saved is kept.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import msgspec

from pddbench.errors import InputError, PddbenchError, WorldError
from pddbench.replay.counts import Counts
from pddbench.replay.engine import ReplayEnd
from pddbench.runner.worker import Said, WorkerJob
from pddbench.text import printable

LEAD_NS = 200_000_000  # from the choice of the common t0 to t0: the word must get to every worker
STOP_S = 30.0  # a worker that was told to stop and has not ended by then is killed
LINE_BYTES = 1 << 20


async def replay_by_workers(
    jobs: Sequence[WorkerJob], stop: asyncio.Event, on_zero: Callable[[int], None] = lambda t0_ns: None
) -> ReplayEnd:
    """Run the jobs as processes. Raises `WorldError` when one of them dies or fails, after all have ended.

    `on_zero` is told the common t0 (ns on CLOCK_MONOTONIC) as soon as it is chosen.
    """
    workers = [_Worker(job) for job in jobs]
    try:
        for worker in workers:
            await worker.start()
        conductor = _Conductor(workers, stop, on_zero)
        await conductor.run()
    finally:
        for worker in workers:
            worker.kill()
    failed = [worker.failure for worker in workers if worker.failure is not None]
    if failed:
        raise failed[0]
    return _together([worker.end for worker in workers if worker.end is not None])


def _together(ends: Sequence[ReplayEnd]) -> ReplayEnd:
    """The ends of all workers as that of one run."""
    complete = all(end.status == "complete" for end in ends)
    started = [end.t0_ns for end in ends if end.t0_ns is not None]
    return ReplayEnd(
        "complete" if complete else "interrupted",
        started[0] if started else None,
        Counts.total([end.counts for end in ends]),
        sum(end.late_bodies for end in ends),
        all(end.exact_timer for end in ends),
        ends[0].reader if len({end.reader for end in ends}) == 1 else "python",  # the slowest of them counts
    )


class _Conductor:
    """Waits until every worker is ready, names the common start, and passes a stop on."""

    def __init__(self, workers: Sequence[_Worker], stop: asyncio.Event, on_zero: Callable[[int], None]) -> None:
        self._workers, self._stop, self._on_zero = workers, stop, on_zero
        self._gone = False

    async def run(self) -> None:
        listening = [asyncio.ensure_future(worker.listen(self._heard)) for worker in self._workers]
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            pending = {*listening, stopping}
            while any(not task.done() for task in listening):
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if stopping in done or any(worker.failure is not None for worker in self._workers):
                    pending.discard(stopping)
                    break
            await self._end(listening)
        finally:
            stopping.cancel()
            for task in listening:
                task.cancel()
            await asyncio.gather(stopping, *listening, return_exceptions=True)

    async def _end(self, listening: Sequence[asyncio.Future[None]]) -> None:
        """Tell those that still run to stop, and wait for them; one that does not is killed."""
        left = [task for task in listening if not task.done()]
        if left:
            for worker in self._workers:
                worker.tell(b"stop\n")
            _, late = await asyncio.wait(left, timeout=STOP_S)
            for worker in self._workers if late else ():
                worker.kill()
        await asyncio.gather(*listening)

    def _heard(self) -> None:
        """Something came from a worker."""
        if not self._gone and all(worker.ready for worker in self._workers):
            self._gone = True
            t0_ns = time.monotonic_ns() + LEAD_NS
            for worker in self._workers:
                worker.tell(b"go %d\n" % t0_ns)
            self._on_zero(t0_ns)


class _Worker:
    """One process and what it has said. Its input stays open: the end of it means that we are gone."""

    def __init__(self, job: WorkerJob) -> None:
        self._job = job
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `kill`)
        self._process: asyncio.subprocess.Process | None = None
        self.ready = False
        self.end: ReplayEnd | None = None
        self.failure: PddbenchError | None = None

    async def start(self) -> None:
        """Start the process and hand the job over."""
        from pddbench.deploy.emulator.launch import environment

        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pddbench.runner.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=self._errors,
            start_new_session=True,  # a Ctrl-C is for us, who then stop the workers
            env=environment(), limit=LINE_BYTES,
        )  # fmt: skip
        self.tell(msgspec.json.encode(self._job) + b"\n")

    def tell(self, line: bytes) -> None:
        """Send a line, if it still listens."""
        assert self._process is not None and self._process.stdin is not None
        if self._process.returncode is None and not self._process.stdin.is_closing():
            self._process.stdin.write(line)

    async def listen(self, heard: Callable[[], None]) -> None:
        """Take what it says until it has ended."""
        assert self._process is not None and self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = msgspec.json.decode(line, type=Said)
            self.ready = self.ready or said.ready or said.end is not None
            if said.error is not None:
                kind = InputError if said.bad_input else WorldError
                self.failure = kind(said.error)
            if said.end is not None:
                self.end = said.end
            heard()
        code = await self._process.wait()
        if self.failure is None and (self.end is None or code != 0):
            self.failure = WorldError(self._obituary(code))

    def _obituary(self, code: int) -> str:
        job = self._job
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._errors.seek(0)
        lines = self._errors.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
        said = f" ({printable(lines[-1], 200)})" if lines else ""
        return (
            f"worker {job.worker} of {job.workers} {how}{said} while arm {job.arm!r} ran, repeat {job.repeat}: "
            "the run was stopped; what was measured is kept, and marked partial"
        )

    def kill(self) -> None:
        """End it, should it still be there."""
        if self._process is not None and self._process.returncode is None:
            try:
                self._process.kill()
            except ProcessLookupError:
                pass
        self._errors.close()
