"""Quantiles so far, in an HDR histogram: constant memory, three digits, failures counted as infinitely slow."""

from __future__ import annotations

import math

from hdrh.histogram import HdrHistogram

_MOST_US = 86_400_000_000  # a day: what is longer counts as one (the histogram would drop it without a word)
EDGES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)


class Spread:
    """Durations in seconds, kept to the microsecond; `EDGES_S` are counted apart, exactly, for Prometheus."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, _MOST_US, 3)
        self.below = [0] * len(EDGES_S)
        self.sum_s = 0.0
        self.n = 0

    def add(self, value_s: float) -> None:
        """One duration; a negative one (clocks) counts as 0."""
        value_s = max(value_s, 0.0)
        self._histogram.record_value(min(max(round(value_s * 1e6), 1), _MOST_US))
        self.sum_s += value_s
        self.n += 1
        for i, edge in enumerate(EDGES_S):
            self.below[i] += value_s <= edge

    def quantile(self, q: float, failed: int = 0) -> float | None:
        """The ⌈q·n⌉-th smallest of all, `failed` infinite ones among them; None while there is nothing."""
        total = self.n + failed
        if total == 0:
            return None
        rank = max(1, math.ceil(q * total - 1e-9))
        if rank > self.n:
            return math.inf
        return float(self._histogram.get_value_at_percentile(100 * rank / self.n)) / 1e6
