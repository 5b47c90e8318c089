"""The run over time, arm by arm: TTFT, requests in flight, starts, KV offered to the link, our own health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.quantiles import Floats
from pddbench.report.html.rounding import rounded
from pddbench.text import printable

if TYPE_CHECKING:
    import pandas as pd

BINS = 90
_HEALTH_POINTS = 200
_FEWEST_BINS = 12
_LEAST = 3  # requests in a bin, below which no median is drawn
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


def timeline(data: Dataset) -> dict[str, Any]:
    """One entry an arm and repeat, on a common grid of `step` seconds of experiment time."""
    rows = data.lines
    end = float(np.nanmax(rows["end_s"].to_numpy())) if rows["end_s"].notna().any() else 1.0
    bins = _bins(rows)
    step = next((step for step in _STEPS if end / step <= bins), end / bins)
    edges = np.arange(0, np.ceil(end / step) + 1) * step
    parts = []
    for arm in data.arms:
        mine = rows[rows["arm"] == arm]
        for repeat in sorted(set(mine["repeat"].tolist())):
            part = mine[mine["repeat"] == repeat]
            changes = _link_changes(data, arm, int(repeat))
            found = {"link_changes": changes, **_part(part, edges), **_health(data, arm, repeat)}
            parts.append({"arm": arm, "repeat": int(repeat), **found})
    return {"step": step, "time": edges[:-1].tolist(), "parts": parts, "link_gbit": _link_gbit(data)}


def _link_changes(data: Dataset, arm: str, repeat: int) -> list[list[Any]]:
    """[from, until, what the link was then] for each time when it was not as asked; until null: to the end."""
    runs = data.run.manifest.get("runs") or []
    run = next((run for run in runs if (run.get("arm"), run.get("repeat")) == (arm, repeat)), None)
    changes = (run or {}).get("link_changes") or []
    ends = [*(float(change["in_force_s"]) for change in changes[1:]), None]
    return [
        [float(change["in_force_s"]), until_s, printable(str(change["state"]), 40)]
        for change, until_s in zip(changes, ends, strict=False)
        if change["rate_share"] != 1
    ]


def _bins(rows: pd.DataFrame) -> int:
    """How many at most: so few that most hold enough requests for a median."""
    fewest = int(rows.groupby(["arm", "repeat"], observed=True).size().min()) if len(rows) else 0
    return min(BINS, max(_FEWEST_BINS, fewest // (2 * _LEAST)))


def _link_gbit(data: Dataset) -> float | None:
    """Rate of the link as it was asked for; null without one."""
    link = (data.run.manifest.get("wan") or {}).get("link") or {}
    rate = link.get("rate_mbit")
    return rate / 1e3 if isinstance(rate, int | float) and rate > 0 else None


def _part(rows: pd.DataFrame, edges: Floats) -> dict[str, Any]:
    """In each bin: rate of starts, mean number in flight, median and largest TTFT, KV for the link, failures."""
    step = edges[1] - edges[0]
    due, sent, end = (rows[name].to_numpy() for name in ("due_s", "sent_s", "end_s"))
    first, ok = rows["ttft_sched"].to_numpy(), rows["ok"].to_numpy(dtype=bool)
    at = np.clip(np.searchsorted(edges, due, side="right") - 1, 0, len(edges) - 2)
    p50, most = _by_bin(at, first, len(edges) - 1)
    return {
        "rate": rounded(np.histogram(sent[~np.isnan(sent)], edges)[0] / step),
        "in_flight": rounded(_in_flight(sent, end, edges)),
        "ttft_p50": rounded(p50),
        "ttft_max": rounded(most),
        "kv_gbit": rounded(_offered_gbit(rows["kv_wan_bytes"].to_numpy(), at, step, len(edges) - 1)),
        "failed": np.bincount(at[~ok], minlength=len(edges) - 1).tolist(),
    }


def _offered_gbit(kv_bytes: Floats, at: Any, step: float, bins: int) -> Floats:
    """KV that the requests due in each bin sent over the WAN, as a rate: what the link was asked to carry."""
    known = ~np.isnan(kv_bytes)
    rate: Floats = np.bincount(at[known], weights=kv_bytes[known], minlength=bins) * 8 / 1e9 / step
    return rate if known.any() else np.full(bins, np.nan)


def _in_flight(sent: Floats, end: Floats, edges: Floats) -> Floats:
    """Mean number of requests under way in each bin: their overlap with it over its length."""
    known = ~np.isnan(sent) & ~np.isnan(end)
    begun = np.maximum(edges[:, None] - sent[known], 0).sum(axis=1)  # request-seconds since each start, up to the edge
    ended = np.maximum(edges[:, None] - end[known], 0).sum(axis=1)
    share: Floats = np.diff(begun - ended) / np.diff(edges)
    return share


def _by_bin(at: Any, value: Floats, bins: int) -> tuple[Floats, Floats]:
    """Median (`inverted_cdf`) and largest finite value of each bin; NaN for bins with few."""
    p50, most = np.full(bins, np.nan), np.full(bins, np.nan)
    for i in np.unique(at).tolist():
        inside = np.sort(value[at == i])
        finite = inside[np.isfinite(inside)]
        if len(inside) >= _LEAST:
            p50[i] = inside[-(-len(inside) // 2) - 1]
        if len(finite):
            most[i] = finite[-1]
    return p50, most


def _health(data: Dataset, arm: str, repeat: Any) -> dict[str, Any]:
    """Largest lag of our event loop and CPU share of each sample; its wall times as experiment time."""
    health = data.run.health
    health = health[(health["arm"] == arm) & (health["repeat"] == repeat)].sort_values("t_ns")
    lags = np.array([np.nan if lags is None else max((float(lag) for lag in lags), default=0.0) / 1e9
                     for lags in health["loop_lag_ns"]])  # fmt: skip
    time_s = health["t_ns"].to_numpy(dtype=np.float64, na_value=np.nan) / 1e9 * data.speed(arm)
    cpu = health["cpu_share"].to_numpy(dtype=np.float64, na_value=np.nan)
    return {"health_time": rounded(_worst(time_s)), "loop_lag": rounded(_worst(lags)), "cpu": rounded(_worst(cpu), 3)}


def _worst(values: Floats) -> Floats:
    """At most `_HEALTH_POINTS` of them: of each group the largest, so that no peak is lost."""
    group = -(-len(values) // _HEALTH_POINTS) or 1
    worst: Floats = np.fmax.reduceat(values, np.arange(0, len(values), group)) if len(values) else values
    return worst
