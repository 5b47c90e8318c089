"""Whether the unit a reader took times for can be believed: milliseconds read as seconds run 1000 times too slow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pddbench.errors import TraceError

MOST_S = 4e9  # a century in seconds, epoch stamps included; more overflows nanoseconds
FAST_RATE, SLOW_RATE = 1000.0, 1 / 3600  # starts a second outside which the unit of time is doubted


def time_unit(starts_s: Sequence[float], field: str, unit: str, slower: str = "", faster: str = "") -> str:
    """What a field was taken for and the rate that follows; a warning if it is implausible.

    `starts_s` are recorded starts in seconds; `slower` and `faster` name the units that it may be if starts come
    implausibly fast or slowly.
    """
    span_s = max(starts_s) - min(starts_s)
    said = f"{field} read as {unit}: {len(starts_s)} requests in {span_s:g} s"
    if len(starts_s) < 3 or span_s == 0:
        return said
    rate = (len(starts_s) - 1) / span_s
    said += f", {rate:.3g} a second"
    if rate > FAST_RATE:
        hint = f": if they are {slower}, multiply them by 1000" if slower else ""
        return f"warning: {said}, which is implausibly fast{hint}"
    if rate < SLOW_RATE:
        hint = f": if they are {faster}, divide them by 1000" if faster else ""
        return f"warning: {said}, which is implausibly slow{hint}"
    return said


def check_seconds(seconds: float | None, path: Path | str, line: int | None, field: str) -> None:
    """Raise `TraceError` for a time that no timer can be set to: not a number, or more than a century."""
    if seconds is not None and not abs(seconds) <= MOST_S:
        raise TraceError(path, line, field, f"{seconds:g} is not a number of seconds up to {MOST_S:g}")
