"""The numbers behind the plots of `report.html`, as one JSON-able value: what the page's script draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.report.html.curves import percentile_curves
from pddbench.report.html.lanes import lanes
from pddbench.report.html.spacing import gap_profiles
from pddbench.report.html.timeline import timeline
from pddbench.text import printable

HITS_SHOWN = 2000  # dots an arm; more would hide each other and swell the page
_PAIRED = ("ttft_sched", "ttst", "itl", "max_gap", "e2e", "session_completion")


def payload(data: Dataset, summary: dict[str, Any]) -> dict[str, Any]:
    """Everything the plots show; lists of plain numbers, null where something did not happen, times in seconds."""
    return {
        "name": printable(summary["run"]["name"], 80),
        "arms": list(summary["arms"]),
        "slo": summary["run"]["slo"],
        "curves": percentile_curves(data),
        "buckets": _buckets(summary),
        "hits": {name: _hits(part.rows) for name, part in data.arms.items()},
        "lanes": lanes(data),
        "gaps": gap_profiles(data),
        "timeline": timeline(data),
        "paired": _paired(summary),
    }


def _buckets(summary: dict[str, Any]) -> dict[str, Any]:
    """Figures of each planned-hit bucket, arm by arm; buckets that nobody fell into are left out."""
    arms = summary["arms"]
    names = [bucket["bucket"] for bucket in next(iter(arms.values()), {"buckets": []})["buckets"]]
    used = [i for i in range(len(names)) if any(arm["buckets"][i]["requests"] for arm in arms.values())]
    metrics = ("ttft_sched.p50", "ttft_sched.p90", "second_sched.p50", "slo_attainment.share")
    return {
        "names": [names[i] for i in used],
        "requests": {name: [arm["buckets"][i]["requests"] for i in used] for name, arm in arms.items()},
        "figures": {
            metric: {
                name: [_bare(arm["buckets"][i]["figures"].get(metric)) for i in used] for name, arm in arms.items()
            }
            for metric in metrics
        },
    }


def _bare(figure: dict[str, Any] | None) -> list[float | str | None] | str | None:
    """[point, low, high], the reason why it is withheld, or null."""
    if figure is None or figure["withheld"] == "no rows":
        return None
    return figure["withheld"] or [figure["point"], figure["low"], figure["high"]]


def _hits(rows: Any) -> dict[str, Any]:
    """Input, planned and served tokens of requests whose served hit is known; an even sample where there are many."""
    known = rows[["request_id", "input_tokens_planned", "cached_tokens_planned", "cached_tokens"]].dropna()
    total = len(known)
    if total > HITS_SHOWN:
        known = known.iloc[np.linspace(0, total - 1, HITS_SHOWN).astype(int)]
    ids, *columns = (known[name].tolist() for name in known)
    size, planned, served = ([int(value) for value in column] for column in columns)
    return {"total": total, "id": [printable(text, 60) for text in ids],
            "input": size, "planned": planned, "served": served}  # fmt: skip


def _paired(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Differences from the first arm, one entry an arm, metric and quantile."""
    return [
        {"arm": arm, "against": pair["against"], "metric": metric, "stat": stat,
         "figure": _bare(pair["differences"][f"{metric}.{stat}"])}
        for arm, pair in summary["paired"].items()
        for metric in _PAIRED
        for stat in ("p50", "p90", "p99")
    ]  # fmt: skip
