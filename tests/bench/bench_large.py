"""`make bench`: how long a run of a long trace takes to start, and in how much memory (PDDBENCH_BENCH_REQUESTS)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

REQUESTS = int(os.environ.get("PDDBENCH_BENCH_REQUESTS", "1000000"))
TURNS = 10
_CHILD = r"""
import gc, json, sys, time
from pathlib import Path

def step(name):
    cpu_s = time.process_time() - step.start
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    kb = {line[0]: int(line[1]) for line in lines if line[0] in ("VmRSS:", "VmHWM:")}
    out[name] = {"s": round(cpu_s, 2), "rss_mb": kb["VmRSS:"] // 1000, "peak_mb": kb["VmHWM:"] // 1000}
    step.start = time.process_time()

out, step.start = {}, time.process_time()
trace, folder, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
if what == "plan":
    from pddbench.runfolder.spooled import save_plan
    from pddbench.trace.read import read_as_columns
    from pddbench.workload.experiment import Workload
    from pddbench.workload.plan import make_plan, planned_duration_s
    read = read_as_columns(trace)
    step("read the trace")
    plan = make_plan(read, Workload(trace=str(trace)))
    step("make the plan")
    save_plan(folder, 1, plan)
    step("save it")
    del read
    gc.collect()
    step("let the trace go")
else:
    from pddbench.replay.schedule import Schedule, phases
    from pddbench.replay.split import split_sessions
    from pddbench.runfolder.spooled import load_plan
    from pddbench.workload.prompts import PromptBook
    plan = load_plan(folder, 1)
    step("worker: map the plan")
    part = split_sessions(plan, 2)[0]
    schedule = Schedule(plan, phases(plan, part)[1], 1.0)
    step("worker: its sessions and schedule")
    book = PromptBook(plan, "salt", (1000, 30000))
    for index in schedule.roots[:1000]:
        book.ids(index)
    step("worker: first 1000 prompts")
print(json.dumps(out))
"""


def rows(n):
    """Sessions of ten turns that grow, on one shared beginning, a hundred of them a second."""
    for s in range(n // TURNS):
        for t in range(TURNS):
            before = f"s{s}.{t - 1}" if t else None
            donor = before or ("s0.0" if s else None)
            shared = (420 + 170 * (t - 1) if t else 200) if donor else 0
            yield {
                "request_id": f"s{s}.{t}", "session_id": f"s{s}", "turn": t, "parents": [before] if t else [],
                "start_s": None if t else s * 0.01, "gap_s": 2.0 if t else None, "prefix_of": donor,
                "prefix_tokens": shared, "input_tokens": 400 + 170 * t, "output_tokens": 20,
                "kind": "tool" if t else "root",
            }  # fmt: skip


def test_a_long_run_starts_in_bounded_memory(tmp_path, figures):
    """A replay that holds an object a request would need gigabytes, and each worker as much again."""
    trace = tmp_path / "long.trace.jsonl"
    with trace.open("w") as file:
        file.write(json.dumps({"schema_version": 1, "source": "bench"}) + "\n")
        for row in rows(REQUESTS):
            file.write(json.dumps(row) + "\n")
    seen = {}
    for what in ("plan", "replay"):
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(trace), str(tmp_path), what], capture_output=True, text=True, check=True
        )
        seen |= json.loads(done.stdout)
    print(f"\n{REQUESTS:,} requests in {REQUESTS // TURNS:,} sessions (CPU s, RSS after it, peak RSS of the process):")
    for name, one in seen.items():
        print(f"  {name:<36} {one['s']:>7.2f} s {one['rss_mb']:>6} MB {one['peak_mb']:>6} MB")
    plan_mb = sum(file.stat().st_size for file in (tmp_path / "spool").iterdir()) / 1e6
    print(f"  plan on disk {plan_mb:.0f} MB")
    start_s = sum(one["s"] for one in seen.values())
    figures.keep("large", seen)
    figures.seen(f"{REQUESTS:,} requests: CPU until the first prompts", round(start_s, 1), "s")
    figures.seen(f"{REQUESTS:,} requests: peak while planned", max(one["peak_mb"] for one in seen.values()), "MB")
    figures.seen(f"{REQUESTS:,} requests: a worker", seen["worker: first 1000 prompts"]["peak_mb"], "MB")
    assert seen["worker: first 1000 prompts"]["peak_mb"] < 100 + 300 * REQUESTS / 1e6
