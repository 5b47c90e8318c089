"""Percentile curves for the page: the whole observed spectrum of a metric, and the band where an interval exists."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import as_float
from pddbench.report.html.rounding import rounded

if TYPE_CHECKING:
    from pddbench.analyze.samples import Values

METRICS = (
    ("ttft_sched", "TTFT from due"),
    ("ttft", "TTFT from sent"),
    ("ttst", "second-token gap"),
    ("max_gap", "largest gap"),
    ("itl", "inter-token latency"),
    ("e2e", "end to end"),
)
_POINTS = 300
_BAND = np.unique(np.round(1 - np.logspace(-0.02, -3, 40), 5))


def percentile_curves(data: Dataset) -> list[dict[str, Any]]:
    """One entry a metric: its objective (s, or null) and for each arm rows, failures, curve, band, share inside."""
    out = []
    for name, label in METRICS:
        limit = _objective(data.slo, name)
        arms = {arm: _curve(part.values(name), limit) for arm, part in data.arms.items()}
        out.append({"metric": name, "label": label, "slo": limit, "arms": arms})
    return out


def _objective(slo: dict[str, Any], name: str) -> float | None:
    limit = slo.get(f"{name}_ms")
    return None if limit is None else float(limit) / 1e3


def _curve(values: Values, limit: float | None) -> dict[str, Any]:
    """Share `q` of the rows that lies below each value, at places that are even on a log-percentile axis.

    `inside` is the share of all rows, failures among them, that meets the objective; null without one.
    """
    ascending = values.ascending
    n, finite = len(ascending), int(np.isfinite(ascending).sum())
    if values.blank or finite == 0:
        return {"rows": n, "failed": n - finite, "blank": values.blank, "q": [], "value": [], "band": [],
                "inside": None}  # fmt: skip
    at = _places(n, finite)
    band = _band(values)
    inside = None if limit is None else round(float(np.searchsorted(ascending, limit, side="right")) / n, 6)
    return {"rows": n, "failed": n - finite, "blank": None, "inside": inside, "q": rounded(at / n, 6),
            "value": rounded(ascending[at]), "band": [rounded(row, 6) for row in band]}  # fmt: skip


def _places(n: int, finite: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Ranks to show: all of a small sample, else evenly spaced in log10(1 - q); the last finite one always."""
    if finite <= _POINTS:
        return np.arange(finite)
    ranks = np.floor(n * (1 - np.logspace(0, -math.log10(n), _POINTS))).astype(np.int64)
    return np.unique(np.append(ranks[ranks < finite], finite - 1))


def _band(values: Values) -> list[tuple[float, float, float]]:
    """(q, low, high) where both bounds exist and are finite."""
    kept = []
    for q in _BAND.tolist():
        figure = values.figure(q, "s")
        low, high = as_float(figure.low), as_float(figure.high)
        if math.isfinite(low) and math.isfinite(high):
            kept.append((q, low, high))
    return kept
