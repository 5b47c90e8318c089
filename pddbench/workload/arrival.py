"""When sessions start: open loop, seeded; the recorded starts or a drawn process."""

from __future__ import annotations

import math
import random

from pddbench.workload.experiment import Workload


def session_starts_s(work: Workload, recorded_s: list[float]) -> list[float]:
    """Start of each session in seconds from zero, in the order given; `recorded_s` are the trace's own starts.

    `poisson`: exponential gaps; `gamma`: gamma gaps of shape `burstiness` (below 1 burstier than Poisson);
    `constant`: equal gaps; all with mean 1/`session_rate`. `trace`: the recorded starts times `time_scale`.
    With `ramp_s` the rate rises linearly from 0 to `session_rate` first.
    """
    if work.arrival == "trace":
        return [start * work.time_scale for start in recorded_s]
    assert work.session_rate is not None  # checked when the experiment was read
    rng = random.Random(f"arrival/{work.seed}")
    mean_s = 1.0 / work.session_rate
    starts, now = [], 0.0
    for _ in recorded_s:
        starts.append(_ramped(now, work.session_rate, work.ramp_s or 0.0))
        if work.arrival == "constant":
            now += mean_s
        elif work.arrival == "poisson":
            now += rng.expovariate(work.session_rate)
        else:
            now += rng.gammavariate(work.burstiness, mean_s / work.burstiness)
    return starts


def _ramped(at_s: float, rate: float, ramp_s: float) -> float:
    """When the arrival that a steady process has at `at_s` comes if the rate rises linearly over `ramp_s`.

    The expected arrivals by t are rate*t^2/(2*ramp) inside the ramp and rate*(t - ramp/2) after it; this inverts them.
    """
    arrivals = at_s * rate
    if arrivals >= rate * ramp_s / 2:
        return at_s + ramp_s / 2
    return math.sqrt(2 * arrivals * ramp_s / rate)
