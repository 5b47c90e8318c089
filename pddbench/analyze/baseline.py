"""Is a run worse than an earlier one, by more than a tolerance? Decided on the interval of the difference.

The earlier run is known by its summary.json alone, so its requests cannot be paired with ours: the two figures are
taken as independent, and the interval of `new - factor * old` is recovered from their own two (MOVER, the method of
variance estimates recovery: Zou and Donner, Statistics in Medicine 27, 2008), which keeps them as skewed as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from pddbench.analyze.intervals import as_float

SMALLER = ("ttft_sched.p50", "ttft_sched.p90", "ttft_sched.p99", "max_gap.p90", "e2e.p90")
BIGGER = ("slo_attainment.share", "goodput.rate")
_SAME = ("requests", "sessions", "wan_backend", "wan_profile", "slo", "simulated")

Status = Literal["pass", "breach", "undecided", "withheld"]


class Change(msgspec.Struct, kw_only=True):
    """A figure now and then. `factor` times the old one is the limit; `low`, `high` bound new - factor * old."""

    arm: str
    key: str
    unit: str
    status: Status
    factor: float
    old: dict[str, Any]
    new: dict[str, Any]
    low: float | None = None
    high: float | None = None


class Against(msgspec.Struct, kw_only=True):
    """A comparison with an earlier run: `not_comparable` says why nothing was compared, else it is empty."""

    baseline: str
    created_utc: str | None
    tolerance: float
    not_comparable: list[str]
    changes: list[Change]


def against(new: dict[str, Any], old: dict[str, Any], name: str, tolerance: float) -> Against:
    """Compare two summaries; `tolerance` 0.1 lets a figure be a tenth worse."""
    reasons = _reasons(new, old)
    changes = [] if reasons else list(_changes(new, old, tolerance))
    if not reasons and not changes:
        reasons = ["no arm of the same name"]
    return Against(baseline=name, created_utc=old["run"].get("created_utc"), tolerance=tolerance,
                   not_comparable=reasons, changes=changes)  # fmt: skip


def _reasons(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """What makes the two runs measurements of different things, or the old one no measurement."""
    out = [
        f"{key} was {old['run'].get(key)}, is {new['run'].get(key)}"
        for key in _SAME
        if old["run"].get(key) != new["run"].get(key)
    ]
    if old.get("exit_code") in (1, 98):
        out.append(f"the earlier run was {old.get('verdict')}")
    for arm in new["arms"].keys() & old["arms"].keys():
        if new["arms"][arm].get("speed") != old["arms"][arm].get("speed"):
            out.append(f"{arm}: emulator speed was {old['arms'][arm].get('speed')}, is {new['arms'][arm].get('speed')}")
    return out


def _changes(new: dict[str, Any], old: dict[str, Any], tolerance: float) -> Iterator[Change]:
    for arm in new["arms"]:
        then = old["arms"].get(arm, {}).get("figures", {})
        for key in (*SMALLER, *BIGGER):
            now = new["arms"][arm]["figures"].get(key)
            if now is not None and key in then:
                yield change(arm, key, now, then[key], tolerance)


def change(arm: str, key: str, new: dict[str, Any], old: dict[str, Any], tolerance: float) -> Change:
    """How one figure moved: `breach` when the whole interval of the difference lies beyond the tolerance."""
    upper = key not in BIGGER
    factor = 1 + tolerance if upper else 1 / (1 + tolerance)
    out = Change(arm=arm, key=key, unit=new["unit"], status="withheld", factor=factor, old=old, new=new)
    if new["withheld"] or old["withheld"]:
        return out
    low, high = _difference(_ends(new), _ends(old), factor)
    out.low, out.high = (None if math.isinf(bound) else bound for bound in (low, high))
    worst, best = (low, high) if upper else (-high, -low)
    out.status = "breach" if worst > 0 else "pass" if best <= 0 else "undecided"
    return out


def _ends(figure: dict[str, Any]) -> tuple[float, float, float]:
    """(point, low, high); a bound that does not exist is infinite. A figure without rows of its own is exact."""
    point, low, high = (as_float(figure[end]) for end in ("point", "low", "high"))
    if math.isnan(low) and math.isnan(high) and figure["rows"] == 0:
        return point, point, point
    return point, -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high


def _difference(new: tuple[float, float, float], old: tuple[float, float, float], factor: float) -> tuple[float, float]:
    """Bounds of new - factor * old; where a point is infinite only the bounds themselves can tell."""
    point, low, high = new
    then, then_low, then_high = (factor * end for end in old)
    if not (math.isfinite(point) and math.isfinite(then)):
        return _minus(low, then_high), _minus(high, then_low)
    middle = point - then
    return middle - math.hypot(point - low, then_high - then), middle + math.hypot(high - point, then - then_low)


def _minus(a: float, b: float) -> float:
    """a - b, where the difference of two equal infinities is nothing."""
    return 0.0 if math.isinf(a) and a == b else a - b
