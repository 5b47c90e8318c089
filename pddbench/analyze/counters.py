"""Served hits by the server's own counters: what a run without `cached_tokens` has instead, and a check of those with.

A figure of the whole server between the page before the run and the one after it: warm-ups and anybody else's requests
are in it, so it stands beside the client's figures and never replaces them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import Figure
from pddbench.deploy.counters import Served, served
from pddbench.deploy.prometheus import Series, read_series

if TYPE_CHECKING:
    import pandas as pd

FIGURE = "hit_served_counters.token_weighted"
DIFFER_SHARE = 0.01


def served_by_counters(data: Dataset, arm: str) -> Served | None:
    """Hits and prompt tokens that the arm's endpoint counted over all repeats; None without such counters."""
    found = [one for repeat in _repeats(data, arm) if (one := _served(data, arm, repeat)) is not None]
    if not found:
        return None
    hits, asked = sum(one.hits for one in found), sum(one.asked for one in found)
    return Served(found[0].engine, found[0].source, hits, asked, all(one.tokens for one in found))


def figure(data: Dataset, arm: str) -> Figure:
    """`hit_served_counters`; withheld where the endpoint has no such counters, or counted nothing."""
    counted = served_by_counters(data, arm)
    if counted is None or counted.asked <= 0:
        return Figure(unit="share", withheld="the endpoint has no counters of hits")
    note = f"{counted.source}, whole server, warm-ups included: no interval"
    return Figure(unit="share", point=counted.share, note=note)


def figures(data: Dataset, arm: str) -> dict[str, Figure]:
    """`hit_served_counters` where no reply of the arm says what it had from the cache; else nothing."""
    found = figure(data, arm)
    if found.withheld or data.arms[arm].rows["cached_tokens"].notna().any():
        return {}
    return {FIGURE: found}


class Difference(msgspec.Struct, frozen=True):
    """What a server counted in a run and what its replies reported, tokens; `off` is a share of the prompt tokens."""

    arm: str
    repeat: int
    source: str
    counted: float
    reported: float
    off: float


def differences(data: Dataset) -> Iterator[Difference]:
    """Each run in which the server counted other hits than its replies reported."""
    for arm in data.arms:
        for repeat in _repeats(data, arm):
            counted = _served(data, arm, repeat)
            rows = data.lines[(data.lines["arm"] == arm) & (data.lines["repeat"] == repeat)]
            told = rows[["cached_tokens", "prompt_tokens"]]
            if counted is None or not counted.tokens or told.isna().any(axis=None) or not told["prompt_tokens"].sum():
                continue  # a reply that reports nothing may be counted all the same
            reported = float(told["cached_tokens"].sum())
            off = (counted.hits - reported) / float(told["prompt_tokens"].sum())
            if abs(off) > DIFFER_SHARE:
                yield Difference(arm, repeat, counted.source, counted.hits, reported, off)


def _repeats(data: Dataset, arm: str) -> list[int]:
    server = data.run.server
    mine = server[(server["arm"] == arm) & (server["process"] == "endpoint")]
    return sorted({int(repeat) for repeat in mine["repeat"]})


def _served(data: Dataset, arm: str, repeat: int) -> Served | None:
    server = data.run.server
    mine = server[(server["arm"] == arm) & (server["process"] == "endpoint") & (server["repeat"] == repeat)]
    grown = growth(mine)
    return None if grown is None else served(grown)


def growth(rows: pd.DataFrame) -> dict[Series, float] | None:
    """How much each series of one run grew from the first page to the last; None when the server began anew between.

    A labelled counter that the first page does not have has been 0 then.
    """
    first_ns = rows["t_ns"].min()
    out: dict[Series, float] = {}
    for metric, mine in rows.sort_values("t_ns", kind="stable").groupby("metric", sort=False):
        values = mine["value"].to_numpy()
        grown = float(values[-1] - (values[0] if mine["t_ns"].iloc[0] == first_ns else 0.0))
        series = read_series(str(metric))
        if series.name.endswith(("_total", "_sum", "_count")) and (values[1:] < values[:-1]).any():
            return None
        out[series] = grown
    return out
