"""An arm whose knee is known exactly: M/M/1, first come first served, the objective on the wait before service."""

from __future__ import annotations

import math

import numpy as np

from pddbench.analyze import capacity
from pddbench.analyze.capacity import estimate, finished, next_rate, point_of

SERVICE_RATE = 20.0  # requests a second
LIMIT_S = 0.5


def attainment(rate):
    """P(wait <= limit) in the steady state: 1 - rho exp(-(mu - lambda) limit)."""
    return 1 - rate / SERVICE_RATE * math.exp(-(SERVICE_RATE - rate) * LIMIT_S) if rate < SERVICE_RATE else 0.0


def knee(target):
    """The rate with exactly this attainment."""
    low, high = 0.01, SERVICE_RATE
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if attainment(middle) >= target else (low, middle)
    return low


def run(rng, rate, seconds=120.0):
    """One run: for each request in order of time whether it met the objective. Begins in the steady state."""
    n = max(1, rng.poisson(rate * seconds))
    gaps, service = rng.exponential(1 / rate, n), rng.exponential(1 / SERVICE_RATE, n)
    rho = rate / SERVICE_RATE
    wait = rng.exponential(1 / (SERVICE_RATE - rate)) if rho < 1 and rng.random() < rho else 0.0
    walk = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps[:-1])])  # Lindley's recursion in closed form
    return walk + np.maximum(wait, np.maximum.accumulate(-walk)) <= LIMIT_S


def search(seed, target=0.9, half_width=0.05, budget=16):
    """A whole search from a random start, as `pddbench capacity` makes it."""
    rng = np.random.default_rng(seed)
    points, start = [], knee(target) * rng.uniform(0.4, 2.0)
    while True:
        rate = next_rate(points, target, start)
        points.append(point_of(rate, run(rng, rate)))
        found = estimate(points, target)
        if finished(points, found, half_width, budget):
            return found


def covers(found, target=0.9):
    """Whether the interval holds the knee; a bound that does not exist holds everything on its side."""
    low, high = found.low or 0.0, found.high or math.inf
    return found.rate is not None and low <= knee(target) <= high


__all__ = ["capacity", "covers", "knee", "run", "search"]
