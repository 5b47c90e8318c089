"""More sessions of the same mix: a trace over again, every copy with contexts of its own.

A load search needs as many sessions as its rate times its duration, and must not cut or stretch the mix. A copy's
session shares with its own earlier turns as the original does; what sessions share with one another (a system prompt)
it shares with the original's donor, as a further session of that trace would.
"""

from __future__ import annotations

import msgspec

from pddbench.trace.model import Row, Trace


def cycled(trace: Trace, sessions: int) -> Trace:
    """The first `sessions` sessions (by their recorded start) of the trace repeated end to end."""
    by_session: dict[str, list[Row]] = {}
    for row in trace.rows:
        by_session.setdefault(row.session_id, []).append(row)
    starts = {name: min((row.start_s or 0.0) for row in rows) for name, rows in by_session.items()}
    order = sorted(by_session, key=lambda name: starts[name])
    span_s = max(starts.values()) - min(starts.values()) + 1.0
    rows: list[Row] = []
    whole, rest = divmod(sessions, len(order))
    for copy in range(whole + bool(rest)):
        if copy < whole and copy == 0:
            rows += trace.rows
            continue
        chosen = set(order if copy < whole else order[:rest])
        rows += _copy(trace.rows, chosen, copy, copy * span_s)
    return Trace(trace.header, rows)


def _copy(rows: list[Row], chosen: set[str], copy: int, shift_s: float) -> list[Row]:
    """The rows of the chosen sessions under new names; the first pass keeps its own."""
    if copy == 0:
        kept = {row.request_id for row in rows if row.session_id in chosen}
        # a donor that is not among the chosen sessions would be a hole: its session comes along as a session of its own
        needed = {row.prefix_of for row in rows if row.session_id in chosen and row.prefix_of} - kept
        sessions = {row.session_id for row in rows if row.request_id in needed} | chosen
        return rows if sessions != chosen else [row for row in rows if row.session_id in chosen]
    inside = {row.request_id for row in rows if row.session_id in chosen}
    session_of = {row.request_id: row.session_id for row in rows}

    def renamed(request_id: str) -> str:
        return f"{request_id}#{copy}"

    out = []
    for row in rows:
        if row.session_id not in chosen:
            continue
        donor = row.prefix_of
        if donor is not None and donor in inside and session_of[donor] == row.session_id:
            donor = renamed(donor)
        out.append(
            msgspec.structs.replace(
                row,
                request_id=renamed(row.request_id),
                session_id=f"{row.session_id}#{copy}",
                parents=tuple(renamed(parent) for parent in row.parents),
                start_s=None if row.start_s is None else row.start_s + shift_s,
                prefix_of=donor,
            )
        )
    return out
