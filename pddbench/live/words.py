"""A snapshot in words, for lines and terminal."""

from __future__ import annotations

from typing import Any


def seconds(value: float | str | None) -> str:
    """`0.48 s`, `12 ms`; `inf` stays, null is a dash."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{1e3 * value:.0f} ms" if value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def clock(value: float | None) -> str:
    """`1:05`, `2:00:10`; null is a dash."""
    if value is None:
        return "–"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate(value: float | None) -> str:
    """`2.1/s`; null is a dash."""
    return "–" if value is None else f"{value:.1f}/s"


def line(snapshot: dict[str, Any]) -> str:
    """The current run in one plain line."""
    run = snapshot["runs"][snapshot["number"] - 1]
    parts = [f"{run['done']}/{run['planned']} done", f"{run['in_flight']} in flight"]
    if run["rate_per_s"] is not None:
        parts.append(rate(run["rate_per_s"]))
    if run["ttft_n"]:
        parts.append(f"TTFT P50 {seconds(run['ttft_s']['p50'])} P99 {seconds(run['ttft_s']['p99'])} so far")
    if run["failed"]:
        parts.append(f"{run['failed']} failed")
    if run["health"] != "good":
        parts.append(f"own health {run['health']}: {own(run)}")
    if run["state"] != "over" and snapshot["left_s"] is not None:
        parts.append(f"about {clock(snapshot['left_s'])} left")
    return f"{label(snapshot)}: {', '.join(parts)}"


def own(run: dict[str, Any]) -> str:
    """How our own clock is, and what it suffers from: `our own clock is on time; without a core 3% of the time`."""
    parts = [run["health_why"]]
    if run["kernel_gap_p99_s"] is not None:
        parts.append(f"kernel gap P99 {1e3 * run['kernel_gap_p99_s']:.1f} ms")
    if run["waited_share"] is not None:
        parts.append(f"without a core {100 * run['waited_share']:.0f}% of the time")
    return "; ".join(parts)


def label(snapshot: dict[str, Any]) -> str:
    """`[2/6] naive, repeat 1`."""
    run = snapshot["runs"][snapshot["number"] - 1]
    return f"[{snapshot['number']}/{len(snapshot['runs'])}] {run['arm']}, repeat {run['repeat']}"
