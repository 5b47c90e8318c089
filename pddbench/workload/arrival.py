"""When sessions start: open loop, seeded; the recorded starts or a drawn process."""

from __future__ import annotations

import random

from pddbench.workload.experiment import Workload


def session_starts_s(work: Workload, recorded_s: list[float]) -> list[float]:
    """Start of each session in seconds from zero, in the order given; `recorded_s` are the trace's own starts.

    `poisson`: exponential gaps; `gamma`: gamma gaps of shape `burstiness` (below 1 burstier than Poisson);
    `constant`: equal gaps; all with mean 1/`session_rate`. `trace`: the recorded starts times `time_scale`.
    """
    if work.arrival == "trace":
        return [start * work.time_scale for start in recorded_s]
    assert work.session_rate is not None  # checked when the experiment was read
    rng = random.Random(f"arrival/{work.seed}")
    mean_s = 1.0 / work.session_rate
    starts, now = [], 0.0
    for _ in recorded_s:
        starts.append(now)
        if work.arrival == "constant":
            now += mean_s
        elif work.arrival == "poisson":
            now += rng.expovariate(work.session_rate)
        else:
            now += rng.gammavariate(work.burstiness, mean_s / work.burstiness)
    return starts
