"""Makes the tables of docs/wan.md: `python tests/wan/measure_transfers.py [--guest]`. Not a test: it takes minutes.

Seconds from the client's request, over a connection that is just open, to the last byte; the least of several. With
--guest, netem in a User-Mode Linux guest is measured too.
"""

import json
import sys
import tempfile
from pathlib import Path

import uml

from pddbench.wan.clock import VirtualClock
from pddbench.wan.fluid import FluidLink
from pddbench.wan.link import Link
from pddbench.wan.meter import Meter
from pddbench.wan.openlink import open_shapes
from pddbench.wan.shape import Shape
from pddbench.wan.transfer import transfer_s

GRID = [(1, 30, 1000), (10, 30, 1000), (50, 30, 1000), (1, 10, 1000), (10, 10, 100), (10, 66, 100), (10, 66, 1000)]
LOSSY = [(0.1, "reno"), (0.1, "cubic"), (1.0, "reno"), (1.0, "cubic"), (0.1, "bbr")]
_LOSSY_RTT_MS, _LOSSY_RATE_MBIT = 30.0, 500.0
_SEGMENT_BYTES = 1448


def by_formula(n_bytes, rtt_ms, rate_mbit):
    """Handshake left out, request's way in: what the law of `wan.transfer` says."""
    link = Link(rtt_ms / 2, rate_mbit, rate_mbit)
    return transfer_s(link, n_bytes) - link.rtt_s / 2


def by_model(n_bytes, rtt_ms, rate_mbit):
    clock, arrived = VirtualClock(), []
    link = FluidLink(Link(rtt_ms / 2, rate_mbit, rate_mbit), clock)
    link.send(1, n_bytes, lambda: arrived.append(clock.now()))
    clock.run()
    return arrived[0] - rtt_ms / 2e3


def by_packets(backend, repeats=5):
    """Rows of the grid over real packets."""
    out = []
    for megabytes, rtt_ms, rate_mbit in GRID:
        shape = Shape(rtt_ms / 2, float(rate_mbit))
        with open_shapes(shape, shape, backend) as link, Meter(link.side_a, link.side_b) as meter:
            found = meter.measure("fetch", megabytes * 10**6, repeats, "cubic", seconds=60)
        out.append(min(end - up for end, up in zip(found["seconds"], found["connected_s"], strict=True)))
    return out


def lossy(backend):
    """Mbit/s of one long flow under random loss, for each congestion control."""
    out = []
    for loss_pct, control in LOSSY:
        there, back = (Shape(_LOSSY_RTT_MS / 2, _LOSSY_RATE_MBIT, loss_pct=loss) for loss in (loss_pct, 0.0))
        with open_shapes(there, back, backend) as link, Meter(link.side_a, link.side_b) as meter:
            found = meter.measure("load", 5, 20, control, seconds=30)
        out.append((found["bytes"] * 8 / found["seconds"] / 1e6, found["congestion_control"]))
    return out


def square_root_law(loss_pct):
    """Mbit/s of Reno with an acknowledgement each segment (Mathis et al. 1997): S / RTT * sqrt(3 / 2p)."""
    return _SEGMENT_BYTES * 8 / (_LOSSY_RTT_MS / 1e3) * (1.5 / (loss_pct / 100)) ** 0.5 / 1e6


def in_guest():
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        argv = [sys.executable, __file__, "--as-guest"]
        code, said = uml.run(argv, Path(folder), timeout_s=500.0)
        answer = Path(folder) / "rows.json"
        if code != 0 or not answer.exists():
            sys.exit(f"the guest failed ({code}):\n{said[-2000:]}")
        return json.loads(answer.read_text())


def main():
    if "--as-guest" in sys.argv:
        Path("/mnt/rows.json").write_text(json.dumps(by_packets("netem")))
        return
    columns = {"formula": [by_formula(m * 1e6, r, rate) for m, r, rate in GRID],
               "model": [by_model(m * 1e6, r, rate) for m, r, rate in GRID],
               "tun": by_packets("tun")}  # fmt: skip
    if "--guest" in sys.argv:
        columns["netem"] = in_guest()
    print("| bytes | RTT | rate | " + " | ".join(columns) + " |")
    print("|---" * (3 + len(columns)) + "|")
    for index, (megabytes, rtt_ms, rate_mbit) in enumerate(GRID):
        cells = [f"{values[index] * 1e3:.0f} ms" for values in columns.values()]
        print(f"| {megabytes} MB | {rtt_ms} ms | {rate_mbit} Mbit/s | " + " | ".join(cells) + " |")
    print("\n| loss | congestion control | tun | square-root law |\n|---|---|---|---|")
    for (loss_pct, _), (mbit, control) in zip(LOSSY, lossy("tun"), strict=True):
        law = f"{square_root_law(loss_pct):.1f} Mbit/s" if control == "reno" else ""
        print(f"| {loss_pct:g}% | {control} | {mbit:.1f} Mbit/s | {law} |")


if __name__ == "__main__":
    main()
