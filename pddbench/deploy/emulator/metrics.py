"""The deployment's /metrics page (Prometheus text format)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_LATE = {"0.5": "late_p50_ns", "0.99": "late_p99_ns", "1": "late_max_ns"}


def prometheus(
    figures: Mapping[str, Mapping[str, float]],
    outcomes: Mapping[str, int],
    tokens: Mapping[str, int],
    pipelines: Mapping[str, int],
    in_flight: int,
) -> str:
    """All metrics as text."""
    sent = figures["a"].get("kv_sent_bytes", 0.0)
    wire = figures["a"].get("kv_sent_wire_bytes", 0.0)
    late = [
        (f'process="{process}",quantile="{q}"', own[key] / 1e9)
        for process, own in figures.items()
        for q, key in _LATE.items()
    ]
    families: list[tuple[str, str, str, Iterable[tuple[str, float]]]] = [
        ("requests_total", "counter", "Requests that ended, by outcome.", _labelled("outcome", outcomes)),
        ("requests_by_pipeline_total", "counter", "Finished requests by pipeline.", _labelled("pipeline", pipelines)),
        ("requests_in_flight", "gauge", "Requests being served.", [("", in_flight)]),
        ("tokens_total", "counter", "Tokens relayed, by the stage that made them.", _labelled("stage", tokens)),
        ("kv_wan_bytes_total", "counter", "Model KV bytes that crossed the WAN.", [("", sent)]),
        ("kv_wan_wire_bytes_total", "counter", "Bytes really sent for it (KV bytes / kv_scale).", [("", wire)]),
        ("timer_late_seconds", "gauge", "How late timers ran, wall seconds, since the start.", late),
        ("cpu_seconds_total", "counter", "CPU time.", [(f'process="{p}"', f["cpu_s"]) for p, f in figures.items()]),
    ]
    return "".join(_family(*family) for family in families)


def _labelled(label: str, values: Mapping[str, int]) -> list[tuple[str, float]]:
    return [(f'{label}="{name}"', float(n)) for name, n in sorted(values.items())]


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> str:
    full = f"pddbench_emulator_{name}"
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    lines += [f"{full}{{{labels}}} {value:g}" if labels else f"{full} {value:g}" for labels, value in samples]
    return "\n".join(lines) + "\n"
