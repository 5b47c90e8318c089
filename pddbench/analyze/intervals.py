"""95% intervals by session: turns of a session move together, so rows are never treated as independent.

A quantile's interval is Korn and Graubard's: Clopper-Pearson for the share of rows below it, at the effective sample
size rows / design effect, shrunk because the design effect is itself estimated (Satterthwaite degrees of freedom
over the session scores), read back on the sorted rows. What needs more effective rows than there are is withheld.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np

from pddbench.analyze.binomial import clopper_pearson, t_quantile
from pddbench.analyze.quantiles import Bools, Codes, Floats, sorted_quantile

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2
_Z = 1.959964
ONE_SESSION = "one session"

Number = float | Literal["inf", "-inf"]


class Figure(msgspec.Struct, kw_only=True):
    """A number and how sure it is.

    `point`, `low`, `high` are in `unit`; "inf" and "-inf" stand for infinities (JSON has none); a bound that does not
    exist is null. `rows`, `sessions`, `deff` (design effect) and `n_eff` (rows / deff after shrinking) say what it
    stands on. `withheld` is the reason why the figure is blanked, else null.
    """

    unit: str
    point: Number | None = None
    low: Number | None = None
    high: Number | None = None
    rows: int = 0
    sessions: int = 0
    deff: float | None = None
    n_eff: float | None = None
    withheld: str | None = None
    note: str | None = None


class Spread(msgspec.Struct, frozen=True):
    """What a sample is worth: design effect, effective rows, Satterthwaite degrees of freedom."""

    deff: float
    n_eff: float
    df: float


def number(value: float | None) -> Number | None:
    """A float as JSON can hold it: infinities as words, NaN as null."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(value)


def as_float(value: Number | None) -> float:
    """The opposite of `number`; null is NaN."""
    return math.nan if value is None else float(value)


def rows_needed(q: float) -> int:
    """Effective rows without which quantile `q` has no two-sided 95% interval: 36, 368, 3688 for P90, P99, P99.9."""
    return math.ceil(math.log(_TAIL) / math.log(max(q, 1 - q)))


def spread(flag: Bools, code: Codes, sessions: int) -> Spread:
    """How far the share of `flag` varies by session, against independent rows.

    When all rows agree nothing can be estimated from them and sessions count as if each spoke with one voice.
    """
    n = len(flag)
    size = np.bincount(code, minlength=sessions).astype(np.float64)
    m = int((size > 0).sum())
    hits = np.bincount(code[flag], minlength=sessions).astype(np.float64)
    p = float(hits.sum()) / n
    one_voice = float(size @ size) / n  # the design effect if a session's rows were copies of each other
    if m < 2:
        return Spread(deff=float(n), n_eff=0.0, df=0.0)
    if p in (0.0, 1.0):
        return _effective(n, one_voice, m - 1, one_voice)
    z = hits - p * size
    deff = (m / (m - 1)) * float(z @ z) / (n * p * (1 - p))
    df = float(z @ z) ** 2 / (float((z**4).sum()) + 1e-300) - 1
    return _effective(n, deff, min(df, m - 1), one_voice)


def _effective(n: int, deff: float, df: float, one_voice: float) -> Spread:
    """Effective rows: n / deff, shrunk for the degrees of freedom, but never below what one row a session would give.

    (Without that floor a few sessions in the tail shrank n_eff below the number of sessions: fewer intervals were
    printed, and those that were covered less, because printing became a selection.)
    """
    deff, df = max(1.0, deff), max(1.0, df)
    shrink = (_Z / t_quantile(1 - _TAIL, min(2000, round(df)))) ** 2
    return Spread(deff=deff, n_eff=min(n, max(n / deff * shrink, n / max(deff, one_voice))), df=df)


def quantile_figure(
    ascending: Floats, code: Codes, sessions: int, q: float, unit: str, values: Floats | None = None
) -> Figure:
    """Quantile `q` of sorted values with their session codes, its interval, or why it is withheld.

    `values`: the same values in the order of `code`, where that is not the sorted one.
    """
    n = len(ascending)
    if n == 0:
        return Figure(unit=unit, withheld="no rows")
    point = sorted_quantile(ascending, q)
    coded = ascending if values is None else values
    above = coded > point
    found = spread(above if above.any() else coded >= point, code, sessions)
    figure = _base(unit, n, code, found)
    if figure.sessions < 2:
        figure.withheld = ONE_SESSION
    elif found.n_eff < rows_needed(q):
        figure.withheld = f"n_eff {math.floor(found.n_eff)} < {rows_needed(q)}"
    else:
        low, high = _ranks(found.n_eff, q, n)
        figure.point, figure.low = number(point), number(float(ascending[low]) if low >= 0 else None)
        figure.high = number(float(ascending[high]) if high < n else None)
    return figure


def _base(unit: str, n: int, code: Codes, found: Spread) -> Figure:
    seen = int((np.bincount(code) > 0).sum())
    return Figure(
        unit=unit, rows=n, sessions=seen, deff=round(float(found.deff), 3), n_eff=round(float(found.n_eff), 1)
    )


def _ranks(n_eff: float, q: float, n: int) -> tuple[int, int]:
    """0-based ranks of the bounds of quantile `q`; -1 and n mean that there is none."""
    low, high = clopper_pearson(round(q * n_eff, 6), round(n_eff, 6))
    if q**n_eff > _TAIL:
        return math.floor(low * n) - 1, n
    if (1 - q) ** n_eff > _TAIL:
        return -1, math.ceil(high * n) - 1
    return math.floor(low * n) - 1, math.ceil(high * n) - 1


def share_figure(flag: Bools, code: Codes, sessions: int) -> Figure:
    """Share of rows that are true, with Clopper-Pearson at the effective sample size."""
    n = len(flag)
    if n == 0:
        return Figure(unit="share", withheld="no rows")
    found = spread(flag, code, sessions)
    figure = _base("share", n, code, found)
    if figure.sessions < 2:
        figure.withheld = ONE_SESSION
        return figure
    point = float(flag.mean())
    low, high = clopper_pearson(round(point * found.n_eff, 6), round(found.n_eff, 6))
    figure.point, figure.low, figure.high = point, min(low, point), max(high, point)
    return figure


def draws_interval(draws: Floats, point: float = math.nan) -> tuple[float | None, float | None]:
    """Percentile interval of bootstrap draws, widened to hold `point`.

    A draw that is not a number (no rows in it, or inf - inf) counts against both ends; None: no bound.
    """
    unknown = np.isnan(draws)
    low = sorted_quantile(np.sort(np.where(unknown, -np.inf, draws)), _TAIL)
    high = sorted_quantile(np.sort(np.where(unknown, np.inf, draws)), 1 - _TAIL)
    lost = unknown.mean() >= _TAIL
    low, high = (low, high) if math.isnan(point) else (min(low, point), max(high, point))
    return (None if lost and math.isinf(low) else low), (None if lost and math.isinf(high) else high)
