"""The law of decode steps in closed form: when steps end while a batch stays the same, and the log of all of them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_NEAR_S = 1e-9  # what lies within a nanosecond of a step's end counts as at it (float resolution over days)


def steps_s(first_s: float, growth_s: float, steps: int) -> float:
    """Seconds of `steps` steps, the first of `first_s`, each `growth_s` longer than the one before."""
    return steps * first_s + growth_s * (steps * (steps - 1) / 2)


def steps_until(first_s: float, growth_s: float, elapsed_s: float) -> int:
    """The least number of steps (at least 1) that has taken `elapsed_s`: a step under way cannot be interrupted."""
    elapsed_s -= _NEAR_S
    if elapsed_s <= first_s:
        return 1
    if growth_s * elapsed_s < 1e-9 * first_s * first_s:
        guess = elapsed_s / first_s
    else:
        half = first_s - growth_s / 2
        guess = (math.sqrt(half * half + 2 * growth_s * elapsed_s) - half) / growth_s
    steps = max(1, math.ceil(guess) - 1)
    while steps_s(first_s, growth_s, steps) < elapsed_s:
        steps += 1
    return steps


class StepLog:
    """When each step of one instance ended: one entry a run of steps with the same batch."""

    def __init__(self) -> None:
        self._runs = (array("d"), array("d"), array("d"))  # start, first step, growth
        self._steps, self._before = array("q"), array("q")  # of each run, and before it
        self._count = 0
        self._ends_s: npt.NDArray[np.float64] | None = None

    def add(self, start_s: float, first_s: float, growth_s: float, steps: int) -> None:
        """Steps follow the last ones."""
        for values, value in zip(self._runs, (start_s, first_s, growth_s), strict=True):
            values.append(value)
        self._steps.append(steps)
        self._before.append(self._count)
        self._count += steps
        self._ends_s = None

    def ends_s(self) -> npt.NDArray[np.float64]:
        """Model time of every step's end; float64, shape (steps,)."""
        if self._ends_s is None:
            self._ends_s = self._ends_of(slice(None))
        return self._ends_s

    def ends_from_s(self, step: int) -> npt.NDArray[np.float64]:
        """The same of the steps from number `step` on, at the cost of these alone (the log may go on)."""
        import numpy as np

        if step >= self._count:
            return np.empty(0)
        run = bisect_right(self._before, step) - 1
        return self._ends_of(slice(run, None))[step - self._before[run] :]

    def _ends_of(self, runs: slice) -> npt.NDArray[np.float64]:
        import numpy as np

        counts = np.array(self._steps[runs], dtype=np.int64)
        start, first, growth = (np.repeat(np.array(values[runs]), counts) for values in self._runs)
        j = np.arange(1, len(start) + 1, dtype=np.float64)
        j -= np.repeat(np.cumsum(counts) - counts, counts)
        return ends_s(start, first, growth, j)


def ends_s(start_s: Any, first_s: Any, growth_s: Any, step: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """When step number `step` (from 1 on) of a run of steps that begins at `start_s` ends."""
    ends: npt.NDArray[np.float64] = start_s + step * first_s + growth_s * (step * (step - 1) / 2)
    return ends
