"""A run against an earlier one, known by its summary.json: loading it, thresholds of it, and how that is said."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec

from pddbench.analyze.baseline import BIGGER, Against, Change, against
from pddbench.analyze.check import CheckResult
from pddbench.analyze.intervals import Figure, number
from pddbench.errors import InputError
from pddbench.text import printable

_MOST_BYTES = 64 << 20


def tolerance(text: str) -> float:
    """`10%`, `10 %` or `0.1` as a share; InputError for anything else."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", text)
    value = float(found[1]) / (100 if found[2] else 1) if found else math.inf
    if not value <= 10:
        raise InputError(f"--tolerance {text!r}: give a share like 10% or 0.1")
    return value


def compare(new: dict[str, Any], path: Path, allowed: str) -> Against:
    """`new` (a summary) against the one in `path`, a summary.json or a run folder that holds one."""
    share = tolerance(allowed)
    file = path / "summary.json" if path.is_dir() else path
    return against(new, _load(file), str(file), share)


def _load(file: Path) -> dict[str, Any]:
    """A summary.json; InputError when it is none."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise InputError(f"--baseline {file}: too large for a summary.json")
        plain = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not JSON"
        raise InputError(f"--baseline {file}: cannot be read ({said}); give a summary.json or a run folder") from None
    if not _is_summary(plain):
        raise InputError(f"--baseline {file}: not a summary.json of pddbench (no `run` with `arms` and their figures)")
    summary: dict[str, Any] = plain
    return summary


def _is_summary(plain: Any) -> bool:
    """Whether what is read of a summary is there, and figures are figures."""
    try:
        for arm in plain["arms"].values():
            for figure in arm["figures"].values():
                msgspec.convert(figure, Figure)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError):
        return False
    return isinstance(plain.get("run"), dict)


def results(found: Against) -> list[CheckResult]:
    """Each change as a threshold; a comparison that could not be made is one that is undecided."""
    if found.not_comparable:
        said = "not compared: " + printable("; ".join(found.not_comparable), 300)
        return [CheckResult(text="not worse than the earlier run", status="undecided", severity="fail",
                            figure=Figure(unit="s"), limit=0.0, reason=said)]  # fmt: skip
    return [_result(change) for change in found.changes]


def _result(change: Change) -> CheckResult:
    sign = ">=" if change.key in BIGGER else "<="
    old, new = (None if figure["point"] is None else float(figure["point"]) for figure in (change.old, change.new))
    point = None if old is None or new is None or math.isinf(old) else number(new - change.factor * old)
    figure = Figure(unit=change.unit, point=point, low=change.low, high=change.high, rows=change.new["rows"] or 1)
    reason = None
    if change.status == "withheld":
        reason = f"now: {change.new['withheld'] or 'there'}; then: {change.old['withheld'] or 'there'}"
    # a figure that has too few rows in either run says nothing about the change: no breach, and no error either
    return CheckResult(text=f"{change.arm}.{change.key} {sign} {change.factor:.4g} * earlier",
                       status="undecided" if reason else change.status, severity="fail", figure=figure, limit=0.0,
                       reason=reason)  # fmt: skip


def headline(found: Against) -> str:
    """What was compared with what, in one line."""
    when = f" of {printable(found.created_utc, 40)}" if found.created_utc else ""
    words = {"breach": "worse", "pass": "not worse", "undecided": "undecided", "withheld": "withheld"}
    counts = [f"{sum(one.status == status for one in found.changes)} {word}" for status, word in words.items()]
    said = "not compared" if found.not_comparable else ", ".join(counts)
    return f"against the earlier run{when}, tolerance {100 * found.tolerance:g}%: {said}"
