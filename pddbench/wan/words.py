"""How the WAN was made and what was measured of it, in the words of the report's first line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pddbench.text import printable

_HOW = {"model": "model, not packets", "netem": "netem, kernel packets", "tun": "tun, user-space packets"}


def why(backend: str, asked: str | None = None, reason: str = "") -> str:
    """What carried it, and, where that was left to us, why it was not something better."""
    how = _HOW.get(backend, printable(backend, 40))
    if asked != "auto":
        return how
    return f"{how} (chosen by auto{': ' + printable(reason, 160) if reason else ''})"


def events_words(events: Sequence[str]) -> str:
    """How the link changes, of an experiment's `events`; empty when it stays as it is."""
    return f"which changes ({', '.join(printable(event, 80) for event in events)})" if events else ""


def measured(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of all runs over packets: median round trip (`rtt_ms`, the worst of the runs) and least throughput (`mbit`).

    In experiment time and unscaled: as the link was asked for.
    """
    found: dict[str, float] = {}
    for run in runs:
        link = run.get("link") or {}
        for name, value in _of(link).items():
            worst = max if name == "rtt_ms" else min
            found[name] = worst(found.get(name, value), value)
    return found


def _of(link: Mapping[str, Any]) -> dict[str, float]:
    """The findings of one link, times its scales; the one farther from good of before and after."""
    speed, scale = float(link.get("speed") or 1.0), float(link.get("kv_scale") or 1.0)
    found: dict[str, float] = {}
    for when in ("before", "after"):
        for finding in (link.get(when) or {}).get("findings") or []:
            value = float(finding["found"])
            if finding["name"] == "rtt median":
                found["rtt_ms"] = max(found.get("rtt_ms", 0.0), value * speed)
            elif finding["name"] == "throughput":
                found["mbit"] = min(found.get("mbit", float("inf")), value * scale / speed)
    return found


def measured_words(found: Mapping[str, float]) -> str:
    """`measured RTT 30.4 ms, 9560 Mbit/s of payload`; empty when nothing was."""
    parts = [f"RTT {found['rtt_ms']:.1f} ms"] if "rtt_ms" in found else []
    parts += [f"{found['mbit']:.0f} Mbit/s of payload"] if "mbit" in found else []
    return "measured " + ", ".join(parts) if parts else ""


def wire_words(link: Mapping[str, Any], kv_scale: float, speed: float) -> str:
    """One link's measurement, as asked and as it is on the wire."""
    figures = measured_words(_of({**link, "kv_scale": kv_scale, "speed": speed})).removeprefix("measured ")
    scaled = "" if kv_scale == 1 else f"; on the wire rates are / {kv_scale:g}, so slow start is not represented"
    return figures + scaled + ("" if link["ok"] else f"; NOT AS ASKED: {'; '.join(link['problems'])}")
