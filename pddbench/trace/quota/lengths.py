"""Laws of lengths and times: their quantile functions, and stratified draws from them.

A stratified draw has one value in each of n equal slices of probability, in random order: the mean is nearly that of
the law whatever the seed, which independent draws with the heavy tails of real lengths are far from.
"""

from __future__ import annotations

import random
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from pddbench.trace.quota.spec import Law

Floats = npt.NDArray[np.float64]
_NORMAL = NormalDist()
_GRID = (np.arange(4096) + 0.5) / 4096


class Draw:
    """Random numbers from a seed by `random.Random.random` alone, whose sequence no version of Python changes."""

    def __init__(self, *seed: int | str) -> None:
        self.one = random.Random("/".join(map(str, seed))).random

    def uniforms(self, n: int) -> Floats:
        """Shape (n,), in [0, 1)."""
        return np.array([self.one() for _ in range(n)], dtype=np.float64)

    def permutation(self, n: int) -> npt.NDArray[np.int64]:
        """The numbers below n in random order."""
        return np.argsort(self.uniforms(n), kind="stable")

    def strata(self, n: int) -> Floats:
        """n numbers in (0, 1), one in each slice of width 1/n, in random order."""
        spread: Floats = (np.arange(n) + 0.001 + 0.998 * self.uniforms(n)) / max(n, 1)
        return spread[self.permutation(n)]

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        return int(self.one() * n)


def sample(law: Law, n: int, draw: Draw) -> Floats:
    """A stratified draw of n values."""
    return quantiles(law, draw.strata(n))


def quantiles(law: Law, shares: Floats) -> Floats:
    """The values of the law at `shares` (in (0, 1))."""
    if law.kind == "uniform":
        even: Floats = law.min + (law.max - law.min) * shares
        return even
    if law.kind == "quantiles":
        factor = 1.0 if law.mean is None else _factor(law)
        return np.clip(_interpolated(law, shares) * factor, law.min, law.max)
    assert law.mean is not None  # check_spec
    if law.kind == "fixed":
        return np.full(len(shares), float(law.mean))
    return np.clip(_unit(law, shares) * _factor(law), law.min, law.max)


def mean_of(law: Law) -> float:
    """The mean of the law as it is drawn, clipping included."""
    return float(quantiles(law, _GRID).mean())


def longest(law: Law) -> float:
    """The largest value that the law gives."""
    if law.kind == "fixed" and law.mean is not None:
        return law.mean
    return min(law.max, law.points[-1][1]) if law.kind == "quantiles" else law.max


def _interpolated(law: Law, shares: Floats) -> Floats:
    points: Floats = np.array(law.points)
    return np.exp(np.interp(shares, points[:, 0], np.log(points[:, 1])))


def _unit(law: Law, shares: Floats) -> Floats:
    if law.kind == "exponential":
        return -np.log1p(-shares)
    return np.exp(law.sigma * _normal(shares))


def _normal(shares: Floats) -> Floats:
    inverse = _NORMAL.inv_cdf
    return np.array([inverse(p) for p in shares.tolist()], dtype=np.float64)


@lru_cache(maxsize=256)
def _factor(law: Law) -> float:
    """The factor that gives the law its mean after clipping to [min, max] (the mean is monotone in it)."""
    assert law.mean is not None
    unit = _interpolated(law, _GRID) if law.kind == "quantiles" else _unit(law, _GRID)
    low, high = 1e-9, max(law.max, 1.0) * 1e6
    for _ in range(120):
        factor = (low * high) ** 0.5
        if np.clip(unit * factor, law.min, law.max).mean() < law.mean:
            low = factor
        else:
            high = factor
    return float(high)
