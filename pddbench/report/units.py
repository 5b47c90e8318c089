"""Numbers as text: one unit for all cells of a row, three significant digits, missing bounds and refusals in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pddbench.analyze.money import NO_PRICE

_STEPS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}
_PLAIN = {"share": (0.01, "%")}
NO_BOUND = "–"
_NOTHING = 1e-10  # below the clocks' nanosecond: rounding of floats

Figure = dict[str, Any]  # a `Figure` of the summary as plain values


def value(number: Any) -> float:
    """A number of the summary as float; null is NaN, "inf" is infinite."""
    return math.nan if number is None else float(number)


def pick(figures: Sequence[Figure], unit: str) -> tuple[float, str]:
    """Scale and unit for a row: the largest finite figure of it reads at least 1."""
    if unit in _PLAIN:
        return _PLAIN[unit]
    steps = _STEPS.get(unit)
    if steps is None:
        return 1.0, unit
    sizes = [abs(value(figure[end])) for figure in figures for end in ("point", "low", "high")]
    largest = max((size for size in sizes if math.isfinite(size)), default=0.0)
    for scale, name in steps:
        if largest >= scale:
            return scale, name
    return steps[-1] if largest > _NOTHING else (1.0, next(name for scale, name in steps if scale == 1.0))


def plain(number: float, signed: bool = False) -> str:
    """Three significant digits without exponent; "inf" for infinities, "–" for what is not there."""
    if math.isnan(number):
        return NO_BOUND
    if math.isinf(number):
        return ("+" if signed and number > 0 else "") + f"{number}"
    size = abs(number) if abs(number) > _NOTHING else 0.0
    digits = 0 if size >= 99.95 or size == 0 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    if 0 < size < 0.09995:
        digits = min(6, 2 - math.floor(math.log10(size)))
    if round(size, digits) == 0:
        return "0"
    return f"{number:{'+' if signed else ''},.{digits}f}"


def _same(a: float, b: float, scale: float) -> bool:
    """Equal but for the rounding of floats."""
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=_NOTHING / scale)


def cell(figure: Figure | None, scale: float, signed: bool = False) -> str:
    """`point [low, high]`; a refusal in words; "–" where the metric does not apply."""
    if figure is None or figure["withheld"] == "no rows":
        return "–"
    if figure["withheld"] == NO_PRICE:
        return NO_PRICE
    if figure["withheld"]:
        return f"withheld ({figure['withheld']})"
    point, low, high = (value(figure[name]) / scale for name in ("point", "low", "high"))
    text = plain(point, signed)
    if math.isnan(low) and math.isnan(high):
        return text if figure["rows"] == 0 else f"{text} [no bound]"
    if _same(low, point, scale) and _same(high, point, scale):
        return text
    return f"{text} [{plain(low, signed)}, {plain(high, signed)}]"
