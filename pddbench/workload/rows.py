"""From a trace in columns to the requests of a plan, a column at a time: a million of them in some seconds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pddbench.errors import InputError
from pddbench.trace.columns import Columns, numbers_of, valid
from pddbench.trace.hits import Basis, hits_in_order
from pddbench.workload.arrival import session_starts_s
from pddbench.workload.experiment import Workload
from pddbench.workload.identity import plan_digests
from pddbench.workload.requests import NO_START, Requests

LONGEST_S = 4e9
_NS = 1_000_000_000
Ints = npt.NDArray[np.int64]


def planned_rows(columns: Columns, work: Workload, counts: Counter[str], notes: list[str]) -> Requests:
    """The requests that are measured, in trace order; what was done to the trace is counted and noted.

    `columns` are used up. Raises `InputError`.
    """
    _limit(columns, work.limit_requests, notes)
    _check(columns)
    columns.forget_names()
    has_parents, session = columns.parent_counts > 0, columns.session
    ints: dict[str, Any] = {
        "turn": _narrow(columns.turn),
        "session": session,
        "parents": columns.parents,
        "parent_ends": np.cumsum(columns.parent_counts),
        "prefix_of": columns.donors,
        "prefix_tokens": _narrow(columns.prefix_tokens),
        "input_tokens": _narrow(columns.input_tokens),
        "output_tokens": np.maximum(_narrow(columns.output_tokens), np.int32(1)),
    }
    if work.history == "live":
        ints["prefix_tokens"], ints["prefix_of"] = _own_replies(columns, session, counts, notes)
    counts["clamped_outputs"] = int((columns.output_tokens == 0).sum())
    columns.forget("turn", "prefix_tokens", "input_tokens", "output_tokens", "parents")
    ints["start_ns"] = _start_times_ns(columns, session, has_parents, work, notes)
    ints["gap_ns"] = _gaps_ns(columns, has_parents, work, counts)
    columns.forget("start_s", "gap_s")
    basis: Basis = "prompt+output" if work.history == "live" else "prompt"
    shared = [ints[name].astype(np.int64) for name in ("prefix_tokens", "input_tokens", "prefix_of")]
    hits = hits_in_order(shared[0], shared[1], shared[2], basis)
    ints["cached_tokens_planned"] = _narrow(np.minimum(hits, shared[1] - 1))
    del hits, shared, has_parents
    kinds = columns.table["kind"].combine_chunks().dictionary_encode()
    words = kinds.dictionary.to_pylist()
    words += [] if "measure" in words else ["measure"]
    ints["kind"] = numbers_of(kinds.indices, np.int32)
    ints["phase"] = np.full(len(columns), words.index("measure"), dtype=np.int32)
    sessions = _texts(pa.chunked_array([pc.unique(columns.table["session_id"])]))
    columns.forget("kind", "session_id")
    ids = _texts(columns.table["request_id"])
    columns.forget("request_id")
    names = ("prefix_of", "prefix_tokens", "input_tokens", "output_tokens")
    digests = plan_digests(*ids, *(ints[name] for name in names))
    return Requests.of_columns(ints, {"request_id": ids, "session_id": sessions}, digests, words)


def _narrow(values: Ints) -> npt.NDArray[np.int32]:
    return values.astype(np.int32)


def _limit(columns: Columns, limit: int | None, notes: list[str]) -> None:
    """Only the first `limit` rows, said aloud: a workload is never cut silently."""
    n = len(columns)
    if limit is None or limit >= n:
        return
    session = columns.session
    whole = np.bincount(session)
    kept = np.bincount(session[:limit], minlength=len(whole))
    cut_off = int(((kept > 0) & (kept < whole)).sum())
    notes.append(f"only the first {limit} of {n} requests of the trace; {cut_off} sessions cut short")
    columns.keep_first(limit)


def _check(columns: Columns) -> None:
    empty = np.flatnonzero(columns.input_tokens < 1)
    if len(empty):
        name = _name(columns, int(empty[0]))
        raise InputError(f"request {name!r} has no input tokens: a prompt needs at least one")


def _name(columns: Columns, row: int) -> str:
    name: str = columns.table["request_id"][row].as_py()
    return name


def _start_times_ns(
    columns: Columns, session: npt.NDArray[np.int32], has_parents: npt.NDArray[np.bool_], work: Workload,
    notes: list[str],
) -> Ints:  # fmt: skip
    """Scheduled starts from t0: of roots, or of every row with `timing = "trace"`; `NO_START` where parents decide."""
    needs = ~has_parents | (work.timing == "trace")
    recorded = columns.seconds("start_s")
    known = valid(columns.table["start_s"])
    for row in np.flatnonzero(needs & ~known)[:1].tolist():
        why = "timing = 'trace' needs; use timing = 'think'" if has_parents[row] else "a root needs"
        raise InputError(f"request {_name(columns, row)!r} has no recorded start_s, which {why}")
    first = np.full(int(session.max()) + 1, np.inf)
    np.minimum.at(first, session[known], recorded[known])
    some, place = np.unique(session[known], return_index=True)
    some = some[np.argsort(place)]  # sessions as they first occur with a start
    order = some[np.argsort(first[some], kind="stable")]
    zero = float(first[order[0]]) if len(order) else 0.0
    if zero > 0 and work.arrival == "trace":
        notes.append(f"the recorded starts begin at {zero:g} s; the replay begins at once")
    starts = np.zeros(len(first))
    starts[order] = session_starts_s(work, (first[order] - zero).tolist())
    with np.errstate(all="ignore"):
        seconds = starts[session] + (recorded - first[session]) * work.time_scale
    seconds[~needs] = 0
    out = _ns(columns, seconds, "the start of request")
    out[~needs] = NO_START
    return out


def _gaps_ns(columns: Columns, has_parents: npt.NDArray[np.bool_], work: Workload, counts: Counter[str]) -> Ints:
    """Wall gaps after the last parent: min(gap, idle cap) x time scale; unknown and negative ones are 0, counted."""
    if work.timing != "think":
        return np.zeros(len(columns), dtype=np.int64)
    gaps = columns.seconds("gap_s")
    known = valid(columns.table["gap_s"])
    counts["unknown_gaps"] = int((has_parents & ~known).sum())
    counts["negative_gaps"] = int((has_parents & known & (gaps < 0)).sum())
    gaps = np.where(has_parents & known & (gaps > 0), gaps, 0.0)
    if work.idle_cap_s is not None:
        counts["capped_gaps"] = int((gaps > work.idle_cap_s).sum())
        gaps = np.minimum(gaps, work.idle_cap_s)
    return _ns(columns, gaps * work.time_scale, "the wait before request")


def _ns(columns: Columns, seconds: npt.NDArray[np.float64], what: str) -> Ints:
    """Seconds as nanoseconds. Raises `InputError` beyond what a timer can be set to."""
    for row in np.flatnonzero(~(seconds <= LONGEST_S))[:1].tolist():
        raise InputError(
            f"{what} {_name(columns, row)!r} comes to {seconds[row]:g} s, more than any timer can be set to "
            f"({LONGEST_S:g} s): use a smaller time_scale, or a larger session_rate"
        )
    return np.rint(seconds * _NS).astype(np.int64)


def _own_replies(
    columns: Columns, session: npt.NDArray[np.int32], counts: Counter[str], notes: list[str]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Live history: no prompt holds a reply of a request that it does not wait for; what that changes is said."""
    from pddbench.workload.history import only_own_replies

    before, inputs = columns.prefix_tokens, columns.input_tokens
    prefix, donors = (np.array(column, dtype=np.int32) for column in only_own_replies(columns, session.tolist()))
    live = int(((donors >= 0) & (prefix > inputs[donors])).sum())
    cut = int((prefix < before).sum())
    counts["prompts_with_replies"], counts["cut_shared_replies"] = live, cut
    notes.append(
        "live history: the endpoint's own replies go into later prompts, so arms do not get the same bytes, and a "
        "reply of another length than planned changes the prompts after it (column input_tokens_sent)"
    )
    if not live:
        notes.append(
            "no prompt of this trace goes on from a reply (its format may not tell where replies are), so live history "
            "changes nothing but that sessions end at a failure"
        )
    if cut:
        notes.append(
            f"{cut} prompts shared the reply of a request that they do not wait for: {int((before - prefix).sum())} "
            "tokens of them are fresh instead"
        )
    return prefix, donors


def _texts(names: Any) -> tuple[bytearray, Ints]:
    """Strings as UTF-8, one behind the other, and where each ends."""
    data = bytearray()
    for chunk in names.chunks:
        _, offsets, content = chunk.buffers()
        ends = np.frombuffer(offsets, dtype=np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        if len(chunk) and content is not None:
            data += memoryview(content)[ends[0] : ends[-1]]
    return data, np.cumsum(numbers_of(pc.binary_length(names), np.int32), dtype=np.int64)
