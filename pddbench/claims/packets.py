"""C11 over packets: hand-offs of ids and of KV on a link with jitter, loss and others' traffic, real kernel TCP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pddbench.analyze.intervals import Figure, draws_interval, number
from pddbench.analyze.quantiles import Floats
from pddbench.claims.model import Found, NotTestable, part, without
from pddbench.scratch import scratch_folder

INF = float("inf")
RTT_S = 0.03
RATE_MBIT = 200.0  # KV of 100 tokens took 185 ms in the mean (C10): 4,649 KB at 200 Mbit/s
_TRIES = 3
_DRAWS = 2000
_LIMIT_S = 600.0


class Condition(NamedTuple):
    """What is wrong with the link, and how many hand-offs of each kind are timed on it."""

    name: str
    options: tuple[str, ...] = ()
    cross: bool = False
    ids: int = 200
    kv: int = 40


CONDITIONS = (
    Condition("clean"),
    Condition("again"),
    Condition("jitter 2 ms", ("--jitter-ms", "2")),
    Condition("loss 0.1%", ("--loss-pct", "0.1"), kv=20),
    Condition("loss 1%", ("--loss-pct", "1"), kv=8),
    Condition("others' flow", cross=True, kv=20),
)


def c11_packets(backend: str = "auto") -> Found:
    """Times of hand-offs on every condition, and what they say of C11."""
    times = dict(_measured(backend))
    clean = times["clean"]

    def moved(name: str, kind: str, q: float) -> Figure:
        return _difference(times[name][kind], clean[kind], q)

    names = [one.name for one in CONDITIONS[2:]]
    parts = [part(f"P90 of a hand-off of ids, {name} - clean", (-RTT_S, RTT_S), moved(name, "ids", 0.9))
             for name in names]  # fmt: skip
    parts += [part(f"median of a hand-off of KV, {name} - clean", (RTT_S, INF), moved(name, "kv", 0.5))
              for name in names if not name.startswith("jitter")]  # fmt: skip
    return Found(
        where="emulated",
        parts=parts,
        off=[without("P90 of ids, a clean link again - clean", (-RTT_S / 2, RTT_S / 2), moved("again", "ids", 0.9)),
             without("median of KV, a clean link again - clean", (-RTT_S, RTT_S), moved("again", "kv", 0.5))],
        note="; ".join(_told(name, times[name]) for name in times) + ". A lost packet of ids costs a retransmission "
             "timeout: beyond P90 at these losses",
        hangs_on="one queue for all: where a flow of others fills the line (Cubic fills the queue too) ids wait in it; "
                 "with BBR or a queue of their own they would not",
        size=f"{sum(one.ids for one in CONDITIONS):,} hand-offs of ids (1.5 KB), {sum(one.kv for one in CONDITIONS)} "
             f"of KV (4,649 KB), open connections, {RATE_MBIT:g} Mbit/s, 15 ms one way, kernel TCP",
    )  # fmt: skip


def _measured(backend: str) -> Iterator[tuple[str, dict[str, Floats]]]:
    with scratch_folder("claims") as folder:
        for condition in CONDITIONS:
            yield condition.name, _on_a_link(condition, backend, folder / "times.json")


def _on_a_link(condition: Condition, backend: str, out: Path) -> dict[str, Floats]:
    """The times on one link, which must be as asked (`--strict`): tried again where a busy machine made it late."""
    python = [sys.executable, "-m"]
    wire = [*python, "pddbench.claims.wire"]
    words = [*python, "pddbench", "wan", "exec", "--wan", backend, "--strict", "--rate-mbit", f"{RATE_MBIT:g}",
             *condition.options, "national", "--", *wire, "serve", ":::", *wire, "send", str(out),
             str(condition.ids), str(condition.kv), "cross" if condition.cross else "alone"]  # fmt: skip
    said = ""
    for _ in range(_TRIES):
        out.unlink(missing_ok=True)
        done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode == 0 and out.exists():
            found = json.loads(out.read_text(encoding="utf-8"))
            return {kind: np.array(found[kind]) for kind in ("ids", "kv")}
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        if done.returncode != 98:
            break
    raise NotTestable(f"{condition.name}: the link could not be made as asked ({said})")


def _difference(of: Floats, to: Floats, q: float) -> Figure:
    """Quantile `q` of one set of independent hand-offs - of another, percentile interval of resampled ones."""
    rng = np.random.default_rng(1)

    def draws(x: Floats) -> Floats:
        picked = x[rng.integers(0, len(x), (_DRAWS, len(x)))]
        found: Floats = np.quantile(picked, q, axis=1, method="inverted_cdf")
        return found

    def one(x: Floats) -> float:
        return float(np.quantile(x, q, method="inverted_cdf"))

    point = one(of) - one(to)
    low, high = draws_interval(draws(of) - draws(to), point)
    return Figure(unit="s", point=number(point), low=number(low), high=number(high), rows=len(of))


def _told(name: str, times: dict[str, Floats]) -> str:
    ids, kv = 1e3 * times["ids"], 1e3 * times["kv"]
    return (f"{name}: ids P50 {np.median(ids):.0f}, P90 {np.quantile(ids, 0.9):.0f}, max {ids.max():.0f} ms, "
            f"KV mean {kv.mean():.0f}, max {kv.max():.0f} ms")  # fmt: skip
