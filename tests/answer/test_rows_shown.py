"""Rows of the table that a reader would call impossible or odd."""

from __future__ import annotations

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.report import units
from pddbench.runfolder.load import load
from tests.analyze.synth import Recipe, make_run


def early_cache(arm, repeat, requests, events, server, health):
    """A cache near the prefill has the donor's KV before its first token has crossed the WAN."""
    requests["cached_tokens_ceiling"] = list(requests["cached_tokens"])
    requests["cached_tokens_possible"] = [0 if hit is None else hit // 2 for hit in requests["cached_tokens"]]


def test_possible_hits_hold_what_was_served(tmp_path):
    """Served hits above the possible ones read as a fault of the measurement, and made naive arms look worse."""
    folder = make_run(tmp_path / "r", Recipe(arms=("naive",), sessions=20, repeats=1, edit=early_cache))
    rows = Dataset(load(folder)).arms["naive"].rows
    served = rows["cached_tokens"].to_numpy()
    assert np.nansum(served) > 0
    assert (rows["cached_tokens_possible"].to_numpy() >= np.nan_to_num(served)).all()


def test_a_row_without_figures_has_the_plain_unit():
    """ "KV each P50 TB: withheld" made readers think of terabytes."""
    nothing = {"point": None, "low": None, "high": None, "withheld": "n_eff 3 < 6"}
    assert units.pick([nothing, nothing], "bytes") == (1.0, "B")
    assert units.pick([nothing], "s") == (1.0, "s")
    assert units.pick([nothing | {"point": 3e9}], "bytes")[1] == "GB"
