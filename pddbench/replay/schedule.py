"""Who is sent when: the rules of scheduled, ready and due times, and the order that parents impose. No I/O.

Wall nanoseconds throughout: a plan's experiment times are divided by `speed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pddbench.workload.plan import Plan, PlannedRequest


@dataclass(slots=True)
class Times:
    """When a request should start (`scheduled`), may (`ready`: its last parent's end), and so is `due`."""

    scheduled_ns: int
    ready_ns: int
    due_ns: int


class Schedule:
    """The requests of one phase, whose zero is `t0_ns`.

    Roots come sorted by start; a child is released by the end of its last parent.
    """

    def __init__(self, plan: Plan, phase: Sequence[int], speed: float) -> None:
        self._requests = plan.requests
        self._timing = plan.timing
        self.t0_ns = 0
        self._speed = speed
        inside = set(phase)
        self._missing: dict[int, int] = {}
        self.children: dict[int, list[int]] = {}
        roots: list[int] = []
        for index in phase:
            parents = [parent for parent in plan.requests[index].parents if parent in inside]
            if parents:
                self._missing[index] = len(parents)
            else:
                roots.append(index)
            for parent in parents:
                self.children.setdefault(parent, []).append(index)
        self.roots = sorted(roots, key=lambda index: plan.requests[index].start_ns or 0)

    def root_times(self, index: int) -> Times:
        """A root is scheduled, ready and due at its start."""
        start_ns = self._start_ns(self._requests[index])
        return Times(start_ns, start_ns, start_ns)

    def release(self, parent: int, end_ns: int) -> list[tuple[int, Times]]:
        """Children whose last parent this was, with their times; a parent's end is that of its answer or failure."""
        out = []
        for child in self.children.get(parent, ()):
            if child not in self._missing:
                continue  # dropped with another parent
            self._missing[child] -= 1
            if not self._missing[child]:
                del self._missing[child]
                out.append((child, self._child_times(self._requests[child], end_ns)))
        return out

    def drop(self, parent: int) -> list[int]:
        """Everything that comes after `parent`, directly or not, and was waiting: it will not be sent."""
        out, stack = [], [parent]
        while stack:
            for child in self.children.get(stack.pop(), ()):
                if self._missing.pop(child, None) is not None:
                    out.append(child)
                    stack.append(child)
        return out

    def _child_times(self, request: PlannedRequest, end_ns: int) -> Times:
        if self._timing == "trace" and request.start_ns is not None:
            scheduled_ns = self._start_ns(request)
        elif self._timing == "none":
            scheduled_ns = end_ns
        else:
            scheduled_ns = end_ns + round(request.gap_ns / self._speed)
        return Times(scheduled_ns, end_ns, max(scheduled_ns, end_ns))

    def _start_ns(self, request: PlannedRequest) -> int:
        return self.t0_ns + round((request.start_ns or 0) / self._speed)
