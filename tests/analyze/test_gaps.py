"""Pooled gaps and the seam, on streams whose truth is planted."""

from __future__ import annotations

import numpy as np
import pytest

from pddbench.analyze.dataset import Dataset
from pddbench.runfolder.load import load

from .synth import Recipe, make_run


def dataset(folder, edit=None, **recipe):
    return Dataset(load(make_run(folder, Recipe(edit=edit, **recipe))))


def test_planted_stall_is_exact(tmp_path):
    """An 800 ms stall among 20.0-20.2 ms gaps must come out as 800 ms beyond the usual gap, and only where it is."""
    data = dataset(tmp_path, sessions=40, repeats=1)
    pdd = data.arms["pdd"]
    stall = pdd.values("seam_stall").values
    handed = int(pdd.rows["handoff_token"].notna().sum())
    assert len(stall) == handed > 20
    assert stall == pytest.approx(np.full(handed, 0.8), abs=2e-4)  # usual gaps differ by 0.1 ms from one another
    assert len(data.arms["baseline"].values("seam_stall").values) == 0
    itl = pdd.values("itl").values
    assert (itl > 0.5).sum() == handed and len(itl) == 40 * 4 * 47
    assert pdd.values("itl_rld").values.max() < 0.03 and pdd.values("itl_md").values.max() < 0.03
    assert len(pdd.values("itl_rld").values) + len(pdd.values("itl_md").values) == handed * 46


def test_no_stall_with_few_gaps_on_a_side(tmp_path):
    """With fewer than 8 gaps on a side the usual gap is not known, and the stall is null rather than wrong."""
    assert len(dataset(tmp_path / "a", sessions=10, tokens=16, repeats=1).arms["pdd"].values("seam_stall").values) == 0
    assert len(dataset(tmp_path / "b", sessions=10, tokens=18, repeats=1).arms["pdd"].values("seam_stall").values) > 0


def test_bundled_chunks(tmp_path):
    """Two tokens a chunk: ITL halves and counts twice, the seam is found by its token; unknown sizes withhold ITL."""

    def pairs(arm, repeat, requests, events, *_):
        for i, gaps in enumerate(events["gaps_us"]):
            joined = [gaps[j] + gaps[j + 1] for j in range(1, len(gaps) - 1, 2)]
            events["gaps_us"][i], events["chunk_tokens"][i] = joined, [2] * (len(joined) + 1)
            events["stage"][i] = events["stage"][i][: 2 * len(joined) + 2 : 2]
            requests["chunks"][i] = len(joined) + 1

    def unknown(arm, repeat, requests, events, *rest):
        pairs(arm, repeat, requests, events, *rest)
        events["chunk_tokens"] = [[None] * len(sizes) for sizes in events["chunk_tokens"]]

    known = dataset(tmp_path / "a", pairs, sessions=60, repeats=1)
    itl = known.arms["baseline"].values("itl")
    assert itl.blank is None
    assert np.median(itl.values) == pytest.approx(0.0201, abs=1e-4)
    assert len(itl.values) == 60 * 4 * 46
    assert known.arms["pdd"].values("seam_stall").values == pytest.approx(0.8, abs=0.021)
    blind = dataset(tmp_path / "b", unknown, sessions=60, repeats=1).arms["pdd"]
    assert "not known" in blind.figure("itl", "p50").withheld
    assert blind.figure("icl", "p50").withheld is None
    assert blind.values("seam_stall").values == pytest.approx(0.8, abs=0.021)  # the stages still tell


def test_one_token_a_chunk_is_known_from_usage(tmp_path):
    """As many tokens as chunks means one each, so that ITL does not need the recorder's count."""

    def uncounted(arm, repeat, requests, events, *_):
        events["chunk_tokens"] = [[] for _ in events["chunk_tokens"]]

    part = dataset(tmp_path, uncounted, sessions=30, repeats=1).arms["pdd"]
    assert len(part.values("itl").values) == 30 * 4 * 47
    assert part.values("seam_stall").values == pytest.approx(0.8, abs=2e-4)
