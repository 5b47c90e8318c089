"""`make bench`: a long trace made, checked, described, converted and recounted: how long, in how much memory.

PDDBENCH_BENCH_REQUESTS says how long a trace; PDDBENCH_TARGETS how many random histograms the generator must meet.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REQUESTS = int(os.environ.get("PDDBENCH_BENCH_REQUESTS", "1000000"))
TARGETS = os.environ.get("PDDBENCH_TARGETS", "200")
ROOT = Path(__file__).parents[2]
_CHILD = """
import resource, sys
from pddbench.cli import main
try:
    main(sys.argv[1:])
finally:
    print("peak_kb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
BASE_MB = 260  # interpreter, numpy, pyarrow, their threads and one batch
BYTES_A_REQUEST = 600  # of a trace in columns, with what its checks need on the side


def timed(*args: object) -> tuple[float, float, str]:
    """Seconds and peak MB of `pddbench trace ARGS`, and what it said."""
    command = [sys.executable, "-c", _CHILD, "trace", *map(str, args)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said, _, peak_kb = done.stdout.rpartition("peak_kb")
    seconds, peak_mb = time.perf_counter() - start, int(peak_kb) / 1024
    print(
        f"trace {args[0]:<9} {Path(str(args[-1])).suffix:<8} {REQUESTS:>9,} requests {seconds:7.1f} s {peak_mb:6.0f} MB"
    )
    return seconds, peak_mb, said


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory) -> Path:
    """A long trace; the generator keeps two parts of it in memory, however long it is."""
    out = tmp_path_factory.mktemp("long") / "long.trace.jsonl.zst"
    print(f"\nload average {os.getloadavg()[0]:.1f}")
    _, peak_mb, _ = timed("synth", "--preset", "pdd-agentic", "--requests", REQUESTS, "--out", out)
    print(f"  {out.stat().st_size:,} bytes")
    assert peak_mb < BASE_MB
    return out


def test_a_long_trace_is_read_and_analysed_in_bounded_memory(long_trace: Path) -> None:
    """A trace of a day would not fit as rows."""
    parquet, again = long_trace.with_name("l.trace.parquet"), long_trace.with_name("again.trace.jsonl.zst")
    most_mb = BASE_MB + REQUESTS * BYTES_A_REQUEST / 2**20
    for args in (
        ("validate", long_trace),
        ("stats", "--json", long_trace),
        ("convert", long_trace, parquet),
        ("validate", parquet),
        ("convert", parquet, again),
        ("stats", "--block-size", 512, parquet),
    ):
        assert timed(*args)[1] < most_mb, args
    assert again.read_bytes() == long_trace.read_bytes(), "converted there and back"


def test_a_long_trace_is_recounted_in_bounded_memory(long_trace: Path) -> None:
    """The independent count writes every prompt out as tokens: it may take minutes, but not all the memory."""
    _, peak_mb, said = timed("oracle", "--json", long_trace)
    print(" ", said.strip()[:300])
    assert peak_mb < BASE_MB + 600 + REQUESTS * BYTES_A_REQUEST / 2**20


def test_two_hundred_random_targets() -> None:
    """CI takes a sample of them."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "tests/quota/test_generate.py", "-k", "met_or_refused"]
    start = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PDDBENCH_TARGETS": TARGETS}
    )
    print(f"\n{time.perf_counter() - start:.1f} s: {done.stdout[:4000]}")
    assert done.returncode == 0
