"""Gaps over tokens: how the stream flows by token index, and around the hand-off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.gaps import seam_gap
from pddbench.analyze.quantiles import Floats, Ints
from pddbench.report.html.rounding import rounded

if TYPE_CHECKING:
    import pandas as pd

_STATS = (0.5, 0.9, 0.99)
_LEAST = 10  # gaps at a place, below which no quantile is drawn
_AROUND = 32  # tokens on either side of the hand-off
_BINS = 120


def gap_profiles(data: Dataset) -> dict[str, Any]:
    """For each arm, by token index and by distance from the hand-off: places, gaps there, P50, P90 and P99 in s."""
    gaps = data.gaps
    position = np.arange(len(gaps.row)) - gaps.start[gaps.row] + 1  # the n-th chunk after the first
    out: dict[str, Any] = {"token": {}, "handoff": {}}
    longest = int(position.max()) if len(position) else 1
    width = max(1, -(-longest // _BINS))
    for name, part in data.arms.items():
        mine = np.zeros(len(gaps.start), dtype=bool)
        mine[part.rows.index.to_numpy()] = True
        mask = mine[gaps.row]
        out["token"][name] = _profile((position[mask] - 1) // width * width + 1, gaps.gap_s[mask])
        seam = seams(data, part.rows)[gaps.row]
        near = mask & (seam >= 0)
        distance = np.arange(len(seam)) - seam
        near &= np.abs(distance) <= _AROUND
        out["handoff"][name] = _profile(distance[near], gaps.gap_s[near])
    return out | {"width": width}


def seams(data: Dataset, rows: pd.DataFrame) -> Ints:
    """For each row of the run the flat index of the gap at its hand-off; -1 for none and for rows not in `rows`."""
    handoff = np.full(len(data.gaps.start), np.nan)
    handoff[rows.index.to_numpy()] = rows["handoff_token"].to_numpy()
    return seam_gap(data.gaps, handoff)


def _profile(place: Ints, gap_s: Floats) -> dict[str, Any]:
    """Quantiles of the gaps at each place that has enough of them."""
    order = np.lexsort((gap_s, place))
    place, gap_s = place[order], gap_s[order]
    at, start, count = np.unique(place, return_index=True, return_counts=True)
    kept = count >= _LEAST
    at, start, count = at[kept], start[kept], count[kept]
    out: dict[str, Any] = {"at": at.tolist(), "n": count.tolist()}
    for q in _STATS:
        rank = np.maximum(np.ceil(q * count).astype(np.int64) - 1, 0)
        enough = count >= 1 / (1 - q)
        out[f"p{100 * q:g}"] = rounded(np.where(enough, gap_s[start + rank], np.nan))
    return out
