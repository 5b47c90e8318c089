"""A measured window of due times (`duration_s`): its length, what it does to sessions, the mix in it and outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pddbench.analyze import hits, metrics

if TYPE_CHECKING:
    import pandas as pd

CUT = "duration_s cuts sessions"


class Mix(msgspec.Struct, kw_only=True):
    """Requests sent in a phase: how many, their mean input (tokens), mean planned hit, and hit buckets (requests)."""

    phase: str
    requests: int
    mean_input_tokens: float | None
    mean_hit_planned: float | None
    buckets: dict[str, int]


def length_s(window: dict[str, Any], rows: pd.DataFrame, partial: bool) -> tuple[float, bool]:
    """Seconds that one arm's rows (all phases) were measured, over all repeats, and whether each filled its window.

    A window that the trace, or a signal (`partial`), ended early counts to the last end in it, as without a window.
    Something due after the window shows that it was reached; so does, in a run that was not stopped, something left.
    """
    total, filled = 0.0, True
    for _, repeat in rows.groupby("repeat", sort=False):
        drained = repeat[repeat["phase"] == "drain"]
        if (drained["due_s"].notna() | ((drained["error"] == "run_ended") & (not partial))).any():
            total += window["until_s"] - window["from_s"]
        else:
            filled = False
            total += np.nan_to_num(metrics.window_s(repeat[repeat["phase"] == "measure"]))
    return total, filled


def mark_session_starts(lines: pd.DataFrame) -> None:
    """Add the column `starts_session`: no request of the session was scheduled earlier (in this arm and repeat)."""
    first = lines.groupby(["arm", "repeat", "session_id"], sort=False)["scheduled_s"].transform("min")
    lines["starts_session"] = lines["scheduled_s"] == first


def mix(rows: pd.DataFrame) -> list[Mix]:
    """What one arm was sent before, in and after the window; requests that only warm up code or caches are left out."""
    sent = rows[rows["sent_s"].notna() & ~rows["kind"].isin(["warmup", "prime"])]
    out = []
    for phase in ("warmup", "measure", "drain"):
        part = sent[sent["phase"] == phase]
        share = hits.planned_share(part)
        counts = np.bincount(hits.bucket_of(share)[~np.isnan(share)], minlength=len(hits.bucket_names()))
        out.append(
            Mix(
                phase=phase,
                requests=len(part),
                mean_input_tokens=round(float(part["input_tokens_planned"].mean()), 1) if len(part) else None,
                mean_hit_planned=round(float(np.nanmean(share)), 6) if len(part) else None,
                buckets=dict(zip(hits.bucket_names(), (int(n) for n in counts), strict=True)),
            )
        )
    return out
