"""A claim's row: what is claimed, as ranges; what we found, as figures; the verdict, computed from both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from pddbench.analyze.intervals import Figure, as_float, number

Verdict = Literal["agrees", "differs", "undecided", "not testable here"]
Gone = Literal["gone", "still there", "undecided", "not testable here"]
Where = Literal["arithmetic", "simulated", "emulated", "live engine"]


class Part(msgspec.Struct, kw_only=True):
    """One figure of a claim: `claimed` is the published range (both ends included), `found` ours; see `judge`.

    `alternative`: the claim names no reference, so it is enough when one of the alternatives agrees.
    """

    name: str
    claimed_low: float | None
    claimed_high: float | None
    found: Figure
    verdict: Verdict
    alternative: bool = False


class OffPart(msgspec.Struct, kw_only=True):
    """The effect of a claim with its mechanism switched off; `verdict` as `without` has it."""

    name: str
    none_low: float | None
    none_high: float | None
    found: Figure
    verdict: Gone


class Row(msgspec.Struct, kw_only=True):
    """A row of the table. `off`: what is left of the effect without its mechanism; `size`: of what was measured.

    `date` of measuring (ISO 8601), `command`: what measures it again, `seconds` of wall time.
    """

    id: str
    claim: str
    verdict: Verdict
    where: str
    parts: list[Part] = []
    off: list[OffPart] = []
    note: str = ""
    hangs_on: str = ""
    size: str = ""
    date: str = ""
    command: str = ""
    seconds: float = 0.0


class Found(msgspec.Struct, kw_only=True):
    """What a claim's function returns: where it was measured, its parts, what must be said beside them.

    `hangs_on`: the constants that decide, their source, and what another plausible one would change.
    """

    where: Where
    parts: list[Part] = []
    off: list[OffPart] = []
    note: str = ""
    hangs_on: str = ""
    size: str = ""


class NotTestable(Exception):
    """Raised by a claim's function when nothing here can measure it; the message is the reason."""


class Claim(msgspec.Struct, frozen=True):
    """A claim: its number, its words, and the function that measures it."""

    id: str
    text: str
    measure: Callable[[Any], Found]  # of `Scenes`


def part(
    name: str, claimed: tuple[float, float], found: Figure | float, unit: str = "", *, alternative: bool = False
) -> Part:
    """A part whose verdict is computed. A bare number is exact (arithmetic, or a count)."""
    figure = found if isinstance(found, Figure) else Figure(unit=unit, point=number(found))
    low, high = claimed
    return Part(name=name, claimed_low=_finite(low), claimed_high=_finite(high), found=figure,
                verdict=judge(low, high, figure), alternative=alternative)  # fmt: skip


def without(
    name: str,
    none: tuple[float, float],
    found: Figure | float,
    unit: str = "",
    *,
    agrees: tuple[float, float] | None = None,
    nothing: float = 0.0,
) -> OffPart:
    """The effect without its mechanism: gone when all of our interval is in the range of none, still there when none
    of it is, else undecided.

    `agrees`: the range in which the claim's own part agrees, where it overlaps that of none. Then it is gone only if
    our interval has no effect (`nothing`) in it or lies outside that range, and still there if all of it lies inside.
    """
    figure = found if isinstance(found, Figure) else Figure(unit=unit, point=number(found))
    low, high = none
    if figure.withheld or figure.point is None:
        verdict: Gone = "not testable here"
    else:
        ours_low, ours_high = _ends(figure)
        slack = 1e-9
        inside = ours_low >= low - slack and ours_high <= high + slack
        outside = ours_low > high + slack or ours_high < low - slack
        if agrees is not None and not ours_low - slack <= nothing <= ours_high + slack:
            beside = ours_high < agrees[0] or ours_low > agrees[1]
            inside, outside = inside and beside, outside or (ours_low >= agrees[0] and ours_high <= agrees[1])
        verdict = "gone" if inside else "still there" if outside else "undecided"
    return OffPart(name=name, none_low=_finite(low), none_high=_finite(high), found=figure, verdict=verdict)


def about(value: float, share: float = 0.1) -> tuple[float, float]:
    """The range of a figure published as "about": 10% either way unless said otherwise."""
    return value - abs(value) * share, value + abs(value) * share


def digits(value: float, step: float) -> tuple[float, float]:
    """The range of a figure published to a step: half a step either way."""
    return value - step / 2, value + step / 2


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judge(low: float, high: float, found: Figure) -> Verdict:
    """Whether our figure is as published; blank figures tell nothing.

    A range with one end is a claim of direction or of a threshold: it agrees when all of our interval is beyond that
    end, differs when none is, and is undecided in between. A range with two ends agrees when our interval overlaps it,
    unless the interval is so wide that it fits much else: wider than the range and a quarter of its larger end.
    """
    if found.withheld or found.point is None:
        return "not testable here"
    ours_low, ours_high = _ends(found)
    slack = 1e-9 * max(1.0, *(abs(end) for end in (low, high) if math.isfinite(end)), 0.0)
    if ours_low > high + slack or ours_high < low - slack:
        return "differs"
    if math.isinf(low) or math.isinf(high):
        return "agrees" if ours_low >= low - slack and ours_high <= high + slack else "undecided"
    return "agrees" if ours_high - ours_low <= high - low + 0.25 * max(abs(low), abs(high)) else "undecided"


def _ends(found: Figure) -> tuple[float, float]:
    """Our interval; of a bare figure the figure; a bound that does not exist is infinite."""
    if found.low is None and found.high is None:
        return as_float(found.point), as_float(found.point)
    low = -math.inf if found.low is None else as_float(found.low)
    return low, math.inf if found.high is None else as_float(found.high)


def verdict(parts: Sequence[Part]) -> Verdict:
    """Of a claim: it differs when a part does, and is undecided when one is; of alternatives one must agree.

    It is untestable when no part can be told.
    """
    fixed = [one.verdict for one in parts if not one.alternative]
    options = [one.verdict for one in parts if one.alternative and one.verdict != "not testable here"]
    if options:
        fixed.append(next((each for each in ("agrees", "undecided") if each in options), "differs"))
    known = [one for one in fixed if one != "not testable here"]
    if not known:
        return "not testable here"
    return next((each for each in ("differs", "undecided") if each in known), "agrees")
