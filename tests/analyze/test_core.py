"""Loading, per-request metrics and quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddbench.analyze import quantiles
from pddbench.analyze.metrics import completion_by_session, request_metrics, window_s
from pddbench.analyze.quantiles import SessionQuantiles, quantile, session_weights, weighted_sums
from pddbench.errors import InputError
from pddbench.runfolder.load import load

from .synth import Recipe, fail, make_run


def test_load_types_and_nulls(tmp_path):
    """A null time must stay null: as 0 or NaN it would enter a latency."""

    def spoil(arm, repeat, requests, *_):
        fail(requests, 0)

    run = load(make_run(tmp_path / "r", Recipe(sessions=5, edit=spoil)))
    assert run.arms == ["baseline", "naive", "pdd"]
    assert str(run.requests["first_token_ns"].dtype) == "Int64"
    assert run.requests["first_token_ns"].isna().sum() == 6
    assert len(run.events) == len(run.requests) == 5 * 4 * 6
    assert load(tmp_path).path == run.path


def test_load_errors_are_sentences(tmp_path):
    """Each way a folder can be wrong has its own sentence, or users see a traceback."""
    with pytest.raises(InputError, match="no such run folder"):
        load(tmp_path / "absent")
    with pytest.raises(InputError, match="not a run folder"):
        load(tmp_path)
    folder = make_run(tmp_path / "a", Recipe(sessions=2))
    make_run(tmp_path / "b", Recipe(sessions=2))
    with pytest.raises(InputError, match="holds 2 runs"):
        load(tmp_path)
    for file in (folder / "requests").iterdir():
        file.unlink()
    (folder / "spool").mkdir()
    with pytest.raises(InputError, match="unfinished: run `pddbench recover"):
        load(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        load(folder)


def test_quantile_with_failures():
    """The inverted distribution with +inf: interpolating would give inf (or NaN) far too early."""
    x = np.array([1.0, 2.0, 3.0, math.inf])
    assert quantile(x, 0.5) == 2.0
    assert quantile(x, 0.75) == 3.0
    assert quantile(x, 0.76) == math.inf
    assert quantile(x, 0.9) == math.inf
    assert quantile(np.arange(1, 101) * 1.0, 0.9) == 90.0
    assert math.isnan(quantile(np.array([]), 0.5))


@given(st.integers(1, 200), st.integers(1, 12), st.integers(0, 2**31), st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_session_quantiles_are_exact(n, sessions, seed, q):
    """The block index must give what repeating each session's rows gives, or every bootstrap interval is off."""
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(n) < 0.1, np.inf, rng.integers(0, 20, n) * 1.0)
    code = rng.integers(0, sessions, n)
    weights = session_weights(sessions, 5, seed)
    got = SessionQuantiles(values, code, sessions).at(q, weights)
    for w, g in zip(weights, got, strict=True):
        full = np.repeat(values, w[code].astype(int))
        assert (math.isnan(g) and len(full) == 0) or g == quantile(full, q)


def test_weights_do_not_depend_on_how_they_are_made(monkeypatch):
    """Without it the interval of a large run would be another than that of the same run elsewhere."""
    values = np.random.default_rng(3).random((500, 2))
    whole = session_weights(500, 40, 1)
    sums = weighted_sums(whole, values)
    assert (whole.sum(axis=1) == 500).all() and np.allclose(sums, whole.astype(float) @ values, rtol=1e-12)
    monkeypatch.setattr(quantiles, "_CELLS_AT_ONCE", 3000)
    assert (session_weights(500, 40, 1) == whole).all()
    assert np.allclose(weighted_sums(whole, values), sums, rtol=1e-12)
    assert weighted_sums(whole, values[:, 0]).shape == (40,)


def test_request_metrics_edges(tmp_path):
    """Failures are +inf, one-token replies have no second token, bundled ones an unknown one; SLOs follow."""

    def spoil(arm, repeat, requests, *_):
        fail(requests, 0)
        for name in ("second_token_ns", "max_gap_ns", "max_gap_token"):
            requests[name][1] = requests[name][2] = None
        requests["completion_tokens"][1] = requests["output_tokens_planned"][1] = requests["chunks"][1] = 1
        requests["chunks"][2] = 1  # all 48 tokens in one chunk: the second token's time is unknown
        requests["first_token_ns"][3] = requests["last_token_ns"][3] = None  # `ok`, but no token ever came

    run = load(make_run(tmp_path, Recipe(arms=("baseline",), sessions=2, repeats=1, edit=spoil)))
    m = request_metrics(run.requests, {"ttst_ms": 50.0, "max_gap_ms": 50.0, "ttft_ms": 10_000.0, "e2e_ms": None})
    assert m["ttft"][0] == m["e2e_sched"][0] == m["ttst"][0] == m["tpot"][0] == math.inf
    assert np.isnan(m["ttst"][1]) and np.isnan(m["tpot"][1]) and np.isnan(m["ttst"][2])
    assert m["ttft"][3] == math.inf
    assert m["good"].tolist()[:5] == [False, True, False, False, True]
    assert m["ttft_sched"][4] - m["ttft"][4] == pytest.approx(200e-6)
    assert m["send_lag"][4] == pytest.approx(200e-6)
    assert m["tpot"][4] == pytest.approx((m["e2e"][4] - m["ttft"][4]) / 47)
    done = completion_by_session(m)
    assert done["completion_s"].tolist()[0] == math.inf
    rows = run.requests[run.requests["session_id"] == "s1"]
    assert done["completion_s"].tolist()[1] == pytest.approx((rows["end_ns"].max() - rows["scheduled_ns"].min()) / 1e9)
    assert window_s(m) == pytest.approx((run.requests["end_ns"].max() - run.requests["due_ns"].min()) / 1e9)
