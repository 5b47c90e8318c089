"""The instrument against a server of known truth: our client with either reader, by two workers, a plain aiohttp line
loop, and a client in C, interleaved.

`make bench`. Server on one core, client on another where there are two; two workers may use any: they have the load
between them, and one worker with half of it is measured beside them, which is what each of them would do alone.
PDDBENCH_BENCH_LOADS ("1024x50x2 4096x25x2": streams x events a second x seconds a stream) and PDDBENCH_BENCH_REPS
choose; results go to results/bench/.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOADS = os.environ.get("PDDBENCH_BENCH_LOADS", "1024x50x2 4096x25x2").split()
REPS = int(os.environ.get("PDDBENCH_BENCH_REPS", "2"))
KINDS = {
    "C": "C",
    "ours": "ours",
    "python": "ours, python reader",
    "half": "ours, half the streams",
    "two": "two workers",
    "line": "line loop",
}
AIMS = {  # load: (CPU an event against C, CPU share, P99 ms of TTFT by our own stamps, by the kernel's, of drift)
    "1024x50": (1.3, 1.0, 2.0, 0.05, 2.0),
    "4096x25": (1.5, 0.85, 5.0, 0.05, 3.0),
}
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
    if kind == "half":
        numbers[0] = str(int(numbers[0]) // 2)
    out = {}
    with served(programs, out) as port:
        ours = [sys.executable, HERE / "bench_client.py", "ours" if kind == "half" else kind]
        command = [programs / "stream_client"] if kind == "C" else ours
        done = subprocess.run(
            [*map(str, command), port, *numbers], capture_output=True, text=True, cwd=ROOT,
            preexec_fn=None if kind == "two" else pinned(0),
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
    cells = (one["load"], KINDS[one["client"]], "yes" if one["kept_up"] else "no", f"{one['events_s']:,}",
             f"{one['cpu_us_event']:.1f}", f"{one['cpu_us_event'] / yardstick:.2f}", words(one["ttft_user_ms"]),
             words(one["ttft_kernel_ms"]), words(one["drift_ms"]), one.get("kb_stream", ""),
             f"{one['server']['late_p99_ms']:.1f}")  # fmt: skip
    return " | ".join(map(str, cells))


def test_instrument(programs, figures):
    """Without it nobody would know what our numbers are worth, or notice them getting worse."""
    results = []
    print("\n" + " | ".join(HEADINGS) + "   (three figures: P50 / P99 / max; server late: its own P99, ms)")
    for load in LOADS:
        groups = []
        for _ in range(REPS):
            group = {kind: measure(programs, kind, load) for kind in KINDS}
            for one in group.values():
                one["cpu_ratio"] = round(one["cpu_us_event"] / group["C"]["cpu_us_event"], 2)
                print(row(one, group["C"]["cpu_us_event"]), flush=True)
            groups.append(group)
        judge(load.rpartition("x")[0], groups, figures)
        results += [one for group in groups for one in group.values()]
    figures.keep("instrument", results)
    for one in results:
        if one["client"] in ("ours", "python", "half", "two"):
            assert one["failed"] == 0
            assert one["kernel_missing"] == 0


def judge(load, groups, figures):
    """The figures of a load against what is aimed at, each the median of the repetitions."""
    ours = [group["ours"] for group in groups]
    median = statistics.median
    if load in AIMS:
        ratio, share, user, kernel, drift = AIMS[load]
        p99 = {name: median(one[name][1] for one in ours) for name in ("ttft_user_ms", "ttft_kernel_ms", "drift_ms")}
        figures.aim(f"{load}/s: kept up, runs of all", sum(one["kept_up"] for one in ours) / len(ours), ">=", 1)
        figures.aim(f"{load}/s: CPU an event, x C client", median(one["cpu_ratio"] for one in ours), "<=", ratio)
        figures.aim(f"{load}/s: CPU of the client's core", median(one["cpu_share"] for one in ours), "<=", share)
        figures.aim(f"{load}/s: TTFT error P99, own stamps", p99["ttft_user_ms"], "<=", user, "ms")
        figures.aim(f"{load}/s: TTFT error P99, kernel's", p99["ttft_kernel_ms"], "<=", kernel, "ms")
        figures.aim(f"{load}/s: drift P99", p99["drift_ms"], "<=", drift, "ms")
    figures.aim(f"{load}/s: memory a stream", max(o["kb_stream"] for o in ours), "<=", 45, "kB")
    # what two do for the CPU of two, each with the load that one has: the server's cost apart
    gain = [4 * g["half"]["health_cpu_s"] / g["two"]["health_cpu_s"] for g in groups]
    figures.aim(f"{load}/s: two workers, x one", round(median(gain), 2), ">=", 1.7)
    yardstick = median(g["C"]["ttft_kernel_ms"][1] for g in groups)
    print(f"{load}/s: the C client's own TTFT error P99 is {yardstick:.3f} ms by the kernel's stamps")
