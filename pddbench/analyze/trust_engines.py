"""The rule about deployments of real servers that were started here: whether their tokens are exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.finding import Finding

_PROCESS = "exactness"


def exact(data: Dataset) -> Iterator[Finding]:
    """Tokens that differ from those of a single process: the hand-off lost, doubled or changed something."""
    for arm in data.arms:
        facts = data.arm_facts(arm)
        if facts.get("engine") and not data.arms[arm].rows.empty:
            started = facts.get("started") or {}
            yield from _of(arm, _counts(data, arm), str(started.get("why_inexact") or ""))


def _counts(data: Dataset, arm: str) -> dict[str, float]:
    """What the check of all the arm's repeats counted."""
    server = data.run.server
    mine = server[(server["arm"] == arm) & (server["process"] == _PROCESS)]
    return {str(name): float(value) for name, value in mine.groupby("metric")["value"].sum().items()}


def compared(data: Dataset, arm: str) -> dict[str, int]:
    """`replies` compared with a single process and how many were `differing`; empty where none was."""
    counts = _counts(data, arm)
    return {name: int(counts.get(name, 0)) for name in ("replies", "differing")} if counts.get("replies") else {}


def _of(arm: str, counts: dict[str, float], why_inexact: str) -> Iterator[Finding]:
    checked, differing, not_kept = (int(counts.get(name, 0)) for name in ("replies", "differing", "not_kept"))
    figures: dict[str, Any] = {"arm": arm, "measured": float(differing), "limit": 0.0, "unit": "replies"}
    if differing:
        yield Finding(
            rule="exact",
            level="warning" if why_inexact else "invalid",
            message=f"{differing} of {checked} replies hold other tokens than a single process gives"
            + (f": not promised here, because {why_inexact}" if why_inexact else ""),
            advice="compare timings, not texts"
            if why_inexact
            else "a hand-off lost, doubled or changed tokens: do not use this arm, and report it with the run folder",
            **figures,
        )
    if not checked or not_kept:
        yield Finding(
            rule="exact",
            level="warning",
            message=f"{not_kept} replies were not compared with a single process" if checked else
            "no reply was compared with a single process: whether the tokens are exact is not known",
            advice="let the run go to its end, with fewer tokens",
            arm=arm,
        )  # fmt: skip
