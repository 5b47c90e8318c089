"""A million requests replayed to the end, reported, compared and loaded: time, CPU and peak memory of every step.

`PDDBENCH_BENCH_RATE=1000 make bench ARGS="-k test_long_run"` runs it, at so many requests a second.
PDDBENCH_BENCH_REQUESTS: how many, PDDBENCH_BENCH_WORKERS: by how many processes, PDDBENCH_BENCH_KEEP: where everything
stays. Replies are short, 4 tokens 20 ms apart, and prompts too: what is tested is the number of requests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

REQUESTS = int(os.environ.get("PDDBENCH_BENCH_REQUESTS", "1000000"))
RATE = float(os.environ.get("PDDBENCH_BENCH_RATE", "1000"))
WORKERS = os.environ.get("PDDBENCH_BENCH_WORKERS", "1")
KEEP = os.environ.get("PDDBENCH_BENCH_KEEP")
TURNS, TOKENS = 10, 4
HERE = Path(__file__).parent
ASKED = {"x-ttft-us": "20000", "x-itl-us": "20000", "x-ntok": str(TOKENS)}
_LOADED = """
import sys, pddbench
run = pddbench.load(sys.argv[1])
print(len(run.requests), round(run.requests["first_token_ns"].mean() / 1e9, 3), len(run.events))
"""


def rows():
    """Sessions of ten turns that grow, on one shared beginning."""
    for s in range(REQUESTS // TURNS):
        for t in range(TURNS):
            before = f"s{s}.{t - 1}" if t else None
            shared = 30 + 10 * (t - 1) + TOKENS if t else 20 if s else 0
            yield {
                "request_id": f"s{s}.{t}", "session_id": f"s{s}", "turn": t, "parents": [before] if t else [],
                "start_s": None if t else s * TURNS / RATE, "gap_s": 0.5 if t else None,
                "prefix_of": before or ("s0.0" if s else None), "prefix_tokens": shared,
                "input_tokens": 30 + 10 * t, "output_tokens": TOKENS, "kind": "tool" if t else "root",
            }  # fmt: skip


@contextmanager
def server(folder):
    """The server whose truth is known; its port."""
    binary = folder / "truth_server"
    subprocess.run(["gcc", "-O2", "-o", binary, HERE / "truth_server.c"], check=True)
    with subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().split()[1]
        process.stdin.close()
        print("  server:", process.stdout.read().strip())


class Peaks:
    """Peak memory of a process and of its children, MB, looked at twice a second while it lives."""

    def __init__(self, pid):
        self.mb, self._pid, self._over = {}, pid, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self):
        while not self._over.wait(0.5):
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children")
            try:
                pids = [self._pid, *map(int, children.read_text().split())]
                for pid in pids:
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    self.mb[pid] = next(int(line.split()[1]) // 1000 for line in lines if line.startswith("VmHWM"))
            except (OSError, StopIteration):
                continue

    def end(self):
        """The process's own peak, then its children's."""
        self._over.set()
        self._thread.join()
        return [self.mb.pop(self._pid, None), *sorted(self.mb.values(), reverse=True)]


def step(name, command, seen, *, codes=(0,)):
    """One command: how long, how much CPU, how much memory; what it said."""
    begun, before = time.monotonic(), os.times()
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        peaks = Peaks(process.pid)
        out, err = process.communicate()
    after, peak_mb = os.times(), peaks.end()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    seen[name] = {"s": round(time.monotonic() - begun, 1), "cpu_s": round(cpu_s, 1), "peak_mb": peak_mb}
    print(f"  {name:<22} {seen[name]['s']:>8.1f} s {cpu_s:>8.1f} s CPU   {peak_mb} MB   exit {process.returncode}",
          flush=True)  # fmt: skip
    assert process.returncode in codes, err[-2000:]
    return out, err


def pddbench(*args):
    """A command of ours."""
    return [sys.executable, "-m", "pddbench", *args]


@pytest.mark.skipif("PDDBENCH_BENCH_RATE" not in os.environ, reason="takes half an hour; set PDDBENCH_BENCH_RATE")
def test_long_run(tmp_path, figures):
    """Without it something may need all the memory, or an hour, only when a run is as long as it is meant to be."""
    folder = Path(KEEP) if KEEP else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    trace, seen = folder / "long.trace.jsonl", {}
    with trace.open("w") as file:
        file.write(json.dumps({"schema_version": 1, "source": "bench"}) + "\n")
        file.writelines(json.dumps(row) + "\n" for row in rows())
    print(f"\n{REQUESTS:,} requests at {RATE:g}/s, {WORKERS} worker(s), load average {os.getloadavg()[0]:.1f}")
    step("trace validate", pddbench("trace", "validate", trace), seen)
    headers = [part for key, value in ASKED.items() for part in ("--header", f"{key}={value}")]
    with server(folder) as port:
        target = ["--trace", trace, "--base-url", f"http://127.0.0.1:{port}/v1", "--model", "m", "--metrics-url", "off"]
        step("replay --dry-run", pddbench("replay", *target, *headers, "--dry-run"), seen)
        _, said = step(
            "replay", pddbench("replay", *target, *headers, "--workers", WORKERS, "--out", folder / "run", "--verbose",
                               "--allow", "send_lag", "--allow", "loop_lag", "--allow", "client_cpu"),
            seen, codes=(0, 98),
        )  # fmt: skip
        print("   ", "\n    ".join(said.strip().splitlines()[-4:]))
    step("report", pddbench("report", folder / "run"), seen, codes=(0, 98))
    step("check", pddbench("check", folder / "run", "--that", "endpoint.ttft.p99 < 30 s"), seen, codes=(0, 98))
    step("compare with itself", pddbench("compare", folder / "run", folder / "run"), seen, codes=(0, 98))
    out, _ = step("pddbench.load", [sys.executable, "-c", _LOADED, folder / "run"], seen)
    assert out.split()[0] == out.split()[2] == str(REQUESTS)
    figures.keep("long_run", seen)
    figures.seen(f"{REQUESTS:,} requests replayed: peak of the runner", seen["replay"]["peak_mb"][0], "MB")
    figures.seen(f"{REQUESTS:,} requests: report", seen["report"]["s"], "s")
