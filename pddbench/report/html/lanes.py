"""Requests for the swim-lane: whole sessions in the order of their start, one lane a session, all arms alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.report.html.spacing import seams
from pddbench.text import printable

if TYPE_CHECKING:
    import pandas as pd

REQUESTS_SHOWN = 1200  # an arm; whole sessions


def lanes(data: Dataset) -> dict[str, Any]:
    """For each arm the requests of its first repeat, times in seconds since the run's zero; how many are left out."""
    out: dict[str, Any] = {"arms": {}, "left_out": 0}
    for name, part in data.arms.items():
        if part.rows.empty:
            continue
        repeat = part.rows["repeat"].min()
        rows = part.rows[part.rows["repeat"] == repeat].sort_values(["due_s", "request_id"])
        kept = _whole_sessions(rows)
        out["left_out"] = max(out["left_out"], len(rows) - len(kept))
        out["arms"][name] = _columns(data, kept) | {"repeat": int(repeat)}
    return out


def _whole_sessions(rows: pd.DataFrame) -> pd.DataFrame:
    """The first sessions that together have at most `REQUESTS_SHOWN` requests; at least one."""
    sizes = rows.groupby("session_id", sort=False).size().cumsum()
    kept = sizes.index[(sizes <= REQUESTS_SHOWN).to_numpy() | (np.arange(len(sizes)) == 0)]
    return rows[rows["session_id"].isin(kept)]


def _columns(data: Dataset, rows: pd.DataFrame) -> dict[str, Any]:
    """Plain lists; `seam` is when the first token of the main decode came, `kv` how long the KV took over the WAN."""
    raw = data.run.requests.iloc[rows.index]
    first = _seconds(raw, "first_token_ns")
    last = _seconds(raw, "last_token_ns")
    return {
        "id": [printable(str(text), 60) for text in rows["request_id"]],
        "session": [printable(str(text), 60) for text in rows["session_id"]],
        "outcome": rows["outcome"].astype(str).tolist(),
        "pipeline": [printable(str(text), 20) for text in rows["pipeline"].fillna("")],
        "due": _millis(_seconds(raw, "due_ns")),
        "first": _millis(first),
        "seam": _millis(_seam_s(data, rows, first)),
        "end": _millis(np.where(np.isnan(last), _seconds(raw, "end_ns"), last)),
        "kv": _millis(rows["kv_wan_s"].to_numpy()),
    }


def _seconds(rows: pd.DataFrame, name: str) -> Any:
    return rows[name].to_numpy(dtype=np.float64, na_value=np.nan) / 1e9


def _millis(values: Any) -> list[float | None]:
    """Seconds to the millisecond; null for what did not happen."""
    return [None if np.isnan(value) else round(value, 3) for value in np.asarray(values, dtype=np.float64).tolist()]


def _seam_s(data: Dataset, rows: pd.DataFrame, first: Any) -> Any:
    """When the first token after the hand-off came: the first token's time plus the gaps up to the seam."""
    gaps = data.gaps
    seam = seams(data, rows)[rows.index.to_numpy()]
    sums = np.concatenate([[0.0], np.cumsum(gaps.gap_s)])
    start = gaps.start[rows.index.to_numpy()]
    return np.where(seam >= 0, first + sums[seam + 1] - sums[start], np.nan)
