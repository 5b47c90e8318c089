"""`/metrics` of a live run, in Prometheus' text format. Names and units: docs/live.md."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pddbench import __version__
from pddbench.live.board import QUANTILES, Board
from pddbench.live.own import Own
from pddbench.live.spread import EDGES_S
from pddbench.live.watch import Watch

Sample = tuple[str, str, float | None]
"""Suffix of the name, labels, value; null: not known, left out."""


def exposition(board: Board, now_ns: int) -> str:
    """All families; the runs that have not begun are left out."""
    seen = [(f'arm="{watch.arm}",repeat="{watch.repeat}"', watch) for watch in board.watches[: board.number]]
    current = board.current
    own = [(labels, watch) for labels, watch in seen if watch is current and watch.status is None]
    name = board.announced.name.replace("\\", r"\\").replace('"', r"\"").replace("\n", " ")
    shot = board.snapshot(now_ns)
    families = [
        _family("run_info", "gauge", "The experiment.", [("", f'name="{name}",version="{__version__}"', 1)]),
        _family("runs", "gauge", "Runs (arm and repeat) of the experiment.", [("", "", len(board.watches))]),
        _family("runs_begun", "gauge", "Runs that have begun.", [("", "", board.number)]),
        _family("elapsed_seconds", "gauge", "Wall time since the first run began.", [("", "", shot["elapsed_s"])]),
        _family("time_left_seconds", "gauge", "Wall time until the last run ends, about.", [("", "", shot["left_s"])]),
        _family("requests_planned", "gauge", "Requests of the run.", _each(seen, "planned")),
        _family("requests_sent_total", "counter", "Requests sent.", _each(seen, "sent")),
        _family("requests_done_total", "counter", "Requests that ended, well or not.", _each(seen, "done")),
        _family("requests_failed_total", "counter", "Requests that failed, as far as seen from outside.",
                _each(seen, "failed")),
        _family("requests_not_sent_total", "counter", "Requests given up before they were sent.",
                _each(seen, "not_sent")),
        _family("requests_in_flight", "gauge", "Requests under way.",
                [("", labels, len(watch.flying)) for labels, watch in seen]),
        _family("ttft_seconds", "histogram", "First token - due, experiment seconds, of requests that had one.",
                [sample for labels, watch in seen for sample in _histogram(labels, watch)]),
        _family("ttft_so_far_seconds", "gauge", "Quantiles of TTFT from due so far, failures infinite (HDR histogram).",
                [("", f'{labels},quantile="{q:g}"', watch.ttft.quantile(q, watch.silent_failures))
                 for labels, watch in seen for q in QUANTILES]),
        _family("waiting_seconds", "gauge", "Longest wait for a first token now, experiment seconds.",
                [("", labels, watch.waiting_s(now_ns)) for labels, watch in own]),
        _family("client_loop_lag_seconds", "gauge", "P99 of our event loop's lag, wall seconds.",
                [("", labels, watch.worst(Own.loop_lag_p99_s)) for labels, watch in seen]),
        _family("client_send_lag_seconds", "gauge", "P99 of our own lateness in sending, wall seconds.",
                [("", labels, watch.worst(Own.send_lag_p99_s)) for labels, watch in seen]),
        _family("client_cpu_share", "gauge", "Our process's CPU over 5 s, of a core; of several the busiest.",
                [("", labels, watch.worst(Own.cpu_share)) for labels, watch in own]),
        _family("client_waited_share", "gauge", "Share of 5 s in which our process could have run and had no core.",
                [("", labels, watch.worst(Own.waited_share)) for labels, watch in own]),
        _family("client_rss_bytes", "gauge", "Our process's resident memory.",
                [("", labels, watch.worst(Own.rss)) for labels, watch in own]),
        _family("client_healthy", "gauge", "1 while the run's own clock can be believed, else 0.",
                [("", labels, watch.health()[0] != "bad") for labels, watch in seen]),
    ]  # fmt: skip
    return "".join(families)


def _each(seen: Iterable[tuple[str, Watch]], name: str) -> list[Sample]:
    return [("", labels, getattr(watch, name)) for labels, watch in seen]


def _histogram(labels: str, watch: Watch) -> Iterable[Sample]:
    for edge, count in zip(EDGES_S, watch.ttft.below, strict=True):
        yield "_bucket", f'{labels},le="{edge:g}"', count
    yield "_bucket", f'{labels},le="+Inf"', watch.ttft.n
    yield "_sum", labels, watch.ttft.sum_s
    yield "_count", labels, watch.ttft.n


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    full = f"pddbench_{name}"
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    for suffix, labels, value in samples:
        if value is not None:
            said = "+Inf" if value == math.inf else f"{float(value):.10g}"
            lines.append(f"{full}{suffix}{{{labels}}} {said}" if labels else f"{full}{suffix} {said}")
    return "\n".join(lines) + "\n"


def names(text: str) -> set[str]:
    """Names of all samples in an exposition."""
    lines: list[Any] = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.partition("{")[0].partition(" ")[0] for line in lines}
