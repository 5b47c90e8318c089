"""Reader for TraceLab: rounds of coding agents as JSON lines (round_trace.jsonl), or its replay CSVs.

Source: uw-syfi/TraceLab. `prefix_tokens` (CSV: `prefix_len`) is what the provider's own cache hit: the planned hits of
an infinite cache are then the *real* hits of the provider's finite one, a lower bound of what the prompts share. A hit
needs a donor: the round before in the session, or the latest one long enough. What was hit with no such round in the
file (the system prompt on a first round) is fresh here, and counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from pddbench.errors import TraceError
from pddbench.trace.csvsource import csv_lines
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.nodes import Node, clipped_gap_s, in_order, known_counts
from pddbench.trace.source import INT32_MAX, decode, file_sha256, head, numbered_lines
from pddbench.trace.stamps import NS_PER_S, parse_stamp

MS_PER_S = 1000
CSV_COLUMNS = ("round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
_INPUT_EVENTS = ("user_message", "tool_result")
Tokens = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class _Event(msgspec.Struct):
    event_type: str
    timestamp: str


class _Line(msgspec.Struct):
    session_id: Annotated[str, msgspec.Meta(min_length=1)]
    round_index: Tokens
    input_tokens_total: Tokens
    prefix_tokens: Tokens
    output_tokens: Tokens
    round_id: str = ""
    newly_append_tokens: Tokens | None = None
    timing_events: list[_Event] = []
    first_input_event_type: str | None = None


@dataclass
class _Round:
    node: Node
    hit_tokens: int
    end_s: float | None


def read_tracelab(path: Path) -> Trace:
    """The trace in a TraceLab file, JSON lines or CSV."""
    counts: Counter[str] = Counter()
    is_json = head(path).lstrip()[:1] == b"{"
    rounds = _json_rounds(path, counts) if is_json else _csv_rounds(path, counts)
    rows = _rows(rounds, path, counts)
    header = Header(
        source=path.name,
        source_format="tracelab",
        source_sha256=file_sha256(path),
        licence="CC-BY-4.0 (TraceLab, SyFI Lab, University of Washington)",
        id_scope="session",
        assumptions=_assumptions(is_json, known_counts(counts)),
        counts=known_counts(counts),
    )
    return Trace(header, rows)


def _json_rounds(path: Path, counts: Counter[str]) -> list[_Round]:
    decoder = msgspec.json.Decoder(_Line)
    found = []
    for number, raw in numbered_lines(path):
        line = decode(decoder, raw, path, number)
        if line.newly_append_tokens not in (None, line.input_tokens_total - line.prefix_tokens):
            problem = f"is not input_tokens_total - prefix_tokens = {line.input_tokens_total - line.prefix_tokens}"
            raise TraceError(path, number, "newly_append_tokens", problem)
        found.append((number, line, *_times_ns(line, path, number)))
    zero_ns = min((start for *_, start, _ in found if start is not None), default=0)
    found.sort(key=lambda item: item[1].round_index)  # stable: a round that is there twice keeps the file's order
    rounds: list[_Round] = []
    last: dict[str, int] = {}
    for number, line, start_ns, end_ns in found:
        start_s = None if start_ns is None else (start_ns - zero_ns) / NS_PER_S
        end_s = None if end_ns is None else (end_ns - zero_ns) / NS_PER_S
        previous = last.get(line.session_id)
        if previous is None and start_s is None:
            raise TraceError(path, number, "timing_events", "a session's first round needs an event to start at")
        node = Node(
            request_id=f"{line.session_id}/{line.round_index}/{line.round_id or number}",
            session_id=line.session_id,
            turn=line.round_index,
            input_tokens=line.input_tokens_total,
            output_tokens=line.output_tokens,
            line=number,
            start_s=start_s,
            parents=[] if previous is None else [previous],
            kind="root" if previous is None else "tool" if line.first_input_event_type == "tool_result" else "user",
        )
        if previous is not None:
            before_s = rounds[previous].end_s
            known = start_s is not None and before_s is not None
            node.gap_s = clipped_gap_s(start_s or 0.0, before_s or 0.0, counts) if known else None
            counts["unknown_gaps"] += not known
        last[line.session_id] = len(rounds)
        rounds.append(_Round(node, line.prefix_tokens, end_s))
    return rounds


def _times_ns(line: _Line, path: Path, number: int) -> tuple[int | None, int | None]:
    """When the round was sent (its last input) and when it ended (its last event of another kind)."""
    inputs: list[int] = []
    others: list[int] = []
    for i, event in enumerate(line.timing_events):
        stamp = parse_stamp(event.timestamp)
        if stamp is None:
            raise TraceError(path, number, f"timing_events[{i}].timestamp", "is no date and time")
        (inputs if event.event_type in _INPUT_EVENTS else others).append(stamp.ns)
    start = max(inputs) if inputs else min(others, default=None)
    return start, max(others, default=None)


def _csv_rounds(path: Path, counts: Counter[str]) -> list[_Round]:
    rounds: list[_Round] = []
    last: dict[str, tuple[int, int, float]] = {}  # by session: place, round, wait after it
    for line in csv_lines(path, CSV_COLUMNS):
        session = line.text("session_id") or line.text("id")
        if not session:
            raise line.fail("session_id", "is missing or empty")
        previous = last.get(session)
        turn = line.integer("round_idx")
        if previous and turn <= previous[1]:
            raise line.fail("round_idx", f"{turn} comes after {previous[1]} in session {session!r}")
        arrival_ms = line.number_of("arrival_time")
        counts["sessions_without_start"] += previous is None and arrival_ms is None
        inputs = line.integer("prefix_len") + line.integer("input_len")
        if inputs > INT32_MAX:
            raise line.fail("input_len", f"prefix_len + input_len is {inputs}")
        node = Node(
            request_id=f"{session}/{turn}",
            session_id=session,
            turn=turn,
            input_tokens=inputs,
            output_tokens=line.integer("output_len"),
            line=line.number,
            start_s=None if previous else (arrival_ms or 0.0) / MS_PER_S,
            gap_s=previous[2] if previous else None,
            parents=[previous[0]] if previous else [],
            kind="tool" if previous else "root",
        )
        last[session] = (len(rounds), turn, line.required_number("tool_wait_after_ms") / MS_PER_S)
        rounds.append(_Round(node, line.integer("prefix_len"), None))
    return rounds


def _rows(rounds: list[_Round], path: Path, counts: Counter[str]) -> list[Row]:
    nodes = [each.node for each in rounds]
    by_session: dict[str, list[Row]] = {}
    rows = []
    for i in in_order(nodes, path):
        node = nodes[i]
        earlier = by_session.setdefault(node.session_id, [])
        donor, shared = _donor(earlier, min(rounds[i].hit_tokens, node.input_tokens))
        counts["hit_tokens_reported"] += rounds[i].hit_tokens
        counts["hit_tokens_without_donor"] += rounds[i].hit_tokens - shared
        counts["rows_with_hit_tokens_without_donor"] += rounds[i].hit_tokens > shared
        counts["zero_outputs"] += node.output_tokens == 0
        row = Row(
            request_id=node.request_id,
            session_id=node.session_id,
            turn=node.turn,
            input_tokens=node.input_tokens,
            output_tokens=node.output_tokens,
            parents=tuple(nodes[parent].request_id for parent in node.parents),
            start_s=node.start_s,
            gap_s=node.gap_s,
            prefix_of=donor.request_id if donor is not None else None,
            prefix_tokens=shared,
            kind=node.kind,
        )
        earlier.append(row)
        rows.append(row)
    return rows


def _donor(earlier: list[Row], hit_tokens: int) -> tuple[Row | None, int]:
    """The latest round whose context holds the hit, else the longest context and as much as it has."""
    if not earlier or not hit_tokens:
        return None, 0
    for row in reversed(earlier):
        if row.input_tokens + row.output_tokens >= hit_tokens:
            return row, hit_tokens
    longest = max(earlier, key=lambda row: row.input_tokens + row.output_tokens)
    return longest, longest.input_tokens + longest.output_tokens


def _assumptions(is_json: bool, counts: dict[str, int]) -> list[str]:
    said = [
        "prefix tokens are what the provider's cache really hit (in part of replies too): a lower bound of what the "
        "prompts share, taken as the planned hit",
        "their donor is the round before in the session, or the latest that is long enough",
    ]
    if is_json:
        said.append("a round starts at its last user message or tool result and ends at its last other event")
        said.append("sessions keep their wall-clock distance: the span may be months (arrival = poisson does without)")
    else:
        said.append("prompt = prefix_len + input_len; arrival_time and tool_wait_after_ms are milliseconds")
    if rows := counts.get("rows_with_hit_tokens_without_donor"):
        tokens = counts["hit_tokens_without_donor"]
        said.append(f"hit tokens without a donor in their session: {tokens} (rounds: {rows}), they are fresh here")
    if starts := counts.get("sessions_without_start"):
        said.append(f"sessions without arrival_time: {starts}, they start at 0 (use arrival = poisson)")
    return said
