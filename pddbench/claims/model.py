"""A claim's row: what is claimed, as ranges; what we found, as figures; the verdict, computed from both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from pddbench.analyze.intervals import Figure, as_float, number

if TYPE_CHECKING:
    from pddbench.claims.scenes import Scenes

Verdict = Literal["agrees", "differs", "not testable here"]
Where = Literal["arithmetic", "simulated", "emulated", "live engine"]


class Part(msgspec.Struct, kw_only=True):
    """One figure of a claim: `claimed` is the published range (both ends included), `found` ours.

    It agrees when our interval (or the bare figure, rounded like the published one) and the range overlap.
    `alternative`: the claim names no reference, so it is enough when one of the alternatives agrees.
    """

    name: str
    claimed_low: float | None
    claimed_high: float | None
    found: Figure
    verdict: Verdict
    alternative: bool = False


class Row(msgspec.Struct, kw_only=True):
    """A row of the table."""

    id: str
    claim: str
    verdict: Verdict
    where: str
    parts: list[Part] = []
    note: str = ""
    seconds: float = 0.0


class Found(msgspec.Struct, kw_only=True):
    """What a claim's function returns: where it was measured, its parts, what must be said beside them."""

    where: Where
    parts: list[Part] = []
    note: str = ""


class NotTestable(Exception):
    """Raised by a claim's function when nothing here can measure it; the message is the reason."""


class Claim(msgspec.Struct, frozen=True):
    """A claim: its number, its words, and the function that measures it."""

    id: str
    text: str
    measure: Callable[[Scenes], Found]


def part(
    name: str, claimed: tuple[float, float], found: Figure | float, unit: str = "", *, alternative: bool = False
) -> Part:
    """A part whose verdict is computed. A bare number is exact (arithmetic, or a count)."""
    figure = found if isinstance(found, Figure) else Figure(unit=unit, point=number(found))
    low, high = claimed
    return Part(name=name, claimed_low=_finite(low), claimed_high=_finite(high), found=figure,
                verdict=judge(low, high, figure), alternative=alternative)  # fmt: skip


def beyond(name: str, limit: float, draws: Sequence[float], point: float, *, below: bool = False) -> Part:
    """A claim of direction: all of our interval must lie beyond `limit` (`below` it, if asked).

    `draws` are resampled values. An interval on both sides of the limit tells nothing.
    """
    import numpy as np

    low, high = (float(each) for each in np.nanquantile(np.asarray(draws, dtype=np.float64), (0.025, 0.975)))
    found = Figure(unit="ratio", point=number(point), low=number(low), high=number(high))
    right, wrong = (high < limit, low > limit) if below else (low > limit, high < limit)
    claimed = (None, limit) if below else (limit, None)
    return Part(name=name, claimed_low=claimed[0], claimed_high=claimed[1], found=found,
                verdict="agrees" if right else "differs" if wrong else "not testable here")  # fmt: skip


def about(value: float, share: float = 0.1) -> tuple[float, float]:
    """The range of a figure published as "about": 10% either way unless said otherwise."""
    return value - abs(value) * share, value + abs(value) * share


def digits(value: float, step: float) -> tuple[float, float]:
    """The range of a figure published to a step: half a step either way."""
    return value - step / 2, value + step / 2


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judge(low: float, high: float, found: Figure) -> Verdict:
    """Whether our figure and the published range overlap; blank figures tell nothing."""
    if found.withheld or found.point is None:
        return "not testable here"
    point = as_float(found.point)
    ours_low = point if found.low is None else as_float(found.low)
    ours_high = point if found.high is None else as_float(found.high)
    slack = 1e-9 * max(1.0, abs(low) if math.isfinite(low) else 0.0)
    return "agrees" if ours_low <= high + slack and ours_high >= low - slack else "differs"


def verdict(parts: Sequence[Part]) -> Verdict:
    """Of a claim: it differs when a part does; of alternatives one must agree; it is untestable without any part."""
    fixed = [one.verdict for one in parts if not one.alternative]
    options = [one.verdict for one in parts if one.alternative and one.verdict != "not testable here"]
    if options:
        fixed.append("agrees" if "agrees" in options else "differs")
    known = [one for one in fixed if one != "not testable here"]
    if not known:
        return "not testable here"
    return "differs" if "differs" in known else "agrees"
