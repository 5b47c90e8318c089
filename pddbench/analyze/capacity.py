"""Capacity: the largest rate at which an arm meets its objectives at the stated attainment, from noisy runs.

All runs count, also those far from the knee. Attainment is modelled as P = c x logistic(a - b log(rate)): c, at most
1, is what is met at hardly any load (long prompts may miss a TTFT whatever the load is). Runs are quasi-binomial
(McCullagh and Nelder 1989): requests of a run are not independent, and the dispersion is the larger of the one
between a run's thirds and the one between runs and curve. The interval is the profile of that likelihood at F(1, df).
Isotonic regression over the same runs (Ayer et al. 1955) is printed beside it: it assumes no curve. Plain bisection is
not offered: one wrong answer of it is final.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from pddbench.analyze.binomial import t_quantile
from pddbench.analyze.quantiles import Bools, Floats

BLOCKS = 3  # parts of a run between which the dispersion is taken
LEAST_RUNS = 4  # below that no interval
_SLOPE_PRIOR = 10.0  # centre of the weak log-normal prior on b: an e-fold of odds for 10% more load
_SLOPE_WIDTH = 2.0  # its standard deviation on the log scale: a factor of 7 either way
_LOCAL = 0.25  # runs within this log distance of the knee (or 2.5 e-folds of the odds) are fitted
_FLAT = 0.03  # attainment that differs by less over a fourfold range of low rates does not depend on load
_LEAST_FREEDOM = 6  # degrees of freedom of the dispersion, without which the search does not end on its interval
_SETTLED = 0.03  # attainment that falls by less within runs is settled
_ZOOMS = 4  # grids of the fit, each an eighth as wide
_LEAST_ASIDE, _MOST_ASIDE = 0.015, 0.08  # log distance from the knee to the next run
_COARSE = 4  # runs that halve the bracket before the fit decides


class RunPoint(msgspec.Struct, frozen=True):
    """A run at `rate` (sessions or requests a second): requests that met all objectives of all, by thirds in time."""

    rate: float
    good: tuple[int, ...]
    total: tuple[int, ...]

    @property
    def attainment(self) -> float:
        """Share of requests that met all objectives."""
        return sum(self.good) / sum(self.total) if sum(self.total) else 0.0


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The rate at which attainment is `target`, with a 95% interval; a bound that does not exist is null.

    `isotonic` is the same rate without a curve. `slope`: b; `offset`: a; `ceiling`: c; `dispersion`: variance over the
    binomial one, `freedom` its degrees of freedom. `settling`: attainment of the last third of a run less that of the
    first, over runs below the knee, where it falls beyond doubt (runs too short for their queues); else null.
    """

    target: float
    rate: float | None
    low: float | None
    high: float | None
    isotonic: float | None
    runs: int
    dispersion: float
    offset: float = 0.0
    slope: float = 0.0
    ceiling: float = 1.0
    freedom: float = 0.0
    settling: float | None = None
    why: str | None = None

    @property
    def half_width(self) -> float:
        """Half the interval as a share of the rate; inf without one."""
        if self.rate is None or self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / 2 / self.rate

    def attainment(self, rate: Floats) -> Floats:
        """The fitted attainment at rates (n,)."""
        out: Floats = self.ceiling / (1 + np.exp(-np.clip(self.offset - self.slope * np.log(rate), -35, 35)))
        return out


def point_of(rate: float, flags: Bools) -> RunPoint:
    """A run from its requests in order of time, each good or not."""
    parts = np.array_split(np.asarray(flags, dtype=bool), BLOCKS)
    return RunPoint(rate, tuple(int(p.sum()) for p in parts), tuple(len(p) for p in parts))


def estimate(points: Sequence[RunPoint], target: float) -> Estimate:
    """What all runs say of the rate at which attainment is `target`."""
    return _estimate(tuple(points), target)


@lru_cache(maxsize=64)
def _estimate(points: tuple[RunPoint, ...], target: float) -> Estimate:
    step = isotonic(points, target)
    if len(points) < LEAST_RUNS:
        return Estimate(target=target, rate=None, low=None, high=None, isotonic=step, runs=len(points), dispersion=1.0,
                        why=f"{len(points)} runs < {LEAST_RUNS}")  # fmt: skip
    shares = [point.attainment for point in points]
    if min(shares) >= target or max(shares) < target:
        side = "meets" if min(shares) >= target else "misses"
        return Estimate(target=target, rate=None, low=None, high=None, isotonic=None, runs=len(points), dispersion=1.0,
                        why=f"every run {side} the target: the knee is not between them")  # fmt: skip
    runs = _Counts.of(points)
    by_thirds = thirds_dispersion(points)
    curve = _best(runs, target, by_thirds)
    near = runs.x <= curve.knee + max(_LOCAL, 2.5 / curve.slope)
    if near.sum() >= LEAST_RUNS and not near.all():  # far above it curves differ, and would bend this one
        runs = runs.only(near)
        curve = _best(runs, target, by_thirds)
    dispersion, df = _dispersion(runs, curve, by_thirds)
    curve = _best(runs, target, dispersion)
    low, high = _profile(runs, curve, dispersion, df)
    return Estimate(
        target=target, rate=math.exp(curve.knee), low=low, high=high, isotonic=step, runs=len(points),
        dispersion=dispersion, offset=curve.offset, slope=curve.slope, ceiling=curve.ceiling, freedom=df,
        settling=_settling(points, math.exp(curve.knee)),
    )  # fmt: skip


def logit(p: float) -> float:
    """Log odds."""
    return math.log(p / (1 - p))


class _Counts(NamedTuple):
    """Log rate, requests that were good, all requests: each (runs,)."""

    x: Floats
    good: Floats
    total: Floats

    @classmethod
    def of(cls, points: Sequence[RunPoint]) -> _Counts:
        x = np.log([point.rate for point in points])
        return cls(x, *(np.array([sum(part) for part in parts], float) for parts in (
            [point.good for point in points], [point.total for point in points])))  # fmt: skip

    def only(self, keep: Bools) -> _Counts:
        return _Counts(self.x[keep], self.good[keep], self.total[keep])


class _Curve(NamedTuple):
    """ceiling x logistic(offset - slope x), and where it is the target."""

    target: float
    knee: float
    slope: float
    ceiling: float

    @property
    def offset(self) -> float:
        return logit(self.target / self.ceiling) + self.slope * self.knee

    def at(self, x: Floats) -> Floats:
        out: Floats = self.ceiling / (1 + np.exp(-np.clip(self.offset - self.slope * x, -35, 35)))
        return out


def thirds_dispersion(points: Sequence[RunPoint]) -> float:
    """Variance of the thirds' success counts over the binomial one, pooled over runs; at least 1."""
    above = below = 0.0
    for point in points:
        p = point.attainment
        if 0 < p < 1 and min(point.total) > 0:
            above += sum((g - n * p) ** 2 / n for g, n in zip(point.good, point.total, strict=True))
            below += (len(point.good) - 1) * p * (1 - p)
    return max(1.0, above / below) if below else 1.0


def _dispersion(runs: _Counts, curve: _Curve, by_thirds: float) -> tuple[float, float]:
    """The larger of the thirds' dispersion and that of runs about the curve (Pearson's), and degrees of freedom.

    A run in which nearly all requests are alike says nothing of the scatter, so it counts by what it could scatter.
    """
    p = curve.at(runs.x)
    variance = runs.total * p * (1 - p)
    informative = float((variance / (variance + 1)).sum())
    df = max(1.0, informative - 2 - (curve.ceiling < 1))
    pearson = float(((runs.good - runs.total * p) ** 2 / (variance + 0.5)).sum()) / df
    return max(1.0, by_thirds, pearson), df


def _ceilings(target: float) -> Floats:
    """Ceilings between the target and 1 that are tried."""
    return 1 - (1 - target) * np.array([0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9])


def _surface(
    runs: _Counts, target: float, dispersion: float, knees: Floats, slopes: Floats, ceilings: Floats
) -> Floats:  # fmt: skip
    """Log quasi-likelihood and the prior of the slope over (ceilings, slopes, knees)."""
    out = np.empty((len(ceilings), len(slopes), len(knees)))
    distance = knees[:, None] - runs.x[None, :]
    prior = (np.log(slopes / _SLOPE_PRIOR) / _SLOPE_WIDTH) ** 2 / 2
    for i, ceiling in enumerate(ceilings):
        z = logit(target / ceiling) + slopes[:, None, None] * distance
        p = np.clip(ceiling / (1 + np.exp(-np.clip(z, -35, 35))), 1e-15, 1 - 1e-15)
        fit = np.log(p) @ runs.good + np.log1p(-p) @ (runs.total - runs.good)
        out[i] = fit / dispersion - prior[:, None]
    return out


def _best(runs: _Counts, target: float, dispersion: float) -> _Curve:
    """The most likely curve, by a grid that is narrowed round its best point; the prior keeps the slope finite when all
    runs on each side of the knee are pure."""  # fmt: skip
    knee, reach = float(runs.x.min() + runs.x.max()) / 2, float(np.ptp(runs.x)) / 2 + 0.3
    slope, width = _SLOPE_PRIOR, 5.0
    ceilings = _ceilings(target)
    ceiling = 1.0
    for _ in range(_ZOOMS):
        knees = knee + np.linspace(-reach, reach, 41)
        slopes = np.exp(math.log(slope) + np.linspace(-width, width, 17))
        found = _surface(runs, target, dispersion, knees, slopes, ceilings)
        c, s, k = np.unravel_index(int(np.argmax(found)), found.shape)
        knee, slope, ceiling = float(knees[k]), float(slopes[s]), float(ceilings[c])
        reach, width = reach / 8, width / 4
        ceilings = ceilings[max(0, int(c) - 1) : int(c) + 2] if len(ceilings) > 3 else ceilings
    return _Curve(target, knee, slope, ceiling)


def _profile(runs: _Counts, curve: _Curve, dispersion: float, df: float) -> tuple[float | None, float | None]:
    """Rates at which the profile log likelihood is within t^2/2 of its maximum; None where the grid does not end it."""
    t = t_quantile(0.975, max(1, round(df)))
    slopes = np.exp(np.linspace(math.log(curve.slope) - 4.5, math.log(curve.slope) + 3, 24))
    reach = max(0.6, 4 / curve.slope)
    knees = curve.knee + np.linspace(-reach, reach, 241)
    best = _surface(runs, curve.target, dispersion, knees, slopes, _ceilings(curve.target)).max(axis=(0, 1))
    inside = np.flatnonzero(best >= best.max() - t * t / 2)
    low = None if inside[0] == 0 else float(math.exp(knees[inside[0]]))
    high = None if inside[-1] == len(knees) - 1 else float(math.exp(knees[inside[-1]]))
    return low, high


def _settling(points: Sequence[RunPoint], knee: float) -> float | None:
    """Fall of attainment from the first to the last third over runs at or below the knee; None unless it is certain.

    A queue that has settled is met alike all through a run. Below the knee it must settle; where it has not, longer
    runs would show a lower capacity.
    """
    falls = [point.good[-1] / point.total[-1] - point.good[0] / point.total[0]
             for point in points if point.rate <= knee and min(point.total) > 0]  # fmt: skip
    if len(falls) < LEAST_RUNS:
        return None
    mean, error = float(np.mean(falls)), float(np.std(falls, ddof=1)) / math.sqrt(len(falls))
    certain = mean < -_SETTLED and mean < -t_quantile(0.99, len(falls) - 1) * error
    return mean if certain else None


def isotonic(points: Sequence[RunPoint], target: float) -> float | None:
    """The rate at which non-increasing attainment (pool-adjacent-violators over all runs) crosses the target,
    interpolated on log(rate); None where it does not cross."""  # fmt: skip
    pools: list[tuple[list[float], int, int]] = []
    for point in sorted(points, key=lambda one: one.rate):
        pools.append(([math.log(point.rate)], sum(point.good), sum(point.total)))
        while len(pools) > 1 and pools[-1][1] * pools[-2][2] >= pools[-2][1] * pools[-1][2]:
            (xa, ga, na), (xb, gb, nb) = pools[-2], pools[-1]
            pools[-2:] = [(xa + xb, ga + gb, na + nb)]
    level = [(float(np.mean(xs)), good / max(1, total)) for xs, good, total in pools]
    for (x0, p0), (x1, p1) in pairwise(level):
        if p0 >= target > p1:
            return math.exp(x0 + (x1 - x0) * (p0 - target) / (p0 - p1))
    return None


def next_rate(points: Sequence[RunPoint], target: float, start: float) -> float:
    """Where to run next: double or halve until one run meets the target and one misses it, halve that bracket, then
    run a little to either side of the estimate, where a knee is told best."""  # fmt: skip
    if not points:
        return start
    meet = [p.rate for p in points if p.attainment >= target]
    miss = [p.rate for p in points if p.attainment < target]
    if not miss:
        return max(meet) * 2
    if not meet:
        return min(miss) / 2
    low, high = max(meet), min(miss)
    if len(points) < _COARSE + 2 and high > low * 1.1:
        return math.sqrt(low * high)
    found = estimate(points, target)
    if found.rate is None:
        return math.sqrt(min(meet) * max(miss))
    aside = _aside(found, up=len(points) % 2 == 1)
    return min(max(found.rate * aside, min(meet) / 2), max(miss) * 2)


def _aside(found: Estimate, *, up: bool) -> float:
    """By which factor to go from the knee: a little, since further away curves differ; where a bound of the interval is
    missing, to that side and as far as is sensible."""  # fmt: skip
    step = min(_MOST_ASIDE, max(_LEAST_ASIDE, 0.8 / found.slope))
    if found.low is None or found.high is None:
        step = _MOST_ASIDE
        up = up if found.low is None and found.high is None else found.high is None
    return math.exp(step if up else -step)


def finished(points: Sequence[RunPoint], found: Estimate, half_width: float, budget: int) -> str | None:
    """Why the search stops: half-width reached, no load at which the target is met, or budget; None: go on.

    An interval that is narrow by luck would end the search just when it is wrong: runs are skewed (most a little better
    than the mean, a few much worse), so that a few alike say little of the scatter. So enough of them must have been
    where they could scatter, and the interval as narrow before the last one too.
    """
    enough = found.freedom >= _LEAST_FREEDOM
    if enough and found.half_width <= half_width and estimate(points[:-1], found.target).half_width <= half_width:
        return f"half-width {100 * found.half_width:.2g}% ≤ {100 * half_width:g}%"
    target = found.target
    low = sorted(points, key=lambda one: one.rate)[:3]
    if len(low) == 3 and all(p.attainment < target for p in points) and low[0].rate * 4 <= low[2].rate:
        shares = [point.attainment for point in low]
        if max(shares) - min(shares) < _FLAT or _alike(low):
            return f"misses the target at any load: {100 * shares[0]:.3g}% at {low[0].rate:.3g}/s, no better than above"
    if len(points) >= budget:
        return f"budget of {budget} runs used up"
    return None


def _alike(points: Sequence[RunPoint]) -> bool:
    """Whether attainments differ by no more than so few requests scatter (2.5 deviations of the pooled share)."""
    total = [sum(point.total) for point in points]
    pooled = sum(sum(point.good) for point in points) / max(1, sum(total))
    each = (math.sqrt(pooled * (1 - pooled) / max(1, n)) for n in total)
    return all(abs(point.attainment - pooled) <= 2.5 * error for point, error in zip(points, each, strict=True))


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio of two independent estimates with its interval."""

    point: float | None
    low: float | None
    high: float | None


def ratio(of: Estimate, to: Estimate, factor: float = 1.0) -> Ratio:
    """`of` / `to` x factor: distances of the log bounds combine as root of squares (MOVER; Zou and Donner 2008)."""
    if of.rate is None or to.rate is None:
        return Ratio(point=None, low=None, high=None)
    point = math.log(of.rate / to.rate * factor)
    low = _mover(of.rate, of.low, to.rate, to.high)
    high = _mover(of.rate, of.high, to.rate, to.low)
    return Ratio(
        point=math.exp(point),
        low=None if low is None else math.exp(point - low),
        high=None if high is None else math.exp(point + high),
    )


def _mover(one: float, one_end: float | None, other: float, other_end: float | None) -> float | None:
    if one_end is None or other_end is None:
        return None
    return math.hypot(math.log(one / one_end), math.log(other / other_end))


def times(one: Ratio, factor: float) -> Ratio:
    """A figure and its bounds times a factor above 0."""
    ends = (None if end is None else end * factor for end in (one.point, one.low, one.high))
    return Ratio(**dict(zip(("point", "low", "high"), ends, strict=True)))


def inverse(one: Ratio, factor: float) -> Ratio:
    """factor / a figure: its bounds change places."""
    ends = (None if not end else factor / end for end in (one.point, one.high, one.low))
    return Ratio(**dict(zip(("point", "low", "high"), ends, strict=True)))
