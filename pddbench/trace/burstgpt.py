"""Reader for BurstGPT: CSV of Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type.

Source: HPMLL/BurstGPT. Later releases add Session ID and Elapsed time (s, to the whole reply); requests of a session
follow each other. A response of 0 tokens is a request that failed.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from pddbench.trace.csvsource import CsvLine, csv_lines
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.nodes import clipped_gap_s, known_counts
from pddbench.trace.source import file_sha256
from pddbench.trace.units import time_unit

COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")


def read_burstgpt(path: Path) -> Trace:
    """The trace in a BurstGPT file."""
    counts: Counter[str] = Counter()
    lines = [(line.required_number("Timestamp"), line) for line in csv_lines(path, COLUMNS)]
    in_file_order = all(a[0] <= b[0] for a, b in pairwise(lines))
    lines.sort(key=lambda item: item[0])
    rows = _rows(lines, counts)
    header = Header(
        source=path.name,
        source_format="burstgpt",
        source_sha256=file_sha256(path),
        id_scope="none",
        assumptions=_assumptions([start_s for start_s, _ in lines], known_counts(counts), in_file_order),
        counts=known_counts(counts),
    )
    return Trace(header, rows)


def _rows(lines: list[tuple[float, CsvLine]], counts: Counter[str]) -> list[Row]:
    last: dict[str, tuple[str, int, float | None]] = {}  # by session: request, turn, end
    rows = []
    for start_s, line in lines:
        name = f"L{line.number}"
        given = line.text("Session ID")
        session = f"session/{given}" if given else name
        before = last.get(session)
        row = Row(
            request_id=name,
            session_id=session,
            turn=before[1] + 1 if before else 0,
            input_tokens=line.integer("Request tokens"),
            output_tokens=line.integer("Response tokens"),
            parents=(before[0],) if before else (),
            start_s=start_s,
            gap_s=_gap_s(start_s, before[2] if before else None, counts) if before else None,
            kind="user" if before else "root",
        )
        elapsed_s = line.number_of("Elapsed time")
        last[session] = (name, row.turn, None if elapsed_s is None else start_s + elapsed_s)
        _count(line, row, counts)
        rows.append(row)
    return rows


def _gap_s(start_s: float, end_s: float | None, counts: Counter[str]) -> float | None:
    return None if end_s is None else clipped_gap_s(start_s, end_s, counts)


def _count(line: CsvLine, row: Row, counts: Counter[str]) -> None:
    counts["failed_requests"] += row.output_tokens == 0
    counts["zero_inputs"] += row.input_tokens == 0
    counts["requests_without_session"] += not line.text("Session ID")
    total = line.text("Total tokens")
    if total and line.integer("Total tokens") != row.input_tokens + row.output_tokens:
        counts["totals_that_do_not_add_up"] += 1


def _assumptions(starts_s: list[float], counts: dict[str, int], in_file_order: bool) -> list[str]:
    said = [
        time_unit(starts_s, "Timestamp", "seconds", faster="milliseconds"),
        "Elapsed time is seconds; a gap is the start minus the previous end (start + elapsed time) of the session",
        "requests of one Session ID follow each other; those without one are sessions of their own",
        "the format tells nothing of shared prefixes: every prompt is wholly fresh, so every hit is 0",
    ]
    if failed := counts.get("failed_requests"):
        said.append(f"requests with a response of 0 tokens, which means that they failed: {failed}, kept with output 0")
    if not in_file_order:
        said.append("timestamps were not ascending: rows are sorted by time, equal times in the order of the file")
    return said
