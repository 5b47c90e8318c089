"""`make bench`: how long a long trace takes to make, and in how much memory (PDDBENCH_BENCH_REQUESTS: how long)."""

import os
import subprocess
import sys
import time
from pathlib import Path

REQUESTS = int(os.environ.get("PDDBENCH_BENCH_REQUESTS", "1000000"))
_CHILD = """
import resource, sys
from pddbench.cli import main
try:
    main(sys.argv[1:])
finally:
    print("peak_kb", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_long_trace_is_made_in_bounded_memory(tmp_path: Path) -> None:
    """A generator that holds the trace in memory could not make a day of traffic."""
    out = tmp_path / "long.trace.jsonl.zst"
    args = ["trace", "synth", "--preset", "pdd-agentic", "--requests", str(REQUESTS), "--out", str(out)]
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _CHILD, *args], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    peak_mb = int(done.stdout.split("peak_kb")[1]) / 1024
    print(
        f"\nsynth pdd-agentic: {REQUESTS:,} requests in {seconds:.1f} s, {peak_mb:.0f} MB, {out.stat().st_size:,} bytes"
    )
    assert peak_mb < 400
