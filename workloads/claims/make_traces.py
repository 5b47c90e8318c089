"""Makes the traces of this folder again, to the byte: `python workloads/claims/make_traces.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pddbench.trace.canonical import write_trace
from pddbench.trace.model import Header, Row, Trace

HERE = Path(__file__).parent / "traces"
LENGTH, BLOCK = 65_536, 64


def saturated_sweep() -> Trace:
    """Hits of 0, 2, ... 98%: for each a cold donor and 12 prompts that keep so much of it, all there from the start."""
    rows = []
    for percent in range(0, 100, 2):
        donor, kept = f"h{percent:02d}", LENGTH * percent // 100 // BLOCK * BLOCK
        for n in range(13):
            name = donor if n == 0 else f"{donor}.{n}"
            shared = (donor, kept) if n and kept else (None, 0)
            rows.append(Row(name, name, 0, LENGTH, 1, (), 0.0, None, *shared, "edit" if n else "root"))
    return Trace(Header(source="hits of 0, 2, ... 98% at saturation", licence="Apache-2.0"), rows)


def synth(preset: str, requests: int, *more: str) -> None:
    """A trace of a preset."""
    out = HERE / f"{preset}.trace.jsonl.zst"
    options = ["--preset", preset, "--requests", str(requests), "--seed", "1", "--out", str(out), "--force", *more]
    subprocess.run([sys.executable, "-m", "pddbench", "trace", "synth", *options], check=True)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    synth("fixed-64k-h90", 480, "--mean-output", "1024")
    synth("pdd-agentic", 1500)
    write_trace(saturated_sweep(), HERE / "saturated-sweep.trace.jsonl.zst")
