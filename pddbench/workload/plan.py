"""The plan: the exact list of requests that a trace and a workload come to. Pure: no clock, no network, seeded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pddbench.errors import InputError
from pddbench.trace.model import Trace
from pddbench.workload.experiment import Workload
from pddbench.workload.phases import Window
from pddbench.workload.requests import PlannedRequest, Requests, as_columns

if TYPE_CHECKING:
    from pddbench.trace.columns import Columns
    from pddbench.trace.hits import Basis

__all__ = ["BEFORE_START", "NS", "Plan", "PlannedRequest", "make_plan", "planned_duration_s"]

NS = 1_000_000_000
BEFORE_START = ("warmup", "prime")  # kinds of requests that are sent, and have ended, before t0


class Plan(msgspec.Struct):
    """All requests in trace order (donors and parents first), and what was done to the trace to get them.

    Warm-up requests, if any, come last (they share no prefix with the measured ones) and are sent first.
    """

    requests: Sequence[PlannedRequest]
    timing: str
    sha256: str
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)
    window: Window | None = None  # of due times that are measured; None: whole sessions
    history: str = "recorded"  # or "live": replies as they come, not as planned, are part of later prompts

    @property
    def basis(self) -> Basis:
        """What planned and possible hits count: recorded replies are not the engine's own, so they never hit."""
        return "prompt+output" if self.history == "live" else "prompt"

    @property
    def measured(self) -> list[PlannedRequest]:
        """The requests of phase `measure`."""
        return [request for request in self.requests if request.phase == "measure"]

    @property
    def count_measured(self) -> int:
        """How many those are."""
        return int(as_columns(self.requests).is_one_of("phase", ("measure",)).sum())


def make_plan(trace: Trace | Columns, work: Workload) -> Plan:
    """The plan of `work` on `trace`: who is sent when, after whom, sharing which tokens. Raises `InputError`.

    A trace in columns is used up: what the plan needs no more is let go on the way.
    """
    from pddbench.trace.columns import columns_of
    from pddbench.workload.extra import add_primes, add_warmups, leave_out_first
    from pddbench.workload.rows import planned_rows

    counts: Counter[str] = Counter()
    notes: list[str] = []
    if not len(trace.rows if isinstance(trace, Trace) else trace):
        raise InputError("the trace has no requests: nothing to replay")
    columns = columns_of(trace) if isinstance(trace, Trace) else trace
    requests = planned_rows(columns, work, counts, notes)
    measured = len(requests)
    if work.cache == "steady":
        leave_out_first(requests, work.warmup_sessions)
    if work.cache == "primed":
        add_primes(requests, "prompt+output" if work.history == "live" else "prompt")
        counts["primes"] = len(requests) - measured
    add_warmups(requests, work.warmups)
    counts["warmups"] = len(requests) - measured - counts["primes"]
    window = _window(work, requests)
    if window is not None:
        notes.append(
            f"measured is what is due from {window.from_ns / NS:g} s to {window.until_ns / NS:g} s; after that "
            "requests go on until the last of those has ended, and what is left is not sent"
        )
    found = {name: n for name, n in counts.items() if n}
    return Plan(requests.sealed(), work.timing, requests.sha256(), found, notes, window, work.history)


def _window(work: Workload, requests: Requests) -> Window | None:
    """The measured window. Raises `InputError` when all requests are due before it begins (without service times)."""
    if work.duration_s is None:
        return None
    from_s = work.warmup_s if work.warmup_s is not None else work.ramp_s or 0.0
    last_s = _last_due_ns(requests) / NS
    if last_s < from_s:
        raise InputError(
            f"the measured window begins at {from_s:g} s, but the last request is due at about {last_s:.6g} s: lower "
            "warmup_s, or give a longer trace"
        )
    return Window(round(from_s * NS), round((from_s + work.duration_s) * NS))


def planned_duration_s(plan: Plan) -> float:
    """Experiment seconds the plan takes at least: starts and think times, without any service time.

    With a window no longer than that: what is not due by then is not sent.
    """
    last_ns = _last_due_ns(as_columns(plan.requests))
    return (last_ns if plan.window is None else min(last_ns, plan.window.until_ns)) / NS


def _last_due_ns(requests: Requests) -> int:
    """When the last request is due if all are answered at once."""
    ends_ns = [0] * len(requests)
    timed = ~requests.is_one_of("kind", BEFORE_START)  # the others have ended before t0
    for i in timed.nonzero()[0].tolist():
        start_ns = requests.start_ns(i)
        ready = max([ends_ns[parent] for parent in requests.parents(i)], default=0)
        ends_ns[i] = max(ready + requests.gap_ns(i) if start_ns is None else start_ns, ready)
    return max(ends_ns, default=0)
