"""Did a run settle, and did it stay? A warm-up cut that is suggested, and a trend test that correlated latencies do not
set off.

Sources: MSER-5 (White 1997); slope of log latency with its variance clustered by session and by blocks of time. Most
usual trend tests (Mann-Kendall, Geweke) fire falsely on 10 to 70% of stationary runs, because latencies are correlated.
"""  # fmt: skip

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pddbench.analyze.binomial import beta_cdf
from pddbench.analyze.quantiles import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

BATCH = 5  # MSER-5: batches of five
LEAST = 50  # values below which neither is tried
TREND_P = 0.01
TREND_DRIFT = 0.20
_TIME_BLOCKS = 10


class Warmup(msgspec.Struct, kw_only=True):
    """The suggested cut: `cut_s` seconds after the first due, which drops `cut_share` of the requests.

    `settled` is false when the cut would be half of the run or more: it never settled. `why` says why nothing is
    suggested.
    """

    cut_s: float | None = None
    cut_share: float = 0.0
    settled: bool = True
    why: str | None = None


class Trend(msgspec.Struct, kw_only=True):
    """Drift of the latency over the run (last / first - 1, by the fitted line), its p value, and whether it counts."""

    drift: float | None = None
    p: float | None = None
    fires: bool = False
    why: str | None = None


def mser5(values: Floats) -> tuple[int, bool]:
    """How many of `values` (in order of time) to drop, and whether that is less than half of them.

    The cut that makes the standard error of the mean of the rest smallest, over batches of five.
    """
    batches = values[: len(values) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    n = len(batches)
    rest = n - np.arange(n)
    total, squares = np.cumsum(batches[::-1])[::-1], np.cumsum((batches * batches)[::-1])[::-1]
    error = (squares / rest - (total / rest) ** 2) / rest
    cut = int(np.argmin(error[: n // 2 + 1]))
    return cut * BATCH, cut < n // 2


def warmup(rows: pd.DataFrame, metric: str = "ttft_sched") -> Warmup:
    """The cut that an arm's `rows` suggest, on log values; the latest over its repeats."""
    out = Warmup(cut_s=0.0)
    total = 0
    for _, part in rows.groupby("repeat", sort=False):
        part = part[np.isfinite(part[metric]) & (part[metric] > 0) & part["due_s"].notna()]
        if len(part) < LEAST:
            return Warmup(why=f"{len(part)} requests < {LEAST}")
        part = part.sort_values("due_s", kind="stable")
        due = part["due_s"].to_numpy()
        cut, settled = mser5(np.log(part[metric].to_numpy()))
        out.cut_s = max(out.cut_s or 0.0, float(due[cut] - due[0]) if cut else 0.0)
        out.settled = out.settled and settled
        total += cut
    out.cut_share = total / len(rows) if len(rows) else 0.0
    return out


def trend_of(rows: pd.DataFrame, code: Ints, metric: str = "ttft_sched") -> Trend:
    """Drift of an arm's latency in what un-hit tokens and turn do not explain."""
    use = (np.isfinite(rows[metric]) & (rows[metric] > 0) & rows["due_s"].notna()).to_numpy()
    if use.sum() < LEAST:
        return Trend(why=f"{int(use.sum())} requests < {LEAST}")
    part = rows[use]
    fresh = part["input_tokens_planned"] - part["cached_tokens_planned"].fillna(0.0)
    begin = part.groupby("repeat")["due_s"].transform("min")
    explained = np.column_stack([fresh.to_numpy(), np.log1p(fresh.clip(lower=0)).to_numpy(), part["turn"].to_numpy()])
    return trend((part["due_s"] - begin).to_numpy(), np.log(part[metric].to_numpy()), code[use], explained)


def trend(at_s: Floats, log_values: Floats, code: Ints, explained: Floats | None = None) -> Trend:
    """Slope of `log_values` over `at_s` after `explained` (n, k); its variance is the larger of those clustered by
    session (`code`) and by ten blocks of time. Counts when p < 0.01 and the drift exceeds 20%."""  # fmt: skip
    span = float(at_s.max() - at_s.min())
    if span <= 0:
        return Trend(why="all requests are due at once")
    design = np.column_stack([np.ones(len(at_s))] + ([] if explained is None else [_scaled(explained)]))
    x = _residual((at_s - at_s.min()) / span, design)
    y = _residual(log_values, design)
    squares = float(x @ x)
    if squares < 1e-9 * len(x):
        return Trend(why="time cannot be told from what explains the latency")
    slope = float(x @ y) / squares
    scores = x * (y - slope * x)
    order = np.argsort(np.argsort(at_s, kind="stable"), kind="stable")
    blocks = np.minimum(order * _TIME_BLOCKS // len(at_s), _TIME_BLOCKS - 1)
    variance, df = max(_clustered(scores, code), _clustered(scores, blocks))
    t = slope * squares / math.sqrt(variance) if variance > 0 else math.inf
    p = beta_cdf(df / (df + t * t), df / 2, 0.5) if math.isfinite(t) else 0.0
    fires = p < TREND_P and abs(slope) > math.log1p(TREND_DRIFT)
    return Trend(drift=math.expm1(min(slope, 700.0)), p=p, fires=fires)


def _scaled(columns: Floats) -> Floats:
    spread = columns.std(axis=0)
    out: Floats = (columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return out


def _residual(values: Floats, design: Floats) -> Floats:
    weights, *_ = np.linalg.lstsq(design, values, rcond=None)
    out: Floats = values - design @ weights
    return out


def _clustered(scores: Floats, code: Ints) -> tuple[float, float]:
    """Variance of the sum of scores whose clusters are independent, and degrees of freedom."""
    sums = np.bincount(code, weights=scores)
    m = int((np.bincount(code) > 0).sum())
    return float(sums @ sums) * m / max(1, m - 1), float(max(1, m - 2))
