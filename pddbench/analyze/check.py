"""Thresholds on a finished run: `ARM.METRIC.STAT OP VALUE UNIT` or `ARM.METRIC.STAT OP [k *] ARM.METRIC.STAT`.

A threshold is breached when even the better end of the figure's interval violates it, passes when the worse end
satisfies it, and is undecided in between. A comparison of two arms is decided on the interval of the difference
`left - k * right`, sessions resampled jointly.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

import msgspec

from pddbench import exitcodes
from pddbench.analyze import counters, registry
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import Figure, as_float
from pddbench.errors import InputError, suggest

_REF = r"[a-z0-9_-]{1,40}\.[a-z0-9_]+\.[a-z0-9_]+(?:\.[0-9]+)?"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_EXPRESSION = re.compile(
    rf"\s*(?P<left>{_REF})\s*(?P<op><=|>=|<|>)\s*"
    rf"(?:(?:(?P<factor>{_NUMBER})\s*\*\s*)?(?P<right>{_REF})|(?P<value>{_NUMBER})\s*(?P<unit>[^\s\d][^\s]*|1/\S+)?)\s*",
    re.IGNORECASE,
)
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SCALES: dict[str, dict[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0},
    "share": {"%": 1e-2, "share": 1.0, "": 1.0},
    "tokens": {"tokens": 1.0, "token": 1.0},
    "bytes": {"bytes": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9},
    "1/s": {"1/s": 1.0, "/s": 1.0, "req/s": 1.0, "1/min": 1 / 60},
    "tokens/s": {"tokens/s": 1.0, "tok/s": 1.0},
}


Decision = Literal["pass", "breach", "undecided"]


class Ref(msgspec.Struct, frozen=True):
    """`ARM.METRIC.STAT`."""

    arm: str
    metric: str
    stat: str

    @property
    def unit(self) -> str:
        """The metric's unit."""
        return registry.CHECKABLE[self.metric].unit

    def __str__(self) -> str:
        return f"{self.arm}.{self.metric}.{self.stat}"


class Check(msgspec.Struct, frozen=True):
    """A parsed threshold: `left OP value`, or `left OP factor * right`; `value` is in the metric's own unit."""

    text: str
    left: Ref
    op: str
    value: float = 0.0
    factor: float = 1.0
    right: Ref | None = None
    severity: Literal["fail", "warn"] = "fail"


class CheckResult(msgspec.Struct, kw_only=True):
    """How a threshold came out: `figure` is what was compared with `limit` (for two arms: left - k * right, with 0)."""

    text: str
    status: Literal["pass", "breach", "undecided", "withheld"]
    severity: Literal["fail", "warn"]
    figure: Figure
    limit: float
    reason: str | None = None


def parse_checks(checks: Mapping[str, str], arms: Collection[str]) -> list[Check]:
    """All thresholds of an experiment's `[check]` table; InputError names the first that cannot be used."""
    return [parse_check(text, arms, severity) for text, severity in checks.items()]


def parse_check(text: str, arms: Collection[str], severity: str = "fail") -> Check:
    """One threshold; InputError says what is wrong with it."""
    match = _EXPRESSION.fullmatch(text) if text.isascii() or "µ" in text else None
    if match is None:
        raise InputError(
            f"check {text!r}: not of the form ARM.METRIC.STAT OP VALUE UNIT or ARM.METRIC.STAT OP k * ARM.METRIC.STAT"
        )
    if severity not in ("fail", "warn"):
        raise InputError(f'check {text!r}: {severity!r} is neither "fail" nor "warn"')
    kind: Literal["fail", "warn"] = "fail" if severity == "fail" else "warn"
    left = _ref(match["left"], text, arms)
    if match["right"] is None:
        value = float(match["value"]) * _scale(left, match["unit"] or "", text)
        if not math.isfinite(value):
            raise InputError(f"check {text!r}: the limit is not a finite number")
        return Check(text.strip(), left, match["op"], value=value, severity=kind)
    right = _ref(match["right"], text, arms)
    if registry.HIT_COUNTERS.name in (left.metric, right.metric):
        raise InputError(f"check {text!r}: {registry.HIT_COUNTERS.name} counts a whole server: compare it with a value")
    if right.unit != left.unit:
        raise InputError(f"check {text!r}: {left} is in {left.unit}, {right} in {right.unit}")
    return Check(text.strip(), left, match["op"], factor=float(match["factor"] or 1), right=right, severity=kind)


def _ref(name: str, text: str, arms: Collection[str]) -> Ref:
    arm, metric, stat = name.split(".", 2)
    if arm not in arms:
        raise InputError(f"check {text!r}: no arm {arm!r}; {suggest(arm, list(arms))}")
    if metric not in registry.CHECKABLE:
        raise InputError(f"check {text!r}: no metric {metric!r}; {suggest(metric, list(registry.CHECKABLE))}")
    stats = registry.CHECKABLE[metric].stats
    if stat not in stats:
        raise InputError(f"check {text!r}: {metric} has no {stat!r}; {suggest(stat, list(stats))}")
    return Ref(arm, metric, stat)


def _scale(ref: Ref, unit: str, text: str) -> float:
    """Factor from the unit given to the metric's own."""
    scales = _SCALES.get(ref.unit, {ref.unit: 1.0, "": 1.0})
    if unit not in scales:
        known = ", ".join(name for name in scales if name)
        said = f"unit {unit!r} is none of {ref.metric}'s" if unit else f"{ref.metric} needs a unit"
        raise InputError(f"check {text!r}: {said} ({known})")
    return scales[unit]


def evaluate(checks: Iterable[Check], data: Dataset) -> list[CheckResult]:
    """How each threshold comes out on the run behind `data`."""
    return [_evaluate(check, data) for check in checks]


def _evaluate(check: Check, data: Dataset) -> CheckResult:
    if check.left.metric == registry.HIT_COUNTERS.name:
        figure, limit = counters.figure(data, check.left.arm), check.value
    elif check.right is None:
        figure, limit = data.arms[check.left.arm].figure(check.left.metric, check.left.stat), check.value
    else:
        pair = data.pair(check.right.arm, check.left.arm)
        of_left, of_right = (check.left.metric, check.left.stat), (check.right.metric, check.right.stat)
        figure, limit = pair.contrast(of_left, check.factor, of_right), 0.0
    return CheckResult(
        text=check.text,
        severity=check.severity,
        figure=figure,
        limit=limit,
        status="withheld" if figure.withheld else _decide(figure, _OPERATORS[check.op], limit, check.op[0] == "<"),
        reason=figure.withheld,
    )


def _decide(figure: Figure, holds: Callable[[float, float], bool], limit: float, upper: bool) -> Decision:
    """Breach, pass or undecided; `upper`: the threshold is an upper one, so the low end is the better one."""
    exact = figure.low is None and figure.high is None and figure.deff is None and figure.rows == 0
    low, high = (as_float(figure.point if exact else bound) for bound in (figure.low, figure.high))
    low, high = -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high
    better, worse = (low, high) if upper else (high, low)
    if not holds(better, limit):
        return "breach"
    return "pass" if holds(worse, limit) else "undecided"


def exit_code(results: Iterable[CheckResult], strict: bool = False) -> int:
    """99 for a breach (with `strict`, for an undecided one too), 98 for a withheld one; `warn` never counts."""
    bad = {"breach": exitcodes.THRESHOLD, "withheld": exitcodes.INVALID}
    if strict:
        bad["undecided"] = exitcodes.THRESHOLD
    counted = [result for result in results if result.severity == "fail"]
    return exitcodes.worst([bad.get(result.status, exitcodes.GOOD) for result in counted])
