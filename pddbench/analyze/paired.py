"""Two arms on the same requests: differences of quantiles with the sessions resampled jointly, and differences by
request apart.

Requests pair by (request_id, repeat) where both arms were sent the same plan (`plan_sha256`). The cluster is the
session id over all repeats and both arms, because a repeat replays the same work.
"""  # fmt: skip

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pddbench.analyze import intervals, registry
from pddbench.analyze.intervals import Figure, number
from pddbench.analyze.quantiles import Bools, Ints
from pddbench.analyze.samples import ArmData, Values

if TYPE_CHECKING:
    import pandas as pd

    from pddbench.analyze.gaps import Gaps


@dataclass(frozen=True)
class Side:
    """One arm's part of a comparison: its lines of `request_metrics`, the gaps of its run, its cost an hour."""

    rows: pd.DataFrame
    gaps: Gaps | None = None
    cost_per_hour: float | None = None
    cut_window_s: float | None = None


@dataclass(frozen=True)
class Pair:
    """Two arms cut to the requests they share, row by row in the same order; `a` is the one compared with."""

    a: ArmData
    b: ArmData
    unmatched: int  # requests that only one side has
    differing: int  # requests both have, but with different plans: not comparable

    def difference(self, name: str, stat: str) -> Figure:
        """`b - a` of one statistic, percentile interval of joint session resampling."""
        return self.contrast((name, stat), 1.0, (name, stat))

    def contrast(self, of_b: tuple[str, str], factor: float, of_a: tuple[str, str]) -> Figure:
        """`of_b` of arm b - factor * `of_a` of arm a, each a (metric, stat) of the same unit."""
        a, b = self.a.figure(*of_a), self.b.figure(*of_b)
        figure = Figure(unit=b.unit, rows=min(a.rows, b.rows), sessions=min(a.sessions, b.sessions))
        figure.n_eff = None if a.n_eff is None or b.n_eff is None else min(a.n_eff, b.n_eff)
        figure.withheld = b.withheld or a.withheld
        if figure.withheld is None:
            with np.errstate(invalid="ignore"):  # inf - inf: not a number, and counted as such
                draws = self.b.draws(*of_b) - factor * self.a.draws(*of_a)
                point = self.b.point(*of_b) - factor * self.a.point(*of_a)
            low, high = intervals.draws_interval(draws, point)
            figure.point, figure.low, figure.high = number(point), number(low), number(high)
        return figure

    def by_request(self, name: str, q: float) -> Figure:
        """Quantile `q` of the per-request differences b - a; where both failed there is none."""
        with np.errstate(invalid="ignore"):
            each = self.b.rows[name].to_numpy() - self.a.rows[name].to_numpy()
        values = Values(each, self.a.code, len(self.a.sessions))
        return values.figure(q, registry.METRICS[name].unit)

    def outcomes(self) -> dict[str, int]:
        """Counts of (a/b) outcomes: ok/ok, ok/fail, fail/ok, fail/fail."""
        a, b = (side.rows["ok"].to_numpy(dtype=bool) for side in (self.a, self.b))
        cells = {"ok/ok": a & b, "ok/fail": a & ~b, "fail/ok": ~a & b, "fail/fail": ~a & ~b}
        return {name: int(cell.sum()) for name, cell in cells.items()}

    def subset(self, mask: Bools) -> Pair:
        """The same pair on some of its requests."""
        return Pair(self.a.subset(mask), self.b.subset(mask), self.unmatched, self.differing)


def pair(a: Side, b: Side) -> Pair:
    """Cut both sides to the requests they share. Rows must be unique by (request_id, repeat)."""
    import pandas as pd

    index_a, index_b = (pd.MultiIndex.from_frame(side.rows[["request_id", "repeat"]]) for side in (a, b))
    found = index_b.get_indexer(index_a)
    at_a = np.flatnonzero(found >= 0)
    at_b = found[at_a]
    sent_a, sent_b = _plans(a, at_a), _plans(b, at_b)
    same = (sent_a == sent_b) & (sent_a != "")
    rows_a, rows_b = _at(a.rows, at_a[same]), _at(b.rows, at_b[same])
    sessions = sorted(set(rows_a["session_id"]))
    data_a = ArmData(rows_a, a.gaps, sessions, a.cost_per_hour, None, a.cut_window_s)
    weights = data_a.weights if sessions else np.empty((0, 0), dtype=np.uint16)
    data_b = ArmData(rows_b, b.gaps, sessions, b.cost_per_hour, weights, b.cut_window_s)
    return Pair(data_a, data_b, len(a.rows) + len(b.rows) - 2 * len(at_a), int((~same).sum()))


def _plans(side: Side, at: Ints) -> NDArray[np.object_]:
    """The checksum of what was sent, of some rows; empty where it is missing."""
    plans: NDArray[np.object_] = side.rows["plan_sha256"].fillna("").to_numpy(dtype=object)[at]
    return plans


def _at(rows: pd.DataFrame, at: Ints) -> pd.DataFrame:
    """Those rows in that order; all of them as they are without a copy, which of a million takes a gigabyte."""
    if len(at) == len(rows) and (at == np.arange(len(rows))).all():
        return rows
    return rows.iloc[at]
