"""100 fresh capacity searches on an arm whose knee is known exactly: at least 90 intervals must hold it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.answer.queue_arm import covers, knee, search

SEARCHES = int(os.environ.get("PDDBENCH_BENCH_SEARCHES", 100))


@pytest.mark.parametrize(("target", "half_width", "budget"), [(0.9, 0.05, 16), (0.9, 0.1, 16), (0.95, 0.05, 24)])
def test_coverage(target, half_width, budget):
    """Promised in docs/statistics.md; optional stopping and runs that are no independent requests cost coverage."""
    found = [search(1000 + seed, target, half_width, budget) for seed in range(SEARCHES)]
    covered = sum(covers(one, target) for one in found)
    error = np.array([one.rate / knee(target) - 1 for one in found if one.rate])
    width, runs = np.median([one.half_width for one in found]), np.mean([one.runs for one in found])
    print(f"\ncapacity: target {target:g}, half-width {half_width:g}, budget {budget}: covered {covered} of "
          f"{SEARCHES}, median error {100 * np.median(np.abs(error)):.1f}%, mean {100 * error.mean():+.1f}%, "
          f"median half-width {100 * width:.1f}%, runs {runs:.1f}")  # fmt: skip
    assert covered >= 0.9 * SEARCHES
