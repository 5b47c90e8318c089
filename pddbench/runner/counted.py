"""The rows of a run whose tokens were counted, as in the run folder of a live one; column by column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pddbench.runner.counting import NEVER_NS, Chunks, CountedRun
from pddbench.workload.requests import Requests, as_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pddbench.deploy.emulator.messages import Finish

    Ints = npt.NDArray[np.int64]

_STAGES = {"p": "tokens_p", "rld": "tokens_rld", "md": "tokens_md", "d": "tokens_md"}
_STAMPS = ("first_token_ns", "second_token_ns", "last_token_ns", "max_gap_ns", "max_gap_token", "tokens_p",
           "tokens_rld", "tokens_md")  # fmt: skip
_CLOSING = ("prompt_tokens", "cached_tokens", "completion_tokens", "handoff_token", "handoff_rounds", "handoff_bytes",
            "kv_wan_bytes", "kv_wan_wire_bytes", "kv_wan_ns")  # fmt: skip
_WORDS = ("pipeline", "handoff_mode", "finish_reason", "outcome", "error")
_SAME = {"first_chunk_ns": "first_token_ns", "user_first_token_ns": "first_token_ns", "sent_ns": "due_ns",
         "first_byte_ns": "due_ns"}  # fmt: skip


class _Columns:
    """Columns being filled: whole numbers (`NEVER_NS`: null) and words."""

    def __init__(self, n: int) -> None:
        import numpy as np

        self.ints: dict[str, Ints] = {}
        for name in (*_STAMPS, *_CLOSING, "chunks", "reply_tokens"):
            self.ints[name] = np.full(n, NEVER_NS, dtype=np.int64)
        self.words: dict[str, list[str | None]] = {name: [None] * n for name in _WORDS}

    def answer(self, index: int, chunks: Chunks) -> None:
        """Stamps of chunks, the largest gap, and tokens by stage."""
        ints, ns = self.ints, chunks.ns
        ints["chunks"][index] = count = len(ns)
        ints["reply_tokens"][index] = 0
        if not count:
            return
        ints["reply_tokens"][index] = chunks.tokens.sum()
        ints["first_token_ns"][index], ints["last_token_ns"][index] = ns[0], ns[-1]
        if count > 1:
            gaps = ns[1:] - ns[:-1]
            largest = int(gaps.argmax())
            ints["second_token_ns"][index] = ns[1]
            ints["max_gap_ns"][index] = gaps[largest]
            ints["max_gap_token"][index] = chunks.tokens[: largest + 1].sum()
        shares, at = {"tokens_p": 0, "tokens_rld": 0, "tokens_md": 0}, 0
        for stage, many in chunks.stages:
            shares[_STAGES[stage]] += int(chunks.tokens[at : at + many].sum())
            at += many
        for name, tokens in shares.items():
            ints[name][index] = tokens

    def closing(self, index: int, run: CountedRun, finish: Finish) -> None:
        """Usage and the facts of the `pdd` extension."""
        handoff, kv = finish.handoff or {}, finish.kv or {}
        values = (run.prompt_tokens[index], finish.cached_tokens, run.output_tokens[index], handoff.get("token"),
                  handoff.get("rounds"), handoff.get("bytes"), kv.get("bytes"), kv.get("wire_bytes"),
                  kv.get("ns"))  # fmt: skip
        for name, value in zip(_CLOSING, values, strict=True):
            if value is not None:
                self.ints[name][index] = value
        words = self.words
        words["pipeline"][index], words["handoff_mode"][index] = finish.pipeline, handoff.get("mode")
        words["outcome"][index], words["finish_reason"][index] = "ok", "length"


def _fill(columns: _Columns, run: CountedRun, index: int, chunks: Chunks) -> None:
    """What happened to a request; hashes of what was never made are left out."""
    words = columns.words
    if not run.was_sent(index):
        words["outcome"][index], words["error"][index] = "not_sent", run.not_sent.get(index, "run_ended")
        return
    columns.answer(index, chunks)
    outcome = run.deployment.outcomes[index]
    if index in run.left:
        words["outcome"][index], words["error"][index] = run.left[index]
    elif outcome.error:
        words["outcome"][index] = "stream_error"
        words["error"][index] = f"the server sent an error: {outcome.error}"
    else:
        assert outcome.finish is not None
        columns.closing(index, run, outcome.finish)


def table(run: CountedRun, arm: str, repeat: int, all_chunks: Iterable[Chunks] | None = None) -> pa.Table:
    """All requests of a run as the `requests` table of a run folder."""
    import numpy as np
    import pyarrow as pa

    from pddbench.runfolder.schema import REQUESTS, SCHEMA_VERSION, arrow_schema

    n = len(run.plan.requests)
    columns = _Columns(n)
    for index, chunks in enumerate((run.chunks(i) for i in range(n)) if all_chunks is None else all_chunks):
        _fill(columns, run, index, chunks)
    ints, sent = columns.ints, np.array([run.was_sent(index) for index in range(n)], dtype=bool)
    for name in ("scheduled_ns", "ready_ns", "due_ns", "ended_ns"):
        values = np.array(getattr(run, name), dtype=np.int64)
        ints["end_ns" if name == "ended_ns" else name] = np.where(values == NEVER_NS, NEVER_NS, values - run.t0_ns)
    for name, same in _SAME.items():
        ints[name] = np.where(sent, ints[same], NEVER_NS)
    for name, value in (("throttle_wait_ns", 0), ("worker", 0), ("connect_wait_ns", 0), ("http_status", 200)):
        ints[name] = np.where(sent, value, NEVER_NS)
    schema = arrow_schema(REQUESTS, {"pddbench_schema_version": str(SCHEMA_VERSION)})
    arrays = _planned(run, arm, repeat, ints)
    for name, (values, missing) in _as_sent(run, ints, sent).items():
        arrays[name] = pa.array(values, type=pa.int32(), mask=missing)
    arrays["stamps"] = pa.array(np.full(n, "user", dtype=object), pa.string(), mask=ints["first_token_ns"] == NEVER_NS)
    for name, words in columns.words.items():
        arrays[name] = pa.array(words, pa.string())
    for field in schema:
        if field.name in ints:
            arrays[field.name] = pa.array(ints[field.name], mask=ints[field.name] == NEVER_NS).cast(field.type)
        elif field.name not in arrays:
            arrays[field.name] = pa.nulls(n, field.type)
    return pa.table({name: arrays[name] for name in schema.names}, schema=schema)


def _planned(run: CountedRun, arm: str, repeat: int, ints: dict[str, Ints]) -> dict[str, pa.Array]:
    """What a row holds before anything happened, and its phase."""
    import numpy as np
    import pyarrow as pa

    columns, block = as_columns(run.plan.requests), run.spec.block_tokens
    n = len(columns)
    ints["turn"], ints["repeat"] = columns.ints("turn"), np.full(n, repeat, dtype=np.int64)
    ints["input_tokens_planned"] = columns.ints("input_tokens")
    ints["output_tokens_planned"] = columns.ints("output_tokens")
    ints["cached_tokens_planned"] = columns.ints("cached_tokens_planned") // block * block
    return {
        "request_id": columns.strings("request_id"),
        "session_id": columns.strings("session_id").take(pa.array(columns.ints("session"))),
        "kind": columns.words("kind"),
        "arm": pa.repeat(arm, n),
        "phase": _phases(run, columns, ints),
        "plan_sha256": columns.strings("plan_sha256"),
    }


def _phases(run: CountedRun, columns: Requests, ints: dict[str, Ints]) -> pa.Array:
    """The phase of each request, by its due time where the plan has a window."""
    import pyarrow as pa

    from pddbench.workload.phases import phases

    if run.plan.window is None:
        return columns.words("phase")
    due, end = ([None if t == NEVER_NS else t for t in ints[name].tolist()] for name in ("due_ns", "end_ns"))
    return pa.array(phases(run.plan, due, end), pa.string())


def _as_sent(
    run: CountedRun, ints: dict[str, Ints], sent: npt.NDArray[np.bool_]
) -> dict[str, tuple[Ints, npt.NDArray[np.bool_]]]:
    """Prompt lengths, possible hits and their ceiling."""
    import numpy as np

    from pddbench.runfolder.finish import as_sent
    from pddbench.trace import hits

    def times(name: str, there: Any = True) -> Ints:
        return np.where(sent & (ints[name] != NEVER_NS) & there, ints[name], hits.NEVER_NS)

    ok = ints["completion_tokens"] != NEVER_NS
    first, ended = times("first_token_ns"), times("end_ns")
    answer = np.where(first == hits.NEVER_NS, ended, first)
    reply = np.where(ok, ints["reply_tokens"], 0)
    return as_sent(run.plan, run.spec.block_tokens, times("due_ns"), first, answer, times("end_ns", ok), reply)
