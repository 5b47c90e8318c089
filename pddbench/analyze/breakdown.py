"""Who waits: an arm's figures by turn, by input length and over time, with the hit buckets of each part."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pddbench.analyze import hits
from pddbench.analyze.intervals import Figure
from pddbench.analyze.quantiles import Bools, Floats

if TYPE_CHECKING:
    from pddbench.analyze.samples import ArmData

TURN_EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, np.inf)
TOKEN_EDGES = (0.0, 1024.0, 4096.0, 16_384.0, 32_768.0, 65_536.0, 131_072.0, np.inf)
WINDOWS = 10
KEYS = ("ttft_sched.p50", "ttft_sched.p90", "e2e_sched.p50", "slo_attainment.share")


class Slice(msgspec.Struct, kw_only=True):
    """Requests with `low` <= value < `high` (turn, tokens, or seconds since the first due; null: no end).

    `hit_shares`: share of its requests in each of the seven buckets of planned hit, so that a slower part whose
    requests merely hit less can be told from one that is slower as such.
    """

    low: float
    high: float | None
    requests: int
    figures: dict[str, Figure]
    hit_shares: list[float]


def breakdowns(part: ArmData) -> dict[str, list[Slice]]:
    """`turn`, `input_tokens`, `time`: the parts that have requests, in order."""
    rows = part.rows
    due = (rows["due_s"] - rows.groupby("repeat")["due_s"].transform("min")).to_numpy()
    last = float(np.nanmax(due)) if np.isfinite(due).any() else 0.0
    windows = np.linspace(0.0, np.nextafter(last, np.inf), WINDOWS + 1) if last > 0 else np.array([0.0, 1.0])
    return {
        "turn": list(_slices(part, rows["turn"].to_numpy(dtype=np.float64), np.array(TURN_EDGES))),
        "input_tokens": list(_slices(part, rows["input_tokens_planned"].to_numpy(), np.array(TOKEN_EDGES))),
        "time": list(_slices(part, due, windows)),
    }


def _slices(part: ArmData, values: Floats, edges: Floats) -> Iterator[Slice]:
    bucket = hits.bucket_of(hits.planned_share(part.rows))
    for low, high in pairwise(edges):
        inside: Bools = (values >= low) & (values < high)
        n = int(inside.sum())
        if not n:
            continue
        of = part.subset(inside)
        known = bucket[inside]
        counts = np.bincount(known[known >= 0], minlength=len(hits.bucket_names()))
        yield Slice(
            low=float(low),
            high=None if np.isinf(high) else float(high),
            requests=n,
            figures={key: of.figure(*key.split(".", 1)) for key in KEYS},
            hit_shares=[round(float(count) / max(1, len(known)), 6) for count in counts],
        )
