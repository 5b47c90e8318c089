"""The catalogue of workloads: a folder each, with what it is (`workload.toml`) and what it is like (`observed.json`).

`workload.toml` names the preset, the number of requests and the seed of a trace, and in its table `[workload]` how it
is sent; that table goes into an experiment file, with the trace. `observed.json` is computed from the trace itself.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from pddbench.errors import InputError
from pddbench.trace.model import Trace
from pddbench.workload.experiment import Workload

FILE, OBSERVED = "workload.toml", "observed.json"
_EXACT = ("requests", "counts", "name", "made_by", "edges", "targets")
_RELATIVE, _ABSOLUTE = 0.02, 2.0  # of figures that the last digits of a platform's logarithm may move


class Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A workload of the catalogue. `workload` is a table of an experiment file, without its trace."""

    name: str
    preset: str
    requests: int
    seed: int
    workload: dict[str, Any] = {}

    @property
    def made_by(self) -> str:
        """The command that makes the trace."""
        return f"pddbench trace synth --preset {self.preset} --requests {self.requests} --seed {self.seed} --out FILE"


def load_entry(folder: Path) -> Entry:
    """The entry in a folder; `InputError` names the file and what is wrong with it."""
    path = folder / FILE
    try:
        entry = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Entry)
        msgspec.convert({"trace": "trace", **entry.workload}, Workload)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}") from error
    return entry


def make_trace(entry: Entry) -> Trace:
    """The trace of an entry."""
    from pddbench.trace.quota.generate import generate
    from pddbench.trace.quota.presets import preset
    from pddbench.trace.quota.sweep import sweep_header, sweep_rows

    if entry.preset == "hit-sweep":
        rows = list(sweep_rows(entry.requests, entry.seed))
        return Trace(sweep_header(entry.requests, entry.seed), rows)
    return generate(preset(entry.preset, entry.requests), entry.requests, entry.seed)


def observed(entry: Entry, trace: Trace) -> dict[str, Any]:
    """What the trace is like, in figures that are all computed from its rows; counts by the independent recount."""
    from pddbench.trace.blocks import block_hits
    from pddbench.trace.cachecurve import cache_curves
    from pddbench.trace.stats import trace_stats

    stats = msgspec.to_builtins(trace_stats(trace))
    spec = trace.header.extra.get("spec", {})
    targets = {"shares": spec.get("shares"), "mean_hit": spec.get("mean_hit"), "mean_input": _mean_input(spec)}
    return {
        "name": entry.name,
        "made_by": entry.made_by,
        "targets": targets if spec else None,
        "oracle": _recount(trace, spec.get("edges") or stats_edges(), spec.get("block_tokens", 16)),
        **{key: stats[key] for key in _FIGURES},
        "prompt_output": stats["prompt_output"],
        "blocks": {str(size): msgspec.to_builtins(block_hits(trace, size)) for size in (16, 64, 512)},
        "sessions_shape": _sessions(trace),
        "cache": msgspec.to_builtins(cache_curves(trace.rows)),
    }


_FIGURES = (
    *(
        "requests",
        "sessions",
        "span_s",
        "input_tokens",
        "output_tokens",
        "hit_tokens",
        "mean_hit",
        "token_weighted_hit",
    ),
    *("share_above_95", "buckets", "input_quantiles", "output_quantiles", "kinds"),
)


def stats_edges() -> tuple[float, ...]:
    """The edges of the seven buckets."""
    from pddbench.trace.stats import BUCKET_EDGES

    return BUCKET_EDGES


def _mean_input(spec: dict[str, Any]) -> float | None:
    mean: float | None = spec.get("input", {}).get("mean")
    return mean


def _recount(trace: Trace, edges: Any, block_tokens: int) -> dict[str, Any]:
    from pddbench.trace.oracle import bucket_counts, recount_hits

    hits = recount_hits(trace.rows, block_tokens).tolist()
    inputs = [row.input_tokens for row in trace.rows]
    mean = sum(hit / n for hit, n in zip(hits, inputs, strict=True)) / len(inputs)
    counts = bucket_counts(hits, inputs, edges)
    return {"block_size": block_tokens, "edges": list(edges), "counts": counts, "mean_hit": round(mean, 6)}


def _sessions(trace: Trace) -> dict[str, Any]:
    import numpy as np

    from pddbench.trace.quota.fit import low_hit_lag1, observe, session_lines

    seen = observe(trace.rows)
    turns = [len(line) for line in session_lines(seen)] or [0]
    gaps = [row.gap_s for row in trace.rows if row.gap_s is not None] or [0.0]
    p50, p90 = (float(v) for v in np.quantile(gaps, [0.5, 0.9], method="inverted_cdf"))
    return {
        "turns_p50": float(np.median(turns)),
        "turns_mean": round(float(np.mean(turns)), 2),
        "turns_max": max(turns),
        "singular": len(seen.singular),
        "low_hit_lag1": low_hit_lag1(seen),
        "gap_s_p50": p50,
        "gap_s_p90": p90,
    }


def differences(recorded: Any, found: Any, where: str = "") -> list[str]:
    """What is not as recorded, a line each; counts and targets must agree exactly, other figures nearly."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        names = [*recorded, *(name for name in found if name not in recorded)]
        return [
            line
            for name in names
            for line in differences(recorded.get(name), found.get(name), f"{where}.{name}".lstrip("."))
        ]
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        return [
            line
            for i, pair in enumerate(zip(recorded, found, strict=True))
            for line in differences(*pair, where=f"{where}[{i}]")
        ]
    exact = any(part.split("[")[0] in _EXACT for part in where.split("."))
    return [] if _agree(recorded, found, exact) else [f"{where}: recorded {recorded!r}, found {found!r}"]


def _agree(recorded: Any, found: Any, exact: bool) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (recorded, found))
    if exact or not numbers:
        return bool(recorded == found)
    slack = _ABSOLUTE if isinstance(recorded, int) and isinstance(found, int) else 0.001
    return bool(abs(recorded - found) <= slack + _RELATIVE * abs(recorded))


def summary_line(figures: dict[str, Any]) -> str:
    """The main figures in a sentence, as a README quotes them."""
    n = figures["requests"]
    return (
        f"{n:,} requests in {figures['sessions']:,} sessions, mean input {figures['input_tokens'] / n:,.0f} and output "
        f"{figures['output_tokens'] / n:,.0f} tokens, mean hit {figures['mean_hit']:.2%}, token-weighted "
        f"{figures['token_weighted_hit']:.2%}, above 95%: {figures['share_above_95']:.2%}"
    )


def write_observed(folder: Path, figures: dict[str, Any]) -> None:
    """Write `observed.json`, indented."""
    text = msgspec.json.format(msgspec.json.encode(figures), indent=2).decode() + "\n"
    try:
        (folder / OBSERVED).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder / OBSERVED}: cannot be written ({error.strerror or error})") from error


def read_observed(folder: Path) -> Any:
    """What `observed.json` records."""
    path = folder / OBSERVED
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: is not JSON ({error})") from error
