"""100 fresh capacity searches on arms whose knee is known: at least 90 intervals must hold it; docs/statistics.md."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.answer.queue_arm import Queue, covers, knee, search

SEARCHES = int(os.environ.get("PDDBENCH_BENCH_SEARCHES", 100))
ARMS = {
    "M/M/1": Queue(),
    "M/G/1 light": Queue(cv=0.5),
    "M/G/1 heavy": Queue(cv=2.0),
    "M/M/4": Queue(servers=4, rate=5.0),
    "M/M/1 slow": Queue(rate=3.0, limit_s=3.0),
    "M/G/1 light slow": Queue(rate=3.0, cv=0.5, limit_s=3.0),
    "M/G/1 heavy slow": Queue(rate=3.0, cv=2.0, limit_s=3.0),
}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(("target", "half_width", "budget"), [(0.9, 0.05, 16), (0.9, 0.1, 16), (0.95, 0.05, 24)])
def test_coverage(arm, target, half_width, budget):
    """Optional stopping, skewed runs and requests that are not independent cost coverage."""
    queue = ARMS[arm]
    found = [search(1000 + seed, target, half_width, budget, queue) for seed in range(SEARCHES)]
    covered = sum(covers(one, target, queue) for one in found)
    error = np.array([one.rate / knee(target, queue) - 1 for one in found if one.rate])
    width, runs = np.median([one.half_width for one in found]), np.mean([one.runs for one in found])
    bounded = sum(one.low is not None and one.high is not None for one in found)
    print(f"\n| {arm} | {target:g} | ±{100 * half_width:g}% | {knee(target, queue) / queue.rate / queue.servers:.2f} | "
          f"{covered} of {SEARCHES} | {bounded} | {100 * np.median(np.abs(error)):.1f}% | {100 * error.mean():+.1f}% | "
          f"{100 * width:.1f}% | {runs:.1f} |")  # fmt: skip
    assert covered >= 0.9 * SEARCHES
