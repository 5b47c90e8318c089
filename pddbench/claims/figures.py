"""Figures that claims are judged by: ratios and differences of two arms, spreads, and means over replicates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pddbench.analyze.binomial import t_quantile
from pddbench.analyze.gaps import seam_gap, seam_stall
from pddbench.analyze.intervals import Figure, draws_interval, number
from pddbench.analyze.quantiles import Floats, weighted_sums
from pddbench.analyze.registry import METRICS
from pddbench.analyze.samples import ArmData
from pddbench.claims.model import NotTestable

_LEAST = 100  # values without which nothing is said of a spread or a tail of stalls


def drawn(point: float, draws: Floats, unit: str, arm: ArmData) -> Figure:
    """A figure with the percentile interval of its draws (sessions resampled)."""
    low, high = draws_interval(np.asarray(draws, dtype=np.float64), point)
    return Figure(unit=unit, point=number(point), low=number(low), high=number(high), rows=len(arm.rows),
                  sessions=int(arm.rows["session_id"].nunique()))  # fmt: skip


def quotient(arm: ArmData, metric: str, above: str, below: str) -> Figure:
    """A quotient of two statistics of one metric of one arm."""
    draws = arm.draws(metric, above) / arm.draws(metric, below)
    return drawn(arm.point(metric, above) / arm.point(metric, below), draws, "", arm)


def ratio(of: ArmData, to: ArmData, metric: str, stat: str) -> Figure:
    """A statistic of one arm / the same of another, sessions resampled jointly (both share their weights)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = of.draws(metric, stat) / to.draws(metric, stat)
        return drawn(float(np.divide(of.point(metric, stat), to.point(metric, stat))), draws, "", of)


def cut(of: ArmData, to: ArmData, metric: str, stat: str) -> Figure:
    """1 - of/to of a statistic."""
    found = ratio(of, to, metric, stat)
    low, high = (None if end is None else number(1 - float(end)) for end in (found.high, found.low))
    point = None if found.point is None else number(1 - float(found.point))
    return Figure(unit="share", point=point, low=low, high=high, rows=found.rows, sessions=found.sessions)


def difference(of: ArmData, to: ArmData, metric: str, stat: str, unit: str = "s") -> Figure:
    """A statistic of one arm - the same of another, sessions resampled jointly."""
    draws = of.draws(metric, stat) - to.draws(metric, stat)
    return drawn(of.point(metric, stat) - to.point(metric, stat), draws, unit, of)


def known(arm: ArmData, metric: str) -> Floats:
    """The known values of a metric; `NotTestable` when they are too few for a spread or a tail."""
    values = arm.values(metric).values
    if len(values) < _LEAST:
        raise NotTestable(f"{len(values)} known values of {metric} are too few: {_LEAST} are the least")
    return values


def spread(arm: ArmData, metric: str) -> tuple[float, Floats]:
    """Standard deviation of a per-request metric, and its (draws,) values under the arm's session weights."""
    found = arm.values(metric)
    known(arm, metric)

    def by_session(x: Floats) -> Floats:
        return np.bincount(found.code, weights=x, minlength=found.sessions).astype(np.float64)

    x = found.values - found.values.mean()  # shifted: squares of small differences keep their digits
    count, first, second = by_session(np.ones_like(x)), by_session(x), by_session(x * x)
    with np.errstate(divide="ignore", invalid="ignore"):
        n, sums, squares = weighted_sums(arm.weights, np.column_stack([count, first, second])).T
        draws = np.sqrt(np.maximum(squares / n - (sums / n) ** 2, 0.0))
    return float(x.std()), draws


def spread_ratio(of: ArmData, to: ArmData, metric: str) -> Figure:
    """Standard deviation of one arm / that of another."""
    (top, top_draws), (bottom, bottom_draws) = spread(of, metric), spread(to, metric)
    with np.errstate(divide="ignore", invalid="ignore"):
        return drawn(top / bottom if bottom else math.inf, top_draws / bottom_draws, "", of)


def replicated(values: Sequence[float], unit: str) -> Figure:
    """Mean of independent replicates (seeds) with Student's interval; two at the least."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        raise NotTestable(f"{len(x)} replicate: two are the least for an interval")
    reach = t_quantile(0.975, len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    mean = float(x.mean())
    return Figure(unit=unit, point=number(mean), low=number(mean - reach), high=number(mean + reach), rows=len(x),
                  note=f"{len(x)} replicates")  # fmt: skip


def spread_difference(of: ArmData, to: ArmData, metric: str) -> Figure:
    """Standard deviation of one arm - that of another, in the metric's unit."""
    (top, top_draws), (bottom, bottom_draws) = spread(of, metric), spread(to, metric)
    return drawn(top - bottom, top_draws - bottom_draws, METRICS[metric].unit, of)


def stall_of(arm: ArmData) -> Floats:
    """Stall at the seam of each row of an arm, seconds; NaN where there is none or it is not known."""
    if arm.gaps is None:
        return np.full(len(arm.rows), np.nan)
    lines = arm.rows.index.to_numpy()
    handoff = np.full(len(arm.gaps.start), np.nan)
    handoff[lines] = arm.rows["handoff_token"].to_numpy()
    stall: Floats = seam_stall(arm.gaps, seam_gap(arm.gaps, handoff))[lines]
    return stall
