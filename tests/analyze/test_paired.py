"""Differences between arms: truth, coverage, pairing and failures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import as_float
from pddbench.analyze.paired import Side, pair
from pddbench.runfolder.load import load

from .synth import Recipe, fail, make_run


def sides(rng, sessions=150, shift=0.2):
    """Two arms on the same requests: a strong session effect that both share, and a shift of the second one."""
    size = rng.integers(1, 8, sessions)
    code = np.repeat(np.arange(sessions), size)
    base = np.exp(0.8 * rng.standard_normal(sessions)[code])
    frames = []
    for extra in (0.0, shift):
        frames.append(
            pd.DataFrame(
                {
                    "request_id": [f"r{i}" for i in range(len(code))],
                    "repeat": 0,
                    "session_id": [f"s{c}" for c in code],
                    "plan_sha256": "x",
                    "ok": True,
                    "ttft": base + extra + 0.05 * rng.random(len(code)),
                }
            )
        )
    return [Side(frame) for frame in frames]


def test_paired_difference_covers_and_pairing_pays():
    """The joint interval must hold the true shift, and be much narrower than the arms' own intervals."""
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(40):
        both = pair(*sides(rng))
        change = both.difference("ttft", "p50")
        held += as_float(change.low) <= 0.2 <= as_float(change.high)
    own = both.a.figure("ttft", "p50")
    assert held >= 36
    assert as_float(change.high) - as_float(change.low) < 0.3 * (as_float(own.high) - as_float(own.low))
    each = both.by_request("ttft", 0.5)
    assert as_float(each.low) <= 0.2 <= as_float(each.high)


def test_pairs_only_what_is_the_same_work():
    """A request of another plan, or one that only one side has, must not be compared."""
    a, b = sides(np.random.default_rng(1), sessions=40)
    b.rows.loc[0, "plan_sha256"] = "other"
    both = pair(a, Side(b.rows.iloc[:-3]))
    assert (both.differing, both.unmatched) == (1, 3)
    assert len(both.a.rows) == len(both.b.rows) == len(a.rows) - 4
    assert (both.a.rows["request_id"].to_numpy() == both.b.rows["request_id"].to_numpy()).all()


def test_failures_in_pairs(tmp_path):
    """A failure on one side is an infinite difference, on both sides none; all are counted."""

    def spoil(arm, repeat, requests, *_):
        fail(requests, 0)
        if arm == "naive":
            fail(requests, 1)
        if arm == "baseline":
            fail(requests, 2)

    both = Dataset(load(make_run(tmp_path, Recipe(repeats=1, edit=spoil)))).pair("baseline", "naive")
    assert both.outcomes() == {"ok/ok": 477, "ok/fail": 1, "fail/ok": 1, "fail/fail": 1}
    each = both.by_request("ttft", 0.5)
    assert each.rows == 479 and as_float(each.point) == pytest.approx(0.0553, abs=1e-3)
    change = both.difference("ttft", "p90")
    assert as_float(change.low) > 0.5 and np.isfinite(as_float(change.high))
