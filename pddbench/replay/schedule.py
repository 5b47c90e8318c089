"""Who is sent when: the rules of scheduled, ready and due times, and the order that parents impose. No I/O.

Wall nanoseconds throughout: a plan's experiment times are divided by `speed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pddbench.workload.plan import BEFORE_START, Plan
from pddbench.workload.requests import as_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(slots=True)
class Times:
    """When a request should start (`scheduled`), may (`ready`: its last parent's end), and so is `due`."""

    scheduled_ns: int
    ready_ns: int
    due_ns: int


def phases(plan: Plan, part: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Those of `part` that are sent before the start, and those that are not; both ascending."""
    import numpy as np

    early = as_columns(plan.requests).is_one_of("kind", BEFORE_START)
    indices = np.sort(np.asarray(part, dtype=np.int64))
    return indices[early[indices]].data, indices[~early[indices]].data


class Schedule:
    """The requests of one phase, whose zero is `t0_ns`.

    Roots come sorted by start; a child is released by the end of its last parent.
    """

    def __init__(self, plan: Plan, phase: Sequence[int], speed: float) -> None:
        import numpy as np

        self._requests = as_columns(plan.requests)
        self._timing = plan.timing
        self.t0_ns = 0
        self._speed = speed
        n = len(self._requests)
        inside = np.zeros(n, dtype=bool)
        inside[np.asarray(phase, dtype=np.int64)] = True
        parents, children = self._requests.edges()
        both = inside[parents] & inside[children]
        self.children = _Children(parents[both], children[both], n)
        missing = np.bincount(children[both], minlength=n)
        self._missing = missing.data  # parents that have not ended
        roots = np.flatnonzero(inside & (missing == 0))
        starts = np.maximum(self._requests.ints("start_ns")[roots], 0)
        self.roots: Sequence[int] = roots[np.argsort(starts, kind="stable")].data

    def root_times(self, index: int) -> Times:
        """A root is scheduled, ready and due at its start."""
        start_ns = self._start_ns(index)
        return Times(start_ns, start_ns, start_ns)

    def release(self, parent: int, end_ns: int) -> list[tuple[int, Times]]:
        """Children whose last parent this was, with their times; a parent's end is that of its answer or failure."""
        out = []
        for child in self.children.get(parent, ()):
            if not self._missing[child]:
                continue  # dropped with another parent
            self._missing[child] -= 1
            if not self._missing[child]:
                out.append((child, self._child_times(child, end_ns)))
        return out

    def drop(self, parent: int) -> list[int]:
        """Everything that comes after `parent`, directly or not, and was waiting: it will not be sent."""
        out, stack = [], [parent]
        while stack:
            for child in self.children.get(stack.pop(), ()):
                if self._missing[child]:
                    self._missing[child] = 0
                    out.append(child)
                    stack.append(child)
        return out

    def _child_times(self, child: int, end_ns: int) -> Times:
        if self._timing == "trace" and self._requests.start_ns(child) is not None:
            scheduled_ns = self._start_ns(child)
        elif self._timing == "none":
            scheduled_ns = end_ns
        else:
            scheduled_ns = end_ns + round(self._requests.gap_ns(child) / self._speed)
        return Times(scheduled_ns, end_ns, max(scheduled_ns, end_ns))

    def _start_ns(self, index: int) -> int:
        return self.t0_ns + round((self._requests.start_ns(index) or 0) / self._speed)


class _Children:
    """Who comes after whom."""

    def __init__(self, parents: npt.NDArray[np.int64], children: npt.NDArray[np.int64], n: int) -> None:
        import numpy as np

        self._children = children[np.argsort(parents, kind="stable")].data
        self._ends = np.cumsum(np.bincount(parents, minlength=n)).data

    def get(self, parent: int, otherwise: Sequence[int] = ()) -> Sequence[int]:
        """The children of a request, ascending."""
        found: Sequence[int] = self._children[self._ends[parent - 1] if parent else 0 : self._ends[parent]]
        return found or otherwise
