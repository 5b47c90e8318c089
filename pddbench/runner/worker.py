"""One of several client processes of a run: replays its sessions into a spool of its own.

Started by `workers` as a module. Its first line of input is the job (JSON: nothing secret is ever on the command line
or on disk); then `go T0` starts the clock and `stop`, or the end of the input (the parent died), ends the run. It
answers with lines of JSON: `ready`, at last how it ended or the error that ended it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Literal

import msgspec

from pddbench.errors import InputError, PddbenchError
from pddbench.replay.engine import ReplayEnd, ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.split import split_sessions
from pddbench.replay.spool import SpoolWriter
from pddbench.runner.writer import WriterSettings, make_writer
from pddbench.workload.history import Replies
from pddbench.workload.plan import Plan


class WorkerJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told. `worker` counts from 0; `target` has its part of the brakes already."""

    folder: str
    arm: str
    repeat: int
    worker: int
    workers: int
    target: Target
    writer: WriterSettings
    salt: str
    speed: float
    on_parent_failure: Literal["continue", "abandon"]


class Said(msgspec.Struct, omit_defaults=True):
    """A line of a worker: one of these is set. `bad_input`: the error is the user's."""

    ready: bool = False
    end: ReplayEnd | None = None
    error: str | None = None
    bad_input: bool = False


class _Channel:
    """Lines from and to the parent, read and written without buffers of Python's in between."""

    def __init__(self) -> None:
        self._left = b""
        self.go: asyncio.Future[int] | None = None
        self.stop: asyncio.Event | None = None

    def first_line(self) -> bytes:
        """Block until the job is there; empty when the parent is gone."""
        while b"\n" not in self._left:
            if not (data := os.read(0, 1 << 20)):
                return b""
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        return line

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on `go` and `stop` come true as the parent says."""
        self.go, self.stop = loop.create_future(), asyncio.Event()
        loop.add_reader(0, self._take, loop)

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self.go is not None and self.stop is not None
        data = os.read(0, 1 << 16)
        if not data:
            loop.remove_reader(0)
            self.stop.set()
        *lines, self._left = (self._left + data).split(b"\n")
        for line in lines:
            word, _, rest = line.partition(b" ")
            if word == b"go" and not self.go.done():
                self.go.set_result(int(rest))
            elif word == b"stop":
                self.stop.set()

    async def start(self) -> int | None:
        """Say that all is ready, and wait for the common start; None when there will be none."""
        assert self.go is not None and self.stop is not None
        self.say(Said(ready=True))
        stopped = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait((self.go, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        return self.go.result() if self.go.done() else None

    def say(self, said: Said) -> None:
        """A line to the parent; when it is gone, the end of the input tells."""
        try:
            os.write(1, msgspec.json.encode(said) + b"\n")
        except BrokenPipeError:
            pass


async def _work(job: WorkerJob, plan: Plan, channel: _Channel) -> ReplayEnd:
    from pddbench.runfolder.spooled import spool_path

    channel.watch(asyncio.get_running_loop())
    path = spool_path(Path(job.folder), job.arm, job.repeat, job.worker)
    replies = Replies(plan) if plan.history == "live" else None
    spool = SpoolWriter(path, job.arm, job.repeat, len(plan.requests))
    try:
        return await replay(
            ReplayJob(
                plan=plan,
                target=job.target,
                bodies=make_writer(job.writer, plan, job.salt, replies),
                spool=spool,
                speed=job.speed,
                on_parent_failure=job.on_parent_failure,
                stop=channel.stop,
                replies=replies,
                needs_ids=job.writer.token_ids,
                part=split_sessions(plan, job.workers)[job.worker],
                start=channel.start,
            )
        )
    finally:
        spool.close()


def main() -> None:
    """Do the job that the parent hands over."""
    from pddbench.runfolder.spooled import load_plan
    from pddbench.runner.execute import in_loop

    channel = _Channel()
    line = channel.first_line()
    if not line:
        return
    job = msgspec.json.decode(line, type=WorkerJob)
    try:
        plan = load_plan(Path(job.folder), job.repeat)
        channel.say(Said(end=in_loop(lambda: _work(job, plan, channel))))
    except PddbenchError as error:
        channel.say(Said(error=str(error), bad_input=isinstance(error, InputError)))


if __name__ == "__main__":
    main()
