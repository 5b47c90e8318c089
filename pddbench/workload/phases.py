"""`duration_s`: which requests are measured, cut by when they were due. A pure function of the plan and of times.

A window over arrivals cuts sessions, so what is inside is another mix than what is outside; the report shows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pddbench.workload.plan import Plan


class Window(msgspec.Struct, frozen=True):
    """Requests due in [from_ns, until_ns) of experiment time since t0 are measured."""

    from_ns: int
    until_ns: int

    def phase(self, due_ns: int) -> str:
        """`warmup` before the window, `measure` in it, `drain` after it."""
        return "warmup" if due_ns < self.from_ns else "measure" if due_ns < self.until_ns else "drain"


def phases(plan: Plan, due_ns: Sequence[int | None], end_ns: Sequence[int | None]) -> list[str]:
    """The phase of every request of a run, by its due time; without a window as planned.

    `due_ns` and `end_ns` as in the rows (experiment time since t0, None: did not happen). A request that was never due,
    because an earlier one of its session failed or the run ended, has the phase of the time at which it would have been
    due at the earliest: its last parent's end (or that one's earliest due) and its gap. What the plan has as warm-up
    stays warm-up.
    """
    if plan.window is None:
        return [request.phase for request in plan.requests]
    earliest: list[int] = []
    out: list[str] = []
    for request, due, _ in zip(plan.requests, due_ns, end_ns, strict=True):
        if due is None:
            ready = max((_end(end_ns[p], earliest[p]) for p in request.parents), default=0)
            start = request.start_ns if request.start_ns is not None else ready + request.gap_ns
            due = max(start, ready)
        earliest.append(due)
        out.append(plan.window.phase(due) if request.phase == "measure" else request.phase)
    return out


def _end(end_ns: int | None, earliest_ns: int) -> int:
    return earliest_ns if end_ns is None else end_ns
