"""Beta, binomial and Student t quantiles in plain Python (no scipy): what the intervals need, to about 1e-9."""

from __future__ import annotations

import math
from functools import lru_cache


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - beta_cdf(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's evaluation of the continued fraction of I_x(a, b)."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for i in range(4000):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d or tiny)
        c = 1 + term / c or tiny
        value *= c * d
        if abs(1 - c * d) < 1e-12:
            break
    return value - 1


def beta_quantile(u: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = u: Newton's steps inside a bracket that shrinks as by bisection."""
    low, high = 0.0, 1.0
    x = a / (a + b)
    log_norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    for _ in range(80):
        excess = beta_cdf(x, a, b) - u
        low, high = (x, high) if excess < 0 else (low, x)
        density = math.exp(log_norm + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x)) if 0 < x < 1 else 0.0
        step = x - excess / density if density > 0 else -1.0
        following = step if low < step < high else (low + high) / 2
        if abs(following - x) < 1e-12:
            return following
        x = following
    return x


@lru_cache(maxsize=4096)
def t_quantile(u: float, df: int) -> float:
    """Student t quantile for u > 0.5 at `df` degrees of freedom."""
    low, high = 0.0, 1e3
    for _ in range(70):
        middle = (low + high) / 2
        cdf = 1 - 0.5 * beta_cdf(df / (df + middle * middle), df / 2, 0.5)
        low, high = (middle, high) if cdf < u else (low, middle)
    return (low + high) / 2


@lru_cache(maxsize=65536)
def clopper_pearson(successes: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided interval for a share; `successes` of `trials`, both may be fractions (effective sizes)."""
    tail = (1 - confidence) / 2
    low = 0.0 if successes <= 0 else beta_quantile(tail, successes, trials - successes + 1)
    high = 1.0 if successes >= trials else beta_quantile(1 - tail, successes + 1, trials - successes)
    return low, high
