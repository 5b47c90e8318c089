"""How late our own processes were while an arm ran, in wall time: sending, the event loop, and against the kernel.

With several workers a figure is that of the worst of them: their requests are a part of the result like any other, and
pooled with those of a quiet one its lateness would hide in the percentile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.quantiles import Floats, quantile

if TYPE_CHECKING:
    import pandas as pd

CONNECTED_S = 0.0001  # below that no connection was opened: one was there already


def send_lag_p99_s(data: Dataset, arm: str) -> float:
    """P99 of sent - due - throttle wait - connect wait; NaN when nothing was sent."""
    return _worst(data, arm, data.arms[arm].rows["send_lag"].to_numpy() / data.speed(arm))


def kernel_gap_p99_s(data: Dataset, arm: str) -> float:
    """P99 of our own stamp of the first token minus the kernel's: the error TTFT has by ours. NaN without any."""
    raw = data.run.requests.iloc[data.arms[arm].rows.index]
    user, kernel = (
        raw[name].to_numpy(dtype=np.float64, na_value=np.nan)
        for name in ("user_first_token_ns", "kernel_first_token_ns")
    )
    return _worst(data, arm, (user - kernel) / 1e9 / data.speed(arm))


def loop_lag_p99_s(data: Dataset, arm: str) -> float:
    """P99 of the event loop's lag samples; NaN without samples."""
    worst = math.nan
    for _, rows in _health(data, arm).groupby("worker"):
        lists = rows["loop_lag_ns"].dropna()
        samples = np.concatenate([np.asarray(x, dtype=np.float64) for x in lists]) if len(lists) else np.empty(0)
        worst = float(np.fmax(worst, p99(samples) / 1e9))
    return worst


def run_delay_share(data: Dataset, arm: str) -> float:
    """Share of a repeat for which the client's main thread was ready to run but had no core. NaN where not known."""
    worst = math.nan
    for _, rows in _health(data, arm).groupby(["worker", "repeat"]):
        delay = rows["run_delay_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
        end_ns = rows["t_ns"].max()
        if np.isfinite(delay).any() and end_ns > 0:
            worst = float(np.fmax(worst, np.nansum(delay) / float(end_ns)))
    return worst


def connect_lag_s(data: Dataset, arm: str) -> float:
    """P99 of what opening a connection took beyond the fastest of the arm; NaN when none was opened.

    A loop that is late notices late that a connection is there: that part of a connect wait is ours.
    """
    raw = data.run.requests.iloc[data.arms[arm].rows.index]
    wait = raw["connect_wait_ns"].to_numpy(dtype=np.float64, na_value=np.nan) / 1e9 / data.speed(arm)
    wait[~(wait > CONNECTED_S)] = np.nan
    return _worst(data, arm, wait - np.nanmin(wait)) if np.isfinite(wait).any() else math.nan


def arrivals_by_kernel(data: Dataset, arm: str) -> bool:
    """Whether every measured reply that had a token is stamped by the kernel alone, none of them merged by our lag."""
    rows = data.arms[arm].rows
    raw = data.run.requests.iloc[rows.index]
    stamps = raw.loc[raw["first_token_ns"].notna(), "stamps"]
    return len(stamps) > 0 and bool((stamps == "kernel").fillna(False).all())


def paced_by_timerfd(data: Dataset, arm: str) -> bool:
    """Whether every run of the arm had a timerfd to pace it, by the manifest."""
    runs = [run for run in data.run.manifest.get("runs", []) if run.get("arm") == arm]
    return bool(runs) and all(run.get("exact_timer") is True for run in runs)


def p99(samples: Floats) -> float:
    """P99, but never the largest sample: below 100 samples the second largest stands for it. NaN without samples."""
    if 1 < len(samples) < 100:
        samples = np.sort(samples)[:-1]
    return quantile(samples, 0.99)


def _worst(data: Dataset, arm: str, values: Floats) -> float:
    """The largest P99 of the workers; NaN without values."""
    workers = data.run.requests["worker"].iloc[data.arms[arm].rows.index].to_numpy(dtype=np.float64, na_value=0.0)
    known = ~np.isnan(values)
    each = [p99(values[known & (workers == worker)]) for worker in np.unique(workers[known])]
    return max(each, default=math.nan)


def _health(data: Dataset, arm: str) -> pd.DataFrame:
    """The health rows of an arm; those without a worker are of the only one."""
    health = data.run.health
    rows = health[health["arm"] == arm]
    return rows.assign(worker=rows["worker"].fillna(0))
