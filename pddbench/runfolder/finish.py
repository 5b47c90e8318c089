"""From spool to Parquet: one row a planned request, in plan order, without holding a run in memory.

Two passes. The first interprets each request's stream and writes rows and events, row group by row group, to
temporary files in `spool/`. The second adds the hits that were possible, which need everybody's times. Then the
files are renamed into place, and only after that the spool goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pddbench.errors import WorldError
from pddbench.replay.frames import connect_wait_ns
from pddbench.replay.kernel import KernelClock, on_our_clock
from pddbench.replay.spool import RequestFrames
from pddbench.replay.spools import Spools
from pddbench.replay.stream import Facts, StreamResult, interpret
from pddbench.runfolder.events import RequestEvents, events_table, events_writer
from pddbench.runfolder.schema import HEALTH, REQUESTS, SCHEMA_VERSION, arrow_schema
from pddbench.runfolder.spooled import (
    ArmFacts,
    clear,
    load_arm,
    load_plan,
    remove_spool,
    save_arm,
    save_plan,
    spool_path,
    spool_paths,
    spools,
)
from pddbench.workload.phases import phases
from pddbench.workload.plan import Plan, PlannedRequest
from pddbench.workload.requests import as_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Ints = npt.NDArray[np.int64]

__all__ = [
    "clear",
    "finish_arm",
    "load_arm",
    "load_plan",
    "save_arm",
    "save_plan",
    "spool_path",
    "spool_paths",
    "spools",
]

ROWS_A_GROUP = 2048
GROUPS_HELD = 16  # after so many, what was read of the spools may leave memory
KILLED = "the run was killed while this request was in flight"
_AS_SENT = ("input_tokens_sent", "cached_tokens_possible", "cached_tokens_ceiling")
_FROM_STREAM = (
    "chunks", "prompt_tokens", "cached_tokens", "completion_tokens", "max_gap_token", "tokens_p", "tokens_rld",
    "tokens_md", "pipeline", "handoff_mode", "handoff_token", "handoff_rounds", "handoff_bytes", "kv_wan_bytes",
    "kv_wan_wire_bytes", "kv_wan_ns", "finish_reason", "outcome", "error", "output_sha256",
    "stamps",
)  # fmt: skip
_STAMPS = ("first_byte_ns", "first_chunk_ns", "first_token_ns", "second_token_ns", "last_token_ns",
           "kernel_first_token_ns", "user_first_token_ns")  # fmt: skip


def finish_arm(folder: Path, arm: str, repeat: int) -> None:
    """Turn the spool of one run into its Parquet files. Raises `WorldError` when plan, facts or spool are missing."""
    facts, plan = load_arm(folder, arm, repeat), load_plan(folder, repeat)
    found = open_spools(folder, arm, repeat, len(plan.requests))
    try:
        _Finisher(folder, plan, facts, found).run()
    finally:
        found.close()
    remove_spool(folder, arm, repeat)


def open_spools(folder: Path, arm: str, repeat: int, requests: int) -> Spools:
    """What the workers of a run left. Raises `WorldError` when that is nothing."""
    there = spool_paths(folder, arm, repeat)
    if not there:
        raise WorldError(f"{spool_path(folder, arm, repeat)} is missing: nothing of this run was saved")
    return Spools([path for _, path in there], [worker for worker, _ in there], requests)


class _Finisher:
    """One run of an arm on its way from spool to Parquet."""

    def __init__(self, folder: Path, plan: Plan, facts: ArmFacts, found: Spools) -> None:
        self._folder, self._plan, self._facts, self._spools = folder, plan, facts, found
        self._t0_ns = found.t0_ns
        self._block = facts.block_tokens or 1
        self._times = _Times(len(plan.requests))
        self._planned_worker = _planned_workers(plan, facts.workers)

    def run(self) -> None:
        """All three tables; each is complete before it gets its name, `requests` last."""
        self._first_pass()
        self._second_pass()
        self._write("health", HEALTH, self._health_groups())
        for table in ("health", "events", "requests"):
            target = self._folder / table
            target.mkdir(exist_ok=True)
            self._part(table).replace(target / f"{self._facts.arm}.{self._facts.repeat}.parquet")
        self._part("rows").unlink()

    def _part(self, table: str) -> Path:
        return self._folder / "spool" / f"{self._facts.arm}.{self._facts.repeat}.{table}.part"

    def _write(self, table: str, columns: dict[str, str], groups: Iterator[list[dict[str, Any]]]) -> None:
        import pyarrow as pa

        schema = _schema(columns)
        with _writer(self._part(table), schema) as writer:
            for rows in groups:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))

    def _first_pass(self) -> None:
        """Rows without possible hits, and events."""
        with events_writer(self._part("events")) as writer:

            def groups() -> Iterator[list[dict[str, Any]]]:
                for first in range(0, len(self._plan.requests), ROWS_A_GROUP):
                    rows, events = [], []
                    for request in self._plan.requests[first : first + ROWS_A_GROUP]:
                        row, event = self._row(request)
                        rows.append(row)
                        events.append(event)
                    writer.write_table(events_table(events, self._facts.arm, self._facts.repeat, self._facts.speed))
                    yield rows
                    if first // ROWS_A_GROUP % GROUPS_HELD == GROUPS_HELD - 1:
                        self._spools.let_go()

            self._write("rows", REQUESTS, groups())

    def _second_pass(self) -> None:
        """The rows again, with what follows from everybody's times and replies: lengths as sent, hits possible."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = self._times.as_sent(self._plan, self._block)
        phase_of = self._phases()
        schema = _schema(REQUESTS)
        first = 0
        with _writer(self._part("requests"), schema) as writer, pq.ParquetFile(self._part("rows")) as rows:
            for batch in rows.iter_batches(ROWS_A_GROUP):
                table = pa.Table.from_batches([batch])
                for name in _AS_SENT:
                    values, missing = found[name]
                    piece = slice(first, first + table.num_rows)
                    column = pa.array(values[piece], type=pa.int32(), mask=missing[piece])
                    table = table.set_column(table.schema.get_field_index(name), schema.field(name), column)
                phase = pa.array(phase_of[first : first + table.num_rows])
                table = table.set_column(table.schema.get_field_index("phase"), schema.field("phase"), phase)
                writer.write_table(table.cast(schema))
                first += table.num_rows

    def _phases(self) -> list[str]:
        """The phase of each request, by its due time where the plan has a window."""
        import pyarrow.parquet as pq

        due_ns: list[int | None] = []
        end_ns: list[int | None] = []
        if self._plan.window is not None:
            times = pq.read_table(self._part("rows"), columns=["due_ns", "end_ns"])
            due_ns, end_ns = (times.column(name).to_pylist() for name in ("due_ns", "end_ns"))
        return phases(self._plan, due_ns, end_ns)

    def _row(self, request: PlannedRequest) -> tuple[dict[str, Any], RequestEvents]:
        """A request's row and its events."""
        frames, clock, worker = self._spools.request(request.index)
        row = planned_row(request, self._facts, self._block)
        row["worker"] = int(self._planned_worker[request.index]) if worker is None else worker
        event = RequestEvents(request.request_id)
        if frames.handed is None:
            self._not_sent(row, frames)
            return row, event
        result = interpret(on_our_clock(frames.reads, clock), _exchange_facts(frames, clock))
        self._times.note(request.index, frames, result)
        self._sent(row, frames, result)
        event.token_ns = result.token_ns
        event.chunk_tokens, event.stage, event.text_crc = result.chunk_tokens, result.stage, result.text_crc
        return row, event

    def _not_sent(self, row: dict[str, Any], frames: RequestFrames) -> None:
        row["outcome"], row["error"] = "not_sent", "run_killed" if self._spools.killed else "run_ended"
        if frames.not_sent is not None:
            row["error"] = frames.not_sent.reason
            for name in ("scheduled_ns", "ready_ns", "due_ns"):
                row[name] = self._since_t0(getattr(frames.not_sent, name))

    def _sent(self, row: dict[str, Any], frames: RequestFrames, result: StreamResult) -> None:
        handed, answered = frames.handed, frames.answered
        assert handed is not None
        for name in ("scheduled_ns", "ready_ns", "due_ns"):
            row[name] = self._since_t0(getattr(handed, name))
        row["throttle_wait_ns"] = self._scaled(handed.throttle_wait_ns)
        row["body_sha256"] = handed.body_sha256
        if answered is not None:
            row["http_status"] = answered.status
            row["sent_ns"] = self._since_t0(answered.sent_ns)
            row["connect_wait_ns"] = self._scaled(connect_wait_ns(handed, answered))
        row["end_ns"] = self._since_t0(frames.ended.end_ns) if frames.ended is not None else None
        for name in _STAMPS:
            row[name] = self._since_t0(getattr(result, name))
        for name in _FROM_STREAM:
            row[name] = getattr(result, name)
        row["max_gap_ns"] = self._scaled(result.max_gap_ns)

    def _since_t0(self, t_ns: int | None) -> int | None:
        """Wall CLOCK_MONOTONIC to experiment time since t0."""
        return None if t_ns is None else self._scaled(t_ns - self._t0_ns)

    def _scaled(self, wall_ns: int | None) -> int | None:
        return None if wall_ns is None else round(wall_ns * self._facts.speed)

    def _health_groups(self) -> Iterator[list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        for worker, sample in self._spools.health:
            rows.append(
                {
                    "arm": self._facts.arm,
                    "repeat": self._facts.repeat,
                    "t_ns": sample.t_ns - self._t0_ns,
                    "process": "client",
                    "worker": worker,
                    "loop_lag_ns": sample.loop_lag_ns,
                    "cpu_share": sample.cpu_share,
                    "run_delay_ns": sample.run_delay_ns,
                    "rss_bytes": sample.rss_bytes,
                    "in_flight": sample.in_flight,
                    "kernel_gap_ns": sample.kernel_gap_ns,
                    "busy_share": sample.busy_share,
                }
            )
            if len(rows) == ROWS_A_GROUP:
                yield rows
                rows = []
        yield rows


def _planned_workers(plan: Plan, workers: int) -> npt.NDArray[np.int32]:
    """Whose each request was to be: a worker that was killed leaves no word about what it had not sent yet."""
    import numpy as np

    from pddbench.replay.split import split_sessions

    owner = np.zeros(len(plan.requests), dtype=np.int32)
    if workers > 1:
        for worker, part in enumerate(split_sessions(plan, workers)):
            owner[np.asarray(part)] = worker
    return owner


class _Times:
    """When each request was sent, got its first token and ended (wall ns), and what came: for the hits possible."""

    def __init__(self, n: int) -> None:
        import numpy as np

        from pddbench.trace.hits import NEVER_NS

        self._sent, self._first, self._answer, self._end = (np.full(n, NEVER_NS, dtype=np.int64) for _ in range(4))
        self._reply = np.zeros(n, dtype=np.int64)

    def note(self, index: int, frames: RequestFrames, result: StreamResult) -> None:
        """Keep the times of one request."""
        if frames.answered is None or frames.answered.sent_ns is None:
            return
        self._sent[index] = frames.answered.sent_ns
        if frames.ended is not None and result.outcome == "ok":
            self._end[index], self._reply[index] = frames.ended.end_ns, result.reply_tokens
        if result.first_token_ns is not None:
            self._first[index] = self._answer[index] = result.first_token_ns
        elif frames.ended is not None:
            self._answer[index] = frames.ended.end_ns

    def as_sent(self, plan: Plan, block: int) -> dict[str, tuple[Ints, npt.NDArray[np.bool_]]]:
        """Prompt lengths, possible hits and their ceiling."""
        return as_sent(plan, block, self._sent, self._first, self._answer, self._end, self._reply)


def as_sent(
    plan: Plan, block: int, sent_ns: Ints, first_ns: Ints, answer_ns: Ints, end_ns: Ints, reply_tokens: Ints
) -> dict[str, tuple[Ints, npt.NDArray[np.bool_]]]:
    """Prompt lengths, possible hits and their ceiling: values, and where there are none (the request was never sent).

    When each request was sent, had its first token, was answered at all, and ended; `NEVER_NS` for what did not happen.
    """
    import numpy as np

    from pddbench.runfolder.ceiling import ceiling_hits
    from pddbench.trace.hits import NEVER_NS, possible_hits
    from pddbench.workload.history import sent_rows

    rows, donors = sent_rows(plan, reply_tokens), as_columns(plan.requests).ints("prefix_of")
    inputs = rows.input_tokens
    possible = possible_hits(rows, donors, sent_ns, first_ns, plan.basis, end_ns)
    ceiling = ceiling_hits(rows, donors, answer_ns, sent_ns, plan.basis)
    missing = sent_ns == NEVER_NS
    hits = (np.minimum(hits, inputs - 1) // block * block for hits in (possible, ceiling))
    return {name: (values, missing) for name, values in zip(_AS_SENT, (inputs, *hits), strict=True)}


def planned_row(request: PlannedRequest, facts: ArmFacts, block: int) -> dict[str, Any]:
    """What a row holds before anything happened."""
    return {
        "request_id": request.request_id,
        "session_id": request.session_id,
        "turn": request.turn,
        "kind": request.kind,
        "arm": facts.arm,
        "repeat": facts.repeat,
        "phase": request.phase,
        "input_tokens_planned": request.input_tokens,
        "output_tokens_planned": request.output_tokens,
        "cached_tokens_planned": request.cached_tokens_planned // block * block,
        "plan_sha256": request.plan_sha256,
    }


def _exchange_facts(frames: RequestFrames, clock: KernelClock) -> Facts:
    """What the transport knew of an exchange; one without an end was in flight when the run was killed."""
    answered, ended = frames.answered, frames.ended
    facts = Facts("cancelled", error=KILLED)
    if ended is not None:
        facts.ending, facts.error = ended.ending, ended.error  # type: ignore[assignment]  # written from an Ending
    if answered is not None:
        facts.status, facts.headers_ns = answered.status, answered.headers_ns
        facts.content_type, facts.location = answered.content_type, answered.location
        if answered.headers_kernel is not None and answered.headers_ns is not None:
            facts.headers_kernel_ns = clock.monotonic_ns(answered.headers_kernel, answered.headers_ns)
    return facts


def _schema(columns: dict[str, str]) -> pa.Schema:
    return arrow_schema(columns, {"pddbench_schema_version": str(SCHEMA_VERSION)})


def _writer(path: Path, schema: pa.Schema) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetWriter(path, schema, compression="zstd")
