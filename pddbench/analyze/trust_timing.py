"""Rules about time: was the load sent when it was due, was our process or the emulator too slow, did queues grow?

Rows are in experiment time; lags of our own process are judged in wall time (divided by the arm's speed).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pddbench import limits
from pddbench.analyze import own_lag
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.finding import Finding
from pddbench.analyze.quantiles import Floats, quantile
from pddbench.limits import CPU_LIMIT, CPU_WINDOW_S

if TYPE_CHECKING:
    import pandas as pd

LATE_SHARE = 0.03
THROTTLE_FLOOR_S = 0.001
BACKLOG_LEAST = 18  # instants in the last half of the arrivals
BACKLOG_GROWTH = 2.0
BACKLOG_Z = 3.09  # one-sided p = 0.001


def median_ttft_s(data: Dataset, arm: str) -> float:
    """Median TTFT of the arm's ok requests in experiment seconds; NaN without any."""
    rows = data.arms[arm].rows
    return quantile(rows["ttft"].to_numpy()[rows["ok"].to_numpy(dtype=bool)], 0.5)


def lag_limit_s(data: Dataset, arm: str) -> float:
    """What a lag of our own may be at P99, in wall seconds: max(5 ms, 1% of the arm's median TTFT)."""
    median_s = median_ttft_s(data, arm) / data.speed(arm)
    return limits.lag_limit_s(None if math.isnan(median_s) else median_s)


def send_lag(data: Dataset) -> Iterator[Finding]:
    """We sent later than the plan said."""
    for arm in data.arms:
        yield from _lag(data, arm, "send_lag", own_lag.send_lag_p99_s(data, arm), "requests left late: send lag")


def loop_lag(data: Dataset) -> Iterator[Finding]:
    """Our event loop was late, so arrivals were stamped late; only a warning where its lag can be in no time.

    That is so where the kernel stamped every arrival (none merged), a timerfd paced the starts, which `send_lag`
    judges, and connections were opened within the limit too: see `own_lag.connect_lag_s`.
    """
    for arm in data.arms:
        found = next(
            _lag(data, arm, "loop_lag", own_lag.loop_lag_p99_s(data, arm), "our event loop was late: lag"), None
        )
        if found is None:
            continue
        if own_lag.arrivals_by_kernel(data, arm) and own_lag.paced_by_timerfd(data, arm) and _connects(data, arm):
            found.level = "warning"
            found.message += "; arrivals are the kernel's stamps, so that it is in no TTFT and no gap"
        yield found


def _connects(data: Dataset, arm: str) -> bool:
    lag = own_lag.connect_lag_s(data, arm)
    return math.isnan(lag) or lag <= lag_limit_s(data, arm)


def _lag(data: Dataset, arm: str, rule: str, measured: float, words: str) -> Iterator[Finding]:
    limit = lag_limit_s(data, arm)
    if measured > limit:
        several = " of the worst worker" if _workers(data, arm) > 1 else ""
        yield Finding(
            rule=rule,
            level="invalid",
            arm=arm,
            message=f"{words}{several} P99 {1e3 * measured:.1f} ms > {1e3 * limit:.1f} ms (wall)",
            advice="use a less loaded client machine, a lower rate, more workers (if cores are free), or a lower "
            "emulator speed",
            measured=measured,
            limit=limit,
            unit="s",
        )


def _workers(data: Dataset, arm: str) -> int:
    """How many client processes the arm's runs had."""
    return max([int(run.get("workers") or 1) for run in data.run.manifest.get("runs", []) if run.get("arm") == arm],
               default=1)  # fmt: skip


def throttle(data: Dataset) -> Iterator[Finding]:
    """The brake on starts held requests back, so the load was not the planned one."""
    for arm, part in data.arms.items():
        lines = part.rows.index
        wait = data.run.requests["throttle_wait_ns"].iloc[lines].to_numpy(dtype=np.float64, na_value=0.0)
        wait = wait / 1e9 / data.speed(arm)
        held = float((wait > THROTTLE_FLOOR_S).mean()) if len(wait) else 0.0
        if held > 0:
            yield Finding(
                rule="throttle",
                level="invalid",
                arm=arm,
                message=f"the start brake held back {100 * held:.1f}% of requests, at most {wait.max():.3f} s (wall)",
                advice="raise max_start_rate or max_concurrency, or lower the load; --allow throttle if it is meant",
                measured=held,
                limit=0.0,
                unit="share",
            )


def client_cpu(data: Dataset) -> Iterator[Finding]:
    """Our process was near a full core, so it queued what it measured."""
    health = data.run.health
    for arm in data.arms:
        rows = health[health["arm"] == arm]
        rows = rows.assign(worker=rows["worker"].fillna(0))
        busiest = max((_busiest(part) for _, part in rows.groupby(["repeat", "process", "worker"])), default=0.0)
        if busiest > CPU_LIMIT:
            yield Finding(
                rule="client_cpu",
                level="invalid",
                arm=arm,
                message=f"our process used {100 * busiest:.0f}% of a core over {CPU_WINDOW_S:g} s (limit 85%)",
                advice="lower the load or the emulator speed, or use a faster client machine",
                measured=busiest,
                limit=CPU_LIMIT,
                unit="share",
            )


def _busiest(samples: pd.DataFrame) -> float:
    """Largest mean CPU share over any run of samples that spans at least 5 s; 0 for shorter records."""
    samples = samples.sort_values("t_ns")
    end = samples["t_ns"].to_numpy(dtype=np.float64) / 1e9
    share = samples["cpu_share"].to_numpy(dtype=np.float64, na_value=np.nan)
    if "busy_share" in samples:  # a reader's thread and the interpreter may each take a core
        busy = samples["busy_share"].to_numpy(dtype=np.float64, na_value=np.nan)
        share = np.where(np.isnan(busy), share, busy)
    if len(end) < 2:
        return 0.0
    span = np.diff(end, prepend=end[0] - float(np.median(np.diff(end))))
    time, work = np.cumsum(span), np.cumsum(np.nan_to_num(share) * span)
    time0, work0 = time - span, work - np.nan_to_num(share) * span  # before each sample
    last = np.searchsorted(time, time0 + CPU_WINDOW_S - 1e-9)
    whole = last < len(time)
    if not whole.any():
        return 0.0
    last = last[whole]
    return float(((work[last] - work0[whole]) / (time[last] - time0[whole])).max())


def emulator_late(data: Dataset) -> Iterator[Finding]:
    """A process of the emulated deployment woke up late, so its times are too long by that."""
    for arm, part in data.arms.items():
        late = emulator_late_s(data, arm)
        limit = LATE_SHARE * median_ttft_s(data, arm)
        live = data.arm_facts(arm).get("emulated") and not data.run.manifest.get("simulated")
        if math.isnan(late) and live and part.rows["ok"].any():
            yield Finding(
                rule="emulator_late",
                level="invalid",
                arm=arm,
                message="the emulator did not report how late its timers were",
                advice="rerun it; a run that was killed has no such report",
            )
        if late > limit:
            yield Finding(
                rule="emulator_late",
                level="invalid",
                arm=arm,
                message=f"an emulator process was late by {1e3 * late:.1f} ms at P99 > {1e3 * limit:.1f} ms "
                "(3% of the median TTFT, experiment time)",
                advice="lower the emulator speed or the load, or give it more cores",
                measured=late,
                limit=limit,
                unit="s",
            )


def emulator_late_s(data: Dataset, arm: str) -> float:
    """Worst of the emulator processes' own P99 timer lateness (their last report of each repeat), experiment seconds;
    NaN when none reports it."""  # fmt: skip
    server = data.run.server
    rows = server[(server["arm"] == arm) & (server["metric"] == "late_p99_ns")]
    if rows.empty:
        return math.nan
    last = rows.sort_values("t_ns").groupby(["repeat", "process"])["value"].last()
    return float(last.max()) / 1e9 * data.speed(arm)


def backlog(data: Dataset) -> Iterator[Finding]:
    """Queues grew until arrivals ended: the load is above what the arm can do, and percentiles depend on run length.

    Looked at on the roots of sessions, which arrive open loop and are exchangeable, one value a session (those of one
    instant, as traces of whole seconds have them, are one): over the last half of the arrivals TTFT from due, E2E from
    due or the session's lag must be ranked by arrival (Kendall, one-sided p < 0.001) and the median of the last third
    must be at least twice that of the first third, the middle between.
    """
    for arm, part in data.arms.items():
        for name, values in _waits(part.rows).items():
            growth = _growth(values, BACKLOG_GROWTH, median_ttft_s(data, arm) if name == "session_lag" else 0.0)
            if growth is not None:
                yield Finding(
                    rule="backlog",
                    level="invalid",
                    arm=arm,
                    message=f"{name} of session starts grew {growth:.1f}-fold over the last half of the arrivals "
                    f"(limit {BACKLOG_GROWTH:g}-fold): the arm does not keep up",
                    advice="lower session_rate; percentiles of an overloaded arm only say how long you ran",
                    measured=growth,
                    limit=BACKLOG_GROWTH,
                    unit="ratio",
                )
                break


def _waits(rows: pd.DataFrame) -> dict[str, list[Floats]]:
    """For each watched metric one array a repeat: a value a session, in order of arrival."""
    out: dict[str, list[Floats]] = {"ttft_sched": [], "e2e_sched": [], "session_lag": []}
    if "starts_session" in rows:  # of a window: sessions that were under way when it began are not arrivals
        begun = rows.groupby(["repeat", "session_id"], sort=False)["starts_session"].transform("any")
        rows = rows[begun.astype(bool)]
    for _, repeat in rows.sort_values("scheduled_s", kind="stable").groupby("repeat"):
        by_session = repeat.groupby("session_id", sort=False)
        roots = by_session.head(1)
        start = roots["scheduled_s"].to_numpy()
        lag = by_session["session_lag"].max().fillna(0.0).to_numpy()
        for name, values in (
            ("ttft_sched", roots["ttft_sched"]),
            ("e2e_sched", roots["e2e_sched"]),
            ("session_lag", lag),
        ):
            out[name].append(_at_each_start(start, np.asarray(values, dtype=np.float64)))
    return out


def _at_each_start(start: Floats, values: Floats) -> Floats:
    """The median of those that start at one instant: they queue behind each other in any arm, which is no growth."""
    cuts = np.flatnonzero(np.diff(start)) + 1
    return np.array([quantile(part, 0.5) for part in np.split(values, cuts)] if len(values) else [])


def _growth(repeats: list[Floats], factor: float, floor: float) -> float | None:
    """By how much the waits grew in the worst repeat where they did beyond doubt; None where they did not."""
    worst: float | None = None
    for values in repeats:
        half = values[len(values) // 2 :]
        if len(half) < BACKLOG_LEAST:
            continue
        first, middle, last = (quantile(third, 0.5) for third in np.array_split(half, 3))
        grown = first <= middle <= last and last >= factor * first + floor and last > first
        if grown and _kendall_z(half) > BACKLOG_Z:
            worst = max(worst or 0.0, last / first if first > 0 else math.inf)
    return worst


def _kendall_z(values: Floats) -> float:
    """Kendall's trend statistic against order, as a normal deviate (ties count as neither)."""
    n = len(values)
    score = _concordance(values)
    return (score - math.copysign(1, score)) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18) if score else 0.0


def _concordance(values: Floats) -> float:
    """Pairs that grow with their order minus pairs that fall; n log n (a hundred thousand sessions are usual).

    As a merge sort counts inversions: of every two neighbouring runs, how many of the left are below or above each of
    the right.
    """
    ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
    n, score = len(ranks), 0
    step = int(ranks.max(initial=0)) + 1
    run = 1
    while run < n:
        block = np.arange(n) // (2 * run)
        keys = ranks + block * step  # so that no value is compared with one of another pair of runs
        is_left = np.arange(n) % (2 * run) < run
        left, right = np.sort(keys[is_left]), keys[~is_left]
        start = np.searchsorted(left, block[~is_left] * step)
        end = np.searchsorted(left, (block[~is_left] + 1) * step)
        below, up_to = np.searchsorted(left, right), np.searchsorted(left, right, side="right")
        score += int(((below - start) - (end - up_to)).sum())
        run *= 2
    return float(score)
