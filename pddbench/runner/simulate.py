"""An emulated arm in virtual time: the same plan, schedule, clusters, link and reply code as live, without waiting.

What a client would have received goes into the spool as the same raw reads with virtual stamps, so that everything
after it (rows, trust, table) is the live code too. Bit-for-bit repeatable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pddbench.deploy.emulator import observe, openai
from pddbench.deploy.emulator.live import Live
from pddbench.deploy.emulator.messages import Cancel, Failed, Finish, Message, Tokens
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.virtual import VirtualDeployment
from pddbench.errors import InputError
from pddbench.replay import frames
from pddbench.replay.engine import keep_reply
from pddbench.replay.schedule import Times
from pddbench.replay.spool import SpoolWriter
from pddbench.replay.stream import Ending, Facts, Read, interpret
from pddbench.runfolder.events import ChunkRuns, chunk_runs_table, events_writer
from pddbench.runner.counted import table
from pddbench.runner.counting import CountedRun
from pddbench.runner.virtual_client import Manners, VirtualClient
from pddbench.workload.history import Replies
from pddbench.workload.plan import NS, Plan
from pddbench.workload.requests import as_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from pddbench.runner.counting import Chunks
    from pddbench.runner.prepare import ArmSetup
    from pddbench.trace.model import Trace
    from pddbench.workload.experiment import Experiment

Bodies = Callable[[int], bytes]


def simulate_arm(
    spec: EmulatorSpec,
    plan: Plan,
    bodies: Bodies,
    chat: bool,
    spool: SpoolWriter,
    replies: Replies | None = None,
    manners: Manners | None = None,
) -> int:
    """Replay `plan` on a virtual deployment into `spool`, warm-ups first as live; `replies` as in `ReplayJob`.

    Returns the run's zero on the deployment's clock, ns.

    Live history abandons a session whose reply is lost, whatever `manners` say.
    """
    manners = manners or Manners()
    if replies is not None:
        manners = replace(manners, abandon=True)
    simulation = _Simulation(spec, plan, bodies, chat, spool, replies, manners)
    simulation.run()
    return simulation.t0_ns


class _Deployment(VirtualDeployment):
    """A virtual deployment whose replies become events, as at the router."""

    def __init__(self, spec: EmulatorSpec) -> None:
        super().__init__(spec)
        self.live: dict[int, Live] = {}

    def _on_reply(self, message: Message) -> None:
        if isinstance(message, Tokens):
            for rid, index, token in message.rows:
                if rid in self.live:  # else its client is gone
                    self.live[rid].token(message.stage, index, token)
        elif isinstance(message, Finish | Failed) and message.rid in self.live:
            live = self.live[message.rid]
            if isinstance(message, Finish):
                live.reply.finish = message
                live.close_if_complete()
            else:
                live.fail(message.reason)

    def forget(self, rid: int) -> None:
        """An answer is over."""
        del self.live[rid], self.answers[rid]

    def leave(self, rid: int) -> None:
        """The client of an answer goes away now."""
        self.a.on_message(Cancel(rid))


class _Simulation(VirtualClient):
    """One arm, one repeat."""

    def __init__(
        self,
        spec: EmulatorSpec,
        plan: Plan,
        bodies: Bodies,
        chat: bool,
        spool: SpoolWriter,
        replies: Replies | None,
        manners: Manners,
    ) -> None:
        self._deployment = _Deployment(spec)
        super().__init__(plan, self._deployment.clock, manners)
        self._bodies, self._chat, self._spool, self._replies = bodies, chat, spool, replies
        self._sessions = as_columns(plan.requests).ints("session").tolist()
        self._reads: dict[int, list[Read]] = {}

    def run(self) -> None:
        """See `VirtualClient.run`."""
        super().run()
        self._spool.write(frames.Closed("complete"))

    def _begin_measured(self) -> None:
        self._spool.write(frames.Zero(self.t0_ns))
        self._deployment.begin_events(self.t0_ns / NS)

    def _submit(self, index: int, times: Times) -> None:
        body = self._bodies(index)
        request = openai.parse(body, self._chat)
        sha256, now_ns = hashlib.sha256(body).hexdigest(), times.due_ns
        self._spool.write(
            frames.Handed(index, now_ns, times.scheduled_ns, times.ready_ns, times.due_ns, 0, sha256, False)
        )
        self._spool.write(frames.Answered(index, now_ns, False, now_ns, 200, "text/event-stream", ""))
        spec = self._deployment.spec
        chunks = openai.Chunks(request, f"sim-{index}", spec.served_model, 0)
        live = Live(request, chunks, spec.tokens_per_chunk, partial(self._answered, index))
        self._deployment.live[index] = live
        reads = self._reads[index] = []
        live.attach(lambda event: reads.append((self._now_ns(), event)))
        session = self._sessions[index]
        self._deployment.submit(index, self._clock.now(), request.ids, request.max_tokens, session)

    def _last_byte_ns(self, index: int) -> int:
        reads = self._reads[index]
        return reads[-1][0] if reads else self._flying[index]

    def _answered(self, index: int) -> None:
        """The reply is over. The events written in this very call belong to it."""
        self._end(index, self._now_ns(), "eof", None)

    def _leave(self, index: int, end_ns: int, ending: Ending, error: str) -> None:
        self._deployment.leave(index)
        self._record_end(index, end_ns, ending, error)

    def _end(self, index: int, end_ns: int, ending: Ending, error: str | None) -> None:
        good = self._record_end(index, end_ns, ending, error)
        self._over(index, end_ns, good)

    def _record_end(self, index: int, end_ns: int, ending: Ending, error: str | None) -> bool:
        """Into the spool; whether the session can go on, asked for live history and to abandon sessions."""
        self._deployment.forget(index)
        reads = self._reads.pop(index)
        self._spool.write(frames.Reads(index, reads))
        self._spool.write(frames.Ended(index, end_ns, ending, error))
        if not self.manners.abandon:
            return True
        result = interpret(reads, Facts(ending, 200, "text/event-stream"))
        good = result.outcome == "ok"
        if self._replies is not None:
            good = good and keep_reply(self._replies, index, result, needs_ids=not self._chat)
            self._replies.done(index)
        return good

    def _not_sent(self, index: int, reason: str, times: Times | None) -> None:
        stamps = (None, None, None) if times is None else (times.scheduled_ns, times.ready_ns, times.due_ns)
        self._spool.write(frames.NotSent(index, reason, *stamps))
        if self._replies is not None:
            self._replies.done(index)


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
    run = CountedRun(setup.spec, plan, chat=setup.chat, manners=Manners.of(experiment.workload), observer=observer)
    run.run()
    return run


def save_counted(
    folder: Path, arm: str, repeat: int, run: CountedRun, roles: observe.EventLog | None = None, gaps: bool = True
) -> None:
    """The Parquet files of a run whose tokens were counted; each is complete before it gets its name.

    Without `gaps` the table `events` has no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pddbench.runfolder.finish import ROWS_A_GROUP
    from pddbench.runfolder.roles import save_roles
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
        request_ids = as_columns(run.plan.requests).strings("request_id")
        save_roles(parts["roles"], arm, repeat, [roles.events()], request_ids, run.t0_ns)
    for part in parts.values():
        part.replace(part.with_suffix(""))


def _written(run: CountedRun, arm: str, repeat: int, writer: Any, group: int) -> Iterator[Chunks]:
    """Each request's chunks, in plan order; they are in `events` when a group of them has passed."""
    import numpy as np

    events: list[ChunkRuns] = []
    requests = as_columns(run.plan.requests)
    for index in range(len(requests)):
        chunks = run.chunks(index)
        yield chunks
        gaps_us = np.rint(np.diff(chunks.ns) / 1000).astype(np.int64)
        events.append(ChunkRuns(requests.request_id(index), gaps_us, chunks.tokens, chunks.stages))
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
    manners: Manners | None = None,
) -> int:
    """Simulate one run and put its Parquet files into the run folder; returns its zero, as `simulate_arm`."""
    from pddbench.runfolder.finish import finish_arm, save_arm, spool_path

    save_arm(folder, arm, repeat, 1.0, spec.block_tokens)
    spool = SpoolWriter(spool_path(folder, arm, repeat), arm, repeat, len(plan.requests))
    try:
        t0_ns = simulate_arm(spec, plan, bodies, chat, spool, replies, manners)
    finally:
        spool.close()
    finish_arm(folder, arm, repeat)
    return t0_ns
