"""An emulated arm in virtual time: the same plan, schedule, clusters, link and reply code as live, without waiting.

What a client would have received goes into the spool as the same raw reads with virtual stamps, so that everything
after it (rows, trust, table) is the live code too. Bit-for-bit repeatable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pddbench.deploy.emulator import observe, openai
from pddbench.deploy.emulator.live import Live
from pddbench.deploy.emulator.messages import Failed, Finish, Message, Tokens
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.virtual import VirtualDeployment
from pddbench.errors import InputError
from pddbench.replay import frames
from pddbench.replay.engine import LEAD_NS, keep_reply
from pddbench.replay.schedule import Schedule, Times
from pddbench.replay.spool import SpoolWriter
from pddbench.replay.stream import Facts, Read, interpret
from pddbench.runfolder.events import ChunkRuns, chunk_runs_table, events_writer
from pddbench.runner.counted import CountedRun, table
from pddbench.workload.history import Replies
from pddbench.workload.plan import BEFORE_START, NS, Plan
from pddbench.workload.requests import as_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from pddbench.runfolder.roles import RoleLog
    from pddbench.runner.counted import Chunks
    from pddbench.runner.prepare import ArmSetup
    from pddbench.trace.model import Trace
    from pddbench.workload.experiment import Experiment

Bodies = Callable[[int], bytes]


def simulate_arm(
    spec: EmulatorSpec, plan: Plan, bodies: Bodies, chat: bool, spool: SpoolWriter, replies: Replies | None = None
) -> None:
    """Replay `plan` on a virtual deployment into `spool`, warm-ups first as live; `replies` as in `ReplayJob`."""
    _Simulation(spec, plan, bodies, chat, spool, replies).run()


class _Deployment(VirtualDeployment):
    """A virtual deployment whose replies become events, as at the router."""

    def __init__(self, spec: EmulatorSpec) -> None:
        super().__init__(spec)
        self.live: dict[int, Live] = {}

    def _on_reply(self, message: Message) -> None:
        if isinstance(message, Tokens):
            for rid, index, token in message.rows:
                self.live[rid].token(message.stage, index, token)
        elif isinstance(message, Finish):
            self.live[message.rid].reply.finish = message
            self.live[message.rid].close_if_complete()
        elif isinstance(message, Failed):
            self.live[message.rid].fail(message.reason)


class _Simulation:
    """One arm, one repeat."""

    def __init__(
        self, spec: EmulatorSpec, plan: Plan, bodies: Bodies, chat: bool, spool: SpoolWriter, replies: Replies | None
    ) -> None:
        self._plan, self._bodies, self._chat, self._spool, self._replies = plan, bodies, chat, spool, replies
        self._deployment = _Deployment(spec)
        self._clock = self._deployment.clock
        self._schedule = Schedule(plan, (), 1.0)
        self._sessions = as_columns(plan.requests).ints("session").tolist()
        self._reads: dict[int, list[Read]] = {}
        self._until_ns: int | None = None  # end of the measured window
        self._in_window: set[int] = set()  # due before that, and not over
        self._open: set[int] = set()

    def run(self) -> None:
        """Warm-ups, then the rest."""
        kinds = [request.kind in BEFORE_START for request in self._plan.requests]
        before = [index for index, early in enumerate(kinds) if early]
        self._phase(before)
        self._phase([index for index, early in enumerate(kinds) if not early], zero=True)
        self._spool.write(frames.Closed("complete"))

    def _phase(self, indices: list[int], zero: bool = False) -> None:
        self._schedule = Schedule(self._plan, indices, 1.0)
        self._schedule.t0_ns = self._now_ns() + LEAD_NS
        if zero:
            self._spool.write(frames.Zero(self._schedule.t0_ns))
            self._deployment.begin_events(self._schedule.t0_ns / NS)
            if self._plan.window is not None:
                self._until_ns = self._schedule.t0_ns + self._plan.window.until_ns
        self._open = set(indices)
        for index in self._schedule.roots:
            self._wait(index, self._schedule.root_times(index))
        if self._until_ns is not None:
            self._clock.run(self._until_ns / NS)
            while self._in_window and self._clock.step():
                pass
            self._leave_the_rest()
        else:
            while self._open and self._clock.step():  # later events are the next phase's
                pass

    def _leave_the_rest(self) -> None:
        """The window is over, and all that was due in it: what is in flight is left, the rest is not sent."""
        for index, reads in self._reads.items():
            self._spool.write(frames.Reads(index, reads))
            self._spool.write(frames.Ended(index, self._now_ns(), "cancelled", "stopped while in flight"))
        for index in sorted(self._open - self._reads.keys()):
            self._spool.write(frames.NotSent(index, "run_ended", None, None, None))

    def _now_ns(self) -> int:
        return round(self._clock.now() * NS)

    def _wait(self, index: int, times: Times) -> None:
        if self._until_ns is not None and times.due_ns < self._until_ns:
            self._in_window.add(index)
        self._clock.call_at(times.due_ns / NS, self._send, index, times)

    def _send(self, index: int, times: Times) -> None:
        """A request is due: an ideal client sends it at once."""
        body = self._bodies(index)
        request = openai.parse(body, self._chat)
        sha256, now_ns = hashlib.sha256(body).hexdigest(), times.due_ns
        self._spool.write(
            frames.Handed(index, now_ns, times.scheduled_ns, times.ready_ns, times.due_ns, 0, sha256, False)
        )
        self._spool.write(frames.Answered(index, now_ns, False, now_ns, 200, "text/event-stream", ""))
        spec = self._deployment.spec
        chunks = openai.Chunks(request, f"sim-{index}", spec.served_model, 0)
        live = Live(request, chunks, spec.tokens_per_chunk, partial(self._end, index))
        self._deployment.live[index] = live
        reads = self._reads[index] = []
        live.attach(lambda event: reads.append((self._now_ns(), event)))
        session = self._sessions[index]
        self._deployment.submit(index, self._clock.now(), request.ids, request.max_tokens, session)

    def _end(self, index: int) -> None:
        """The reply is over; its children may be due. The events written in this very call belong to it."""
        end_ns = self._now_ns()
        del self._deployment.live[index], self._deployment.answers[index]
        self._open.discard(index)
        self._in_window.discard(index)
        reads = self._reads.pop(index)
        self._spool.write(frames.Reads(index, reads))
        self._spool.write(frames.Ended(index, end_ns, "eof", None))
        if self._replies is not None and not self._keep(self._replies, index, reads):
            for child in self._schedule.drop(index):
                self._spool.write(frames.NotSent(child, "parent_failed", None, None, None))
                self._open.discard(child)
                self._replies.done(child)
        for child, times in self._schedule.release(index, end_ns):
            self._wait(child, times)

    def _keep(self, replies: Replies, index: int, reads: list[Read]) -> bool:
        """Keep a reply for live history; whether there is one to go on from."""
        result = interpret(reads, Facts("eof", 200, "text/event-stream"))
        kept = result.outcome == "ok" and keep_reply(replies, index, result, needs_ids=not self._chat)
        replies.done(index)
        return kept


def simulated_salts(repeats: int, seed: int) -> dict[int, str]:
    """Salts of a simulation: by seed, since virtual caches are always fresh and a run must repeat bit for bit."""
    return {repeat: f"simulated-{seed}-{repeat}" for repeat in range(1, repeats + 1)}


def simulate_frame(
    experiment: Experiment,
    *,
    trace: Trace | None = None,
    plan: Plan | None = None,
    arms: Sequence[str] | None = None,
) -> pd.DataFrame:
    """The emulated arms of an experiment in virtual time, in memory: the `requests` table of a run, files apart.

    One repeat of each arm (all repeats of a simulation are equal), in the columns of `runfolder.schema.REQUESTS`;
    hashes of bodies and outputs are null, as no token is made. `trace`: already read (else `workload.trace` is);
    `plan`: already made, and then neither is needed; `arms`: only these. Raises `InputError`.
    """
    import pandas as pd
    import pyarrow as pa

    from pddbench.runner.prepare import arm_setup

    frames_ = []
    plan = plan if plan is not None else _plan_of(experiment, trace)
    for arm in experiment.arm:
        if arms is None or arm.name in arms:
            run = counted_run(arm_setup(arm, experiment, "model"), plan, experiment)
            frames_.append(table(run, arm.name, 1))
    if not frames_:
        return pd.DataFrame()
    out: pd.DataFrame = pa.concat_tables(frames_).to_pandas()
    return out


def _plan_of(experiment: Experiment, trace: Trace | None) -> Plan:
    from pddbench.trace.read import read_as_columns
    from pddbench.workload.plan import make_plan

    work = experiment.workload
    return make_plan(trace if trace is not None else read_as_columns(Path(work.trace), work.format), work)


def counted_run(
    setup: ArmSetup, plan: Plan, experiment: Experiment, observer: observe.Observer = observe.ignore
) -> CountedRun:
    """An arm's run, over; `observer` sees what each role does."""
    if setup.spec is None:
        raise InputError(f"arm {setup.name!r} is not an emulated one: only those can be simulated")
    abandon = experiment.workload.parent_failure == "abandon"
    run = CountedRun(setup.spec, plan, chat=setup.chat, abandon=abandon, observer=observer)
    run.run()
    return run


def save_counted(
    folder: Path, arm: str, repeat: int, run: CountedRun, roles: RoleLog | None = None, gaps: bool = True
) -> None:
    """The Parquet files of a run whose tokens were counted; each is complete before it gets its name.

    Without `gaps` the table `events` has no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pddbench.runfolder.finish import ROWS_A_GROUP
    from pddbench.runfolder.schema import HEALTH, arrow_schema

    name = f"{arm}.{repeat}.parquet"
    parts = {kind: folder / kind / f"{name}.part" for kind in ("health", "events", "requests")}
    for part in parts.values():
        part.parent.mkdir(exist_ok=True)
    with events_writer(parts["events"]) as writer:
        requests = table(run, arm, repeat, _written(run, arm, repeat, writer, ROWS_A_GROUP) if gaps else None)
    pq.write_table(requests, parts["requests"], compression="zstd", row_group_size=ROWS_A_GROUP)
    pq.write_table(pa.table({key: [] for key in HEALTH}, schema=arrow_schema(HEALTH)), parts["health"])
    if roles is not None:
        parts["roles"] = folder / "roles" / f"{name}.part"
        roles.save(parts["roles"], arm, repeat, [request.request_id for request in run.plan.requests], run.t0_ns)
    for part in parts.values():
        part.replace(part.with_suffix(""))


def _written(run: CountedRun, arm: str, repeat: int, writer: Any, group: int) -> Iterator[Chunks]:
    """Each request's chunks, in plan order; they are in `events` when a group of them has passed."""
    import numpy as np

    events: list[ChunkRuns] = []
    for request in run.plan.requests:
        chunks = run.chunks(request.index)
        yield chunks
        gaps_us = np.rint(np.diff(chunks.ns) / 1000).astype(np.int64)
        events.append(ChunkRuns(request.request_id, gaps_us, chunks.tokens, chunks.stages))
        if len(events) == group:
            writer.write_table(chunk_runs_table(events, arm, repeat))
            events.clear()
    writer.write_table(chunk_runs_table(events, arm, repeat))


def spool_arm(
    folder: Path,
    arm: str,
    repeat: int,
    spec: EmulatorSpec,
    plan: Plan,
    bodies: Bodies,
    chat: bool,
    replies: Replies | None = None,
) -> None:
    """Simulate one run and put its Parquet files into the run folder."""
    from pddbench.runfolder.finish import finish_arm, save_arm, spool_path

    save_arm(folder, arm, repeat, 1.0, spec.block_tokens)
    spool = SpoolWriter(spool_path(folder, arm, repeat), arm, repeat, len(plan.requests))
    try:
        simulate_arm(spec, plan, bodies, chat, spool, replies)
    finally:
        spool.close()
    finish_arm(folder, arm, repeat)
