"""Arms whose knee is known: queues, first come first served, the objective on the wait before service.

A run is what `pddbench capacity` makes: it begins empty, its first 30 s do not count, 120 s do. The knee is that of the
steady state: exact for exponential service (Erlang), by brute force for others (tens of millions of waits).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from pddbench.analyze.capacity import estimate, finished, next_rate, point_of

WARMUP_S, RUN_S = 30.0, 120.0


@dataclass(frozen=True)
class Queue:
    """`servers`, each `rate` requests a second; `cv`: coefficient of variation of service (1: exponential, else
    log-normal); a request is good when it waits at most `limit_s`."""

    servers: int = 1
    rate: float = 20.0
    cv: float = 1.0
    limit_s: float = 0.5

    def services(self, rng, n):
        """`n` service times."""
        if self.cv == 1:
            return rng.exponential(1 / self.rate, n)
        sigma = math.sqrt(math.log(1 + self.cv**2))
        return np.exp(rng.normal(-sigma * sigma / 2, sigma, n)) / self.rate

    def waits(self, rng, rate, seconds):
        """Arrival and wait of each request of a run from empty."""
        n = rng.poisson(rate * seconds)
        arrival, service = np.sort(rng.uniform(0, seconds, n)), self.services(rng, n)
        if self.servers == 1:  # Lindley's recursion in closed form
            walk = np.concatenate([[0.0], np.cumsum(service[:-1] - np.diff(arrival))]) if n else np.empty(0)
            return arrival, walk - np.minimum.accumulate(walk)
        free, wait = [0.0] * self.servers, np.empty(n)
        for i, (at, length) in enumerate(zip(arrival.tolist(), service.tolist(), strict=True)):
            begin = max(at, free[0])
            heapq.heapreplace(free, begin + length)
            wait[i] = begin - at
        return arrival, wait

    def run(self, rng, rate):
        """One run: for each measured request in order of time whether it met the objective."""
        arrival, wait = self.waits(rng, rate, WARMUP_S + RUN_S)
        return wait[arrival >= WARMUP_S] <= self.limit_s

    def attainment(self, rate):
        """P(wait <= limit) in the steady state."""
        load = rate / self.rate
        if load >= self.servers:
            return 0.0
        if self.cv == 1:
            terms = [load**k / math.factorial(k) for k in range(self.servers)]
            last = load**self.servers / math.factorial(self.servers) * self.servers / (self.servers - load)
            return 1 - last / (sum(terms) + last) * math.exp(-(self.servers * self.rate - rate) * self.limit_s)
        rng, good, total = np.random.default_rng(5), 0, 0
        for _ in range(10):  # the same numbers at every rate, so that the curve falls smoothly
            arrival, wait = self.waits(rng, rate, 1e6 / self.rate)
            late = wait[arrival > 1e4 / self.rate]
            good, total = good + int((late <= self.limit_s).sum()), total + len(late)
        return good / total


@cache
def knee(target, queue=Queue()):
    """The rate with exactly this attainment."""
    low, high = 0.01, queue.rate * queue.servers
    for _ in range(40 if queue.cv == 1 else 14):
        middle = (low + high) / 2
        low, high = (middle, high) if queue.attainment(middle) >= target else (low, middle)
    return (low + high) / 2


def search(seed, target=0.9, half_width=0.05, budget=16, queue=Queue()):
    """A whole search from a random start, as `pddbench capacity` makes it."""
    rng = np.random.default_rng(seed)
    points, start = [], knee(target, queue) * rng.uniform(0.4, 2.0)
    while True:
        rate = next_rate(points, target, start)
        points.append(point_of(rate, queue.run(rng, rate)))
        found = estimate(points, target)
        if finished(points, found, half_width, budget):
            return found


def covers(found, target=0.9, queue=Queue()):
    """Whether the interval holds the knee; a bound that does not exist holds everything on its side."""
    low, high = found.low or 0.0, found.high or math.inf
    return found.rate is not None and low <= knee(target, queue) <= high
