"""What it costs to record token times, CPU and bytes: PDDBENCH_BENCH_TOKENS of them (default 100 million)."""

from __future__ import annotations

import json
import os
import time

import numpy as np

from pddbench.runfolder.events import RequestEvents, events_table, events_writer

TOKENS = int(os.environ.get("PDDBENCH_BENCH_TOKENS", 100_000_000))
A_REQUEST, A_GROUP = 500, 2000


def some_requests(seed):
    """Token times of requests of 500 tokens, 20 ms apart with jitter and a rare stall, ns."""
    rng = np.random.default_rng(seed)
    gaps = rng.normal(20_000, 300, (A_GROUP, A_REQUEST - 1)) + rng.exponential(200, (A_GROUP, A_REQUEST - 1))
    gaps += (rng.random(gaps.shape) < 0.001) * 100_000
    return (np.cumsum(np.pad(gaps, ((0, 0), (1, 0))), axis=1) * 1000).astype(int).tolist()


def events(seed, times):
    """What a run's end makes of them."""
    return [RequestEvents(f"{seed}-{i}", one, [1] * A_REQUEST, []) for i, one in enumerate(times)]


def test_recording(tmp_path, figures):
    """Without it nobody would notice recording becoming dearer than the run."""
    path = tmp_path / "events.parquet"
    groups = [some_requests(seed) for seed in range(4)]
    wanted, cpu = TOKENS // (A_REQUEST * A_GROUP), 0.0
    with events_writer(path) as writer:
        for number in range(wanted):
            start = time.process_time()
            writer.write_table(events_table(events(number, groups[number % len(groups)]), "a", 1))
            cpu += time.process_time() - start
    tokens = wanted * A_REQUEST * A_GROUP
    out = {"tokens": tokens, "cpu_s": round(cpu, 2), "mb": round(path.stat().st_size / 1e6, 1)}
    out["cpu_s_100m"] = round(cpu * 1e8 / tokens, 2)
    out["mb_100m"] = round(out["mb"] * 1e8 / tokens, 1)
    print("\nrecording:", json.dumps(out))
    figures.keep("recording", out)
    figures.aim("recording 100 million token times: CPU", out["cpu_s_100m"], "<=", 10, "s")
    figures.aim("recording 100 million token times: Parquet", out["mb_100m"], "<=", 250, "MB")
    assert out["mb_100m"] <= 250
