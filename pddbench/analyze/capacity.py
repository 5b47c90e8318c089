"""Capacity: the largest rate at which an arm meets its objectives at the stated attainment, from noisy runs.

All runs count, also those far from the knee. Attainment is modelled as logit P = a - b log(rate); runs are quasi-
binomial (McCullagh and Nelder 1989): requests of a run are not independent, and the dispersion is the larger of the one
between a run's thirds and the one between runs and curve. The interval is the profile of that likelihood at F(1, df).
Isotonic regression over the same runs (Ayer et al. 1955) is printed beside it: it assumes no curve. Plain bisection is
not offered: one wrong answer of it is final.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

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

    `isotonic` is the same rate without a curve. `slope`: b; `offset`: a; `dispersion`: variance over the binomial one.
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
    why: str | None = None

    @property
    def half_width(self) -> float:
        """Half the interval as a share of the rate; inf without one."""
        if self.rate is None or self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / 2 / self.rate


def point_of(rate: float, flags: Bools) -> RunPoint:
    """A run from its requests in order of time, each good or not."""
    parts = np.array_split(np.asarray(flags, dtype=bool), BLOCKS)
    return RunPoint(rate, tuple(int(p.sum()) for p in parts), tuple(len(p) for p in parts))


def estimate(points: Sequence[RunPoint], target: float) -> Estimate:
    """What all runs say of the rate at which attainment is `target`."""
    step = isotonic(points, target)
    if len(points) < LEAST_RUNS:
        return Estimate(target=target, rate=None, low=None, high=None, isotonic=step, runs=len(points), dispersion=1.0,
                        why=f"{len(points)} runs < {LEAST_RUNS}")  # fmt: skip
    shares = [point.attainment for point in points]
    if min(shares) >= target or max(shares) < target:
        side = "meets" if min(shares) >= target else "misses"
        return Estimate(target=target, rate=None, low=None, high=None, isotonic=None, runs=len(points), dispersion=1.0,
                        why=f"every run {side} the target: the knee is not between them")  # fmt: skip
    x, good, total = _arrays(points)
    dispersion = thirds_dispersion(points)
    a, b = _fit(x, good, total, dispersion)
    near = np.abs(x - (a - logit(target)) / b) <= max(_LOCAL, 2.5 / b)
    if near.sum() >= LEAST_RUNS and not near.all():  # far runs bend the curve and make the scatter look small
        x, good, total = x[near], good[near], total[near]
        a, b = _fit(x, good, total, dispersion)
    dispersion, df = _dispersion(x, good, total, a, b, dispersion)
    a, b = _fit(x, good, total, dispersion)
    knee = (a - logit(target)) / b
    low, high = _profile(x, good, total, dispersion, target, knee, b, df)
    return Estimate(target=target, rate=math.exp(knee), low=low, high=high, isotonic=step, runs=len(points),
                    dispersion=dispersion, offset=a, slope=b)  # fmt: skip


def logit(p: float) -> float:
    """Log odds."""
    return math.log(p / (1 - p))


def _arrays(points: Sequence[RunPoint]) -> tuple[Floats, Floats, Floats]:
    x = np.log([point.rate for point in points])
    return x, np.array([sum(p.good) for p in points], float), np.array([sum(p.total) for p in points], float)


def thirds_dispersion(points: Sequence[RunPoint]) -> float:
    """Variance of the thirds' success counts over the binomial one, pooled over runs; at least 1."""
    above = below = 0.0
    for point in points:
        p = point.attainment
        if 0 < p < 1 and min(point.total) > 0:
            above += sum((g - n * p) ** 2 / n for g, n in zip(point.good, point.total, strict=True))
            below += (len(point.good) - 1) * p * (1 - p)
    return max(1.0, above / below) if below else 1.0


def _dispersion(
    x: Floats, good: Floats, total: Floats, a: float, b: float, by_thirds: float
) -> tuple[float, float]:  # fmt: skip
    """The larger of the thirds' dispersion and that of runs about the curve (Pearson's), and degrees of freedom.

    A run in which nearly all requests are alike says nothing of the scatter, so it counts by what it could scatter.
    """
    p = 1 / (1 + np.exp(-np.clip(a - b * x, -35, 35)))
    variance = total * p * (1 - p)
    informative = float((variance / (variance + 1)).sum())
    df = max(1.0, informative - 2)
    pearson = float(((good - total * p) ** 2 / (variance + 0.5)).sum()) / df
    return max(1.0, by_thirds, pearson), df


def _fit(x: Floats, good: Floats, total: Floats, dispersion: float) -> tuple[float, float]:
    """a and b of logit P = a - b x, by damped Newton's steps on (a, log b); the prior keeps b finite when all runs on
    each side of the knee are pure."""  # fmt: skip
    centre = float(np.average(x, weights=total))
    weight, share = total / dispersion, np.clip(good / total, 1e-9, 1 - 1e-9)
    a, log_b = 2.0, math.log(_SLOPE_PRIOR)
    precision = 1 / _SLOPE_WIDTH**2
    z = x - centre
    for _ in range(80):
        b = math.exp(log_b)
        p = 1 / (1 + np.exp(-np.clip(a - b * z, -35, 35)))
        v, r = weight * p * (1 - p), weight * (share - p)
        gradient = np.array([r.sum() - a / 400, (-b * z * r).sum() - (log_b - math.log(_SLOPE_PRIOR)) * precision])
        cross = float((-b * z * v).sum())
        hessian = np.array(
            [[v.sum() + 1 / 400, cross], [cross, (b * b * z * z * v).sum() + abs((b * z * r).sum()) + precision]]
        )
        step = np.linalg.solve(hessian, gradient)
        scale = min(1.0, 2.0 / (float(np.abs(step).max()) + 1e-12))
        a, log_b = a + scale * float(step[0]), log_b + scale * float(step[1])
        if np.abs(step).max() < 1e-8:
            break
    b = math.exp(log_b)
    return a + b * centre, b


def _profile(
    x: Floats, good: Floats, total: Floats, dispersion: float, target: float, knee: float, b: float, df: float
) -> tuple[float | None, float | None]:
    """Rates at which the profile log likelihood is within t^2/2 of its maximum; None where the grid does not end it."""
    t = t_quantile(0.975, max(1, round(df)))
    slopes = np.exp(np.linspace(math.log(b) - 4.5, math.log(b) + 3, 40))
    reach = max(0.6, 4 / b)
    grid = knee + np.linspace(-reach, reach, 481)
    best = np.full(len(grid), -np.inf)
    for slope in slopes:
        z = logit(target) + slope * (grid[:, None] - x[None, :])
        fit = -((good * np.logaddexp(0, -z) + (total - good) * np.logaddexp(0, z)) / dispersion).sum(axis=1)
        best = np.maximum(best, fit - (math.log(slope / _SLOPE_PRIOR) / _SLOPE_WIDTH) ** 2 / 2)
    inside = np.flatnonzero(best >= best.max() - t * t / 2)
    low = None if inside[0] == 0 else float(math.exp(grid[inside[0]]))
    high = None if inside[-1] == len(grid) - 1 else float(math.exp(grid[inside[-1]]))
    return low, high


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
    step = min(0.08, max(0.015, 0.8 / found.slope))
    aside = math.exp(step if len(points) % 2 else -step)
    return min(max(found.rate * aside, min(meet) / 2), max(miss) * 2)


def finished(points: Sequence[RunPoint], found: Estimate, half_width: float, budget: int) -> str | None:
    """Why the search stops: half-width reached, no load at which the target is met, or budget; None: go on.

    An interval that is narrow by luck would end the search just when it is wrong, so it must have been as narrow
    before the last run too.
    """
    if found.half_width <= half_width and estimate(points[:-1], found.target).half_width <= half_width:
        return f"half-width {100 * found.half_width:.2g}% ≤ {100 * half_width:g}%"
    target = found.target
    low = sorted(points, key=lambda one: one.rate)[:3]
    if len(low) == 3 and all(p.attainment < target for p in points) and low[0].rate * 4 <= low[2].rate:
        shares = [point.attainment for point in low]
        if max(shares) - min(shares) < _FLAT:
            return f"misses the target at any load: {100 * shares[0]:.3g}% at {low[0].rate:.3g}/s, no better than above"
    if len(points) >= budget:
        return f"budget of {budget} runs used up"
    return None


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
