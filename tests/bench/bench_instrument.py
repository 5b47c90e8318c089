"""The instrument against a server of known truth: our client, a plain aiohttp line loop and a client in C, interleaved.

`make bench`. Server on one core, client on another where there are two. PDDBENCH_BENCH_LOADS ("1024x50x2 4096x25x2":
streams x events a second x seconds a stream) and PDDBENCH_BENCH_REPS choose; results go to results/bench/.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOADS = os.environ.get("PDDBENCH_BENCH_LOADS", "256x20x2 1024x50x2 4096x25x2").split()
REPS = int(os.environ.get("PDDBENCH_BENCH_REPS", "2"))
KINDS = ("C", "ours", "line")
HEADINGS = ("load", "client", "kept up", "events/s", "µs/event", "x C", "TTFT user ms", "TTFT kernel ms", "drift ms",
            "kB/stream", "server late")  # fmt: skip


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The C programs, compiled now."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the bench needs one for its server and its yardstick")
    folder = tmp_path_factory.mktemp("bench")
    for name in ("truth_server", "stream_client"):
        subprocess.run([compiler, "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")], check=True)
    return folder


def pinned(core):
    """Pin a child to a core, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return lambda: os.sched_setaffinity(0, {cores[core]}) if len(cores) > 1 else None


@contextmanager
def served(programs, into):
    """A running server; its own report goes into `into` at the end."""
    with subprocess.Popen(
        [programs / "truth_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=pinned(-1)
    ) as server:
        yield server.stdout.readline().split()[1]
        server.stdin.close()
        into["server"] = json.loads(server.stdout.readline())


def measure(programs, kind, load):
    """One client under one load; its figures."""
    numbers = load.split("x")
    out = {}
    with served(programs, out) as port:
        command = [programs / "stream_client"] if kind == "C" else [sys.executable, HERE / "bench_client.py", kind]
        done = subprocess.run(
            [*map(str, command), port, *numbers], capture_output=True, text=True, cwd=ROOT, preexec_fn=pinned(0),
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out |= json.loads(done.stdout.splitlines()[-1])
    streams, rate, life = map(float, numbers)
    out["planned_s"] = 3 * life
    out["events_s"] = round(out["events"] / out["wall_s"])
    out["kept_up"] = out["wall_s"] < 3 * life * 1.05 + 0.5
    assert out["events"] == 2 * streams * int(rate * life), "an event was lost"
    return {"load": load, "client": kind, **out}


def words(values):
    """P50 / P99 / max."""
    return " / ".join(f"{value:.3f}" for value in values) if values else "none"


def row(one, yardstick):
    """A line of the table."""
    cells = (one["load"], one["client"], "yes" if one["kept_up"] else "no", f"{one['events_s']:,}",
             f"{one['cpu_us_event']:.1f}", f"{one['cpu_us_event'] / yardstick:.2f}", words(one["ttft_user_ms"]),
             words(one["ttft_kernel_ms"]), words(one["drift_ms"]), one.get("kb_stream", ""),
             f"{one['server']['late_p99_ms']:.1f}")  # fmt: skip
    return " | ".join(map(str, cells))


def test_instrument(programs):
    """Without it nobody would know what our numbers are worth, or notice them getting worse."""
    results = []
    print("\n" + " | ".join(HEADINGS) + "   (three figures: P50 / P99 / max; server late: its own P99, ms)")
    for load in LOADS:
        for _ in range(REPS):
            group = [measure(programs, kind, load) for kind in KINDS]
            for one in group:
                one["cpu_ratio"] = round(one["cpu_us_event"] / group[0]["cpu_us_event"], 2)
                print(row(one, group[0]["cpu_us_event"]), flush=True)
            results += group
        ratios = [one["cpu_ratio"] for one in results if one["client"] == "ours" and one["load"] == load]
        print(f"{load}: our CPU an event is {statistics.median(ratios):.2f} x that of the C client (median)")
    folder = ROOT / "results" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"instrument-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    path.write_text(json.dumps({"load_average": os.getloadavg(), "results": results}, indent=2))
    print(f"saved to {path.relative_to(ROOT)}")
    for one in results:
        if one["client"] == "ours":
            assert one["failed"] == 0
            assert one["kernel_missing"] == 0
            assert one["kb_stream"] <= 45
