"""The rules of the canonical trace: a violation names file, line and field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pddbench.errors import TraceError
from pddbench.text import printable
from pddbench.trace.model import Row
from pddbench.trace.source import INT32_MAX
from pddbench.trace.units import MOST_S

Fail = Callable[[str, str], TraceError]


def validate_rows(rows: Sequence[Row], path: Path | str = "trace", first_line: int = 1) -> None:
    """Raise `TraceError` at the first row that breaks a rule; row i is on line `first_line + i`.

    Ids are unique; parents and the donor are earlier rows (so there is no cycle), parents of the same session; roots
    have a start; lengths are 32-bit and not negative; a prefix is no longer than the prompt and the donor's context.
    """
    seen: dict[str, Row] = {}
    later = {row.request_id for row in rows}
    for line, row in enumerate(rows, start=first_line):

        def fail(field: str, problem: str, line: int = line) -> TraceError:
            return TraceError(path, line, field, problem)

        check_row(row, seen, later, fail)
        seen[row.request_id] = row


def check_row(row: Row, seen: dict[str, Row], known: set[str], fail: Fail) -> None:
    """Raise what `fail` makes of the first rule that a row breaks.

    `seen`: the earlier rows (at least those with this id, or named by it), `known`: names that are in the file.
    """
    if row.request_id in seen:
        raise fail("request_id", f"{_show(row.request_id)} is already used by an earlier row")
    check_numbers(row, fail)
    _check_parents(row, seen, known, fail)
    _check_prefix(row, seen, known, fail)


def _show(name: str) -> str:
    return repr(printable(name, 80))


def check_numbers(row: Row, fail: Fail) -> None:
    """Raise what `fail` makes of the first rule that a row breaks by itself, without regard to others."""
    for name in ("request_id", "session_id", "kind"):
        if not getattr(row, name):
            raise fail(name, "is empty")
    for name in ("turn", "input_tokens", "output_tokens", "prefix_tokens"):
        if not 0 <= (value := getattr(row, name)) <= INT32_MAX:
            raise fail(name, f"{value} is not between 0 and {INT32_MAX}")
    for name in ("start_s", "gap_s"):
        if (seconds := getattr(row, name)) is not None and not abs(seconds) <= MOST_S:
            raise fail(name, f"{seconds} is not a number of seconds up to {MOST_S:g}")
    if row.start_s is not None and row.start_s < 0:
        raise fail("start_s", f"{row.start_s:g} is before the trace's zero")
    if not row.parents and row.start_s is None:
        raise fail("start_s", "is missing: a row without parents (a root) needs its recorded start")


def _check_parents(row: Row, seen: dict[str, Row], known: set[str], fail: Fail) -> None:
    if len(set(row.parents)) < len(row.parents):
        raise fail("parents", "names the same request twice")
    for parent in row.parents:
        if parent not in seen:
            raise fail("parents", _not_earlier(parent, row, known))
        if seen[parent].session_id != row.session_id:
            raise fail("parents", f"{_show(parent)} belongs to another session, {_show(seen[parent].session_id)}")


def _check_prefix(row: Row, seen: dict[str, Row], known: set[str], fail: Fail) -> None:
    if row.prefix_of is None:
        if row.prefix_tokens:
            raise fail("prefix_tokens", f"is {row.prefix_tokens}, but prefix_of names no request")
        return
    if row.prefix_of not in seen:
        raise fail("prefix_of", _not_earlier(row.prefix_of, row, known))
    if row.prefix_tokens > row.input_tokens:
        raise fail("prefix_tokens", f"{row.prefix_tokens} is more than the row's own {row.input_tokens} input tokens")
    donor = seen[row.prefix_of]
    if row.prefix_tokens > donor.input_tokens + donor.output_tokens:
        context = f"{donor.input_tokens} + {donor.output_tokens}"
        raise fail("prefix_tokens", f"{row.prefix_tokens} is more than the {context} tokens of {_show(row.prefix_of)}")


def _not_earlier(name: str, row: Row, known: set[str]) -> str:
    if name == row.request_id:
        return f"{_show(name)} is the row itself"
    return f"{_show(name)} " + (
        "comes later in the file, but must come before" if name in known else "is not in the file"
    )
