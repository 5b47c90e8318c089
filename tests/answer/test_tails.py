"""Warm-up, trend, breakdowns, "is B better than A", and histograms that are merged."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from pddbench.analyze import stationarity
from pddbench.analyze.better import better
from pddbench.analyze.breakdown import breakdowns
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.trust import findings
from pddbench.cli import cli
from pddbench.report import hlog
from pddbench.runfolder.load import load
from tests.analyze.synth import Recipe, fail, make_run

LATER = ("first_byte_ns", "first_chunk_ns", "first_token_ns", "second_token_ns", "last_token_ns", "end_ns")


def test_mser5_cuts_what_is_warm_up():
    """A start three times slower must be cut, about where it ends; a steady run must keep (nearly) all."""
    rng = np.random.default_rng(1)
    steady = rng.normal(0, 0.3, 1000)
    warm = steady.copy()
    warm[:150] += math.log(3)
    cut, settled = stationarity.mser5(warm)
    assert settled and 140 <= cut <= 200
    assert stationarity.mser5(steady)[0] < 150
    drifting = steady + np.linspace(0, 3, 1000)
    assert stationarity.mser5(drifting)[1] is False


def sessions_run(rng, drift=0.0, sessions=150):
    """Times, log latencies and session codes: turns of a session share a heavy-tailed effect."""
    start = np.sort(rng.uniform(-60, 300, sessions))
    size = np.clip(np.exp(rng.normal(np.log(9), 1.0, sessions)).astype(int), 1, 100)
    code = np.repeat(np.arange(sessions), size)
    at = start[code] + (np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)) * rng.exponential(
        6, size.sum()
    )
    log = 0.5 * rng.standard_t(5, sessions)[code] + 0.5 * rng.normal(size=len(code))
    keep = (at >= 0) & (at <= 300)
    return at[keep], log[keep] + np.log1p(drift * at[keep] / 300), code[keep]


def test_the_trend_test_does_not_fire_on_correlated_latencies():
    """Usual tests call 10-70% of stationary runs drifting; this one a few in a hundred."""
    rng = np.random.default_rng(5)
    fired = sum(stationarity.trend(*sessions_run(rng)).fires for _ in range(100))
    assert fired <= 4
    seen = sum(stationarity.trend(*sessions_run(rng, drift=2.0)).fires for _ in range(30))
    assert seen >= 24


def test_what_turn_and_tokens_explain_is_no_trend():
    """Contexts that grow with the run make it slower; that is the trace, not a drift of the server."""
    rng = np.random.default_rng(2)
    at = np.sort(rng.uniform(0, 300, 2000))
    tokens = 1000 + 50 * at + rng.normal(0, 300, 2000)
    log = tokens / 5000 + rng.normal(0, 0.2, 2000)
    code = rng.integers(0, 200, 2000)
    assert stationarity.trend(at, log, code).fires
    assert not stationarity.trend(at, log, code, tokens[:, None]).fires


def slow_start(arm, repeat, requests, events, server, health):
    """The first sixth of the run is four times slower."""
    end = max(requests["due_ns"])
    for i, due in enumerate(requests["due_ns"]):
        if due < end / 6:
            late = 3 * (requests["first_token_ns"][i] - requests["sent_ns"][i])
            for name in (
                "first_byte_ns",
                "first_chunk_ns",
                "first_token_ns",
                "second_token_ns",
                "last_token_ns",
                "end_ns",
            ):
                requests[name][i] += late


def test_a_warm_up_is_suggested_and_cut_only_when_asked(tmp_path):
    """A cut nobody asked for would flatter every run; one that was asked for must be said in the first line."""
    folder = make_run(tmp_path / "r", Recipe(arms=("baseline",), repeats=1, edit=slow_start))
    plain = CliRunner().invoke(cli, ["report", str(folder), "--json"], standalone_mode=False)
    found = json.loads(plain.output)
    suggested = found["arms"]["baseline"]["warmup"]
    assert suggested["settled"] and 10 < suggested["cut_s"] < 60
    assert found["arms"]["baseline"]["requests"] == 480 and found["run"]["warmup_cut_s"] == 0
    cut = CliRunner().invoke(cli, ["report", str(folder), "--warmup", "auto", "--json"], standalone_mode=False)
    after = json.loads(cut.output)
    assert after["run"]["warmup_cut_s"] == suggested["cut_s"] and after["arms"]["baseline"]["requests"] < 480
    p90 = "ttft_sched.p90"
    assert after["arms"]["baseline"]["figures"][p90]["point"] < found["arms"]["baseline"]["figures"][p90]["point"]
    for words, said in ((["--warmup", "soon"], "seconds, or auto"), (["--warmup", "1e9"], "leaves no request")):
        bad = CliRunner().invoke(cli, ["report", str(folder), *words], standalone_mode=False)
        assert said in str(bad.exception)


def test_a_drifting_run_is_warned_of(tmp_path):
    """Latencies that treble over the run have no one P90: the warning must come, and name its drift."""

    def edit(arm, repeat, requests, events, server, health):
        end = max(requests["due_ns"])
        for i, due in enumerate(requests["due_ns"]):
            late = int(2 * due / end * (requests["first_token_ns"][i] - requests["sent_ns"][i]))
            for name in (
                "first_byte_ns",
                "first_chunk_ns",
                "first_token_ns",
                "second_token_ns",
                "last_token_ns",
                "end_ns",
            ):
                requests[name][i] += late

    steady = Dataset(load(make_run(tmp_path / "s", Recipe(arms=("baseline",), repeats=1))))
    drifting = Dataset(load(make_run(tmp_path / "d", Recipe(arms=("baseline",), repeats=1, edit=edit))))
    assert [f for f in findings(steady) if f.rule == "trend"] == []
    (found,) = [f for f in findings(drifting) if f.rule == "trend"]
    assert found.measured > 1.0 and found.level == "warning"


def test_is_b_better_than_a(tmp_path):
    """naive waits for KV: worse, and the pairing must have bought something, since both saw the same requests."""
    data = Dataset(load(make_run(tmp_path / "r", Recipe(sessions=150, turns=4))))
    found = better(data.pair("baseline", "naive"), "ttft_sched.p90")
    assert found.verdict == "worse" and found.ratio.low > 1
    assert found.pairing > 1.1
    assert 0 < found.visible < found.effect.point
    same = better(data.pair("baseline", "pdd"), "ttft_sched.p50")
    assert same.verdict == "no difference seen" and same.pairing > 2
    reverse = better(data.pair("naive", "baseline"), "ttft_sched.p90")
    assert reverse.verdict == "better"


def test_more_slo_is_better(tmp_path):
    """Of shares of good requests the larger one is better, not the smaller."""

    def edit(arm, repeat, requests, events, server, health):
        if arm == "naive":
            for i in range(0, 240, 3):
                fail(requests, i)

    data = Dataset(
        load(make_run(tmp_path / "r", Recipe(arms=("baseline", "naive"), sessions=60, repeats=1, edit=edit)))
    )
    assert better(data.pair("baseline", "naive"), "slo_attainment.share").verdict == "worse"


def test_breakdowns_hold_every_request_once(tmp_path):
    """A part that is lost or counted twice makes the picture of who waits a wrong one."""
    data = Dataset(load(make_run(tmp_path / "r", Recipe(arms=("pdd",), sessions=60, turns=5))))
    part = data.arms["pdd"]
    found = breakdowns(part)
    for slices in found.values():
        assert sum(one.requests for one in slices) == len(part.rows)
        assert all(abs(sum(one.hit_shares) - 1) < 1e-5 for one in slices)
    assert [(one.low, one.high) for one in found["turn"]] == [(0, 1), (1, 2), (2, 4), (4, 8)]
    assert [one.low for one in found["input_tokens"]] == [16_384]


def test_histograms_round_trip_and_merge(tmp_path):
    """Merged histograms give the quantiles of all rows together, failures at the far end; averaged ones do not."""

    def edit(arm, repeat, requests, events, server, health):
        for i in range(24):
            fail(requests, i)

    runs = [
        make_run(tmp_path / name, Recipe(arms=("pdd",), repeats=1, seed=seed, edit=edit))
        for name, seed in (("a", 1), ("b", 2))
    ]
    for folder in runs:
        words = ["hlog", "export", str(folder), "--out", str(folder) + ".hlog"]
        assert CliRunner().invoke(cli, words, standalone_mode=False).exception is None
    files = [str(folder) + ".hlog" for folder in runs]
    out = tmp_path / "both.hlog"
    done = CliRunner().invoke(cli, ["hlog", "merge", *files, "--out", str(out), "--json"], standalone_mode=False)
    row = json.loads(done.output)["pdd.ttft"]
    assert row["count"] == 2 * (480 - 24) and row["failed"] == 48
    values = np.concatenate([Dataset(load(folder)).arms["pdd"].values("ttft").values for folder in runs])
    exact = np.sort(values)[math.ceil(0.9 * len(values)) - 1]
    assert row["p90"] == pytest.approx(exact, rel=0.002)
    assert row["p99"] is None  # 5% failed
    again = hlog.summary(hlog.read(out))
    assert again["pdd.ttft"] == row


def test_a_histogram_drops_nothing_silently():
    """Values above an hour and failures are counted beside the histogram (the library drops them without a word)."""
    found = hlog.of_values(np.array([0.5, 4000.0, math.inf]))
    assert (found.histogram.get_total_count(), found.above, found.failed) == (1, 1, 1)


@pytest.mark.parametrize("text", ["hello\n", "Tag=a,0.0,1.0,1.0,HISTnonsense\n", "#[only a comment]\n"])
def test_other_files_are_refused(tmp_path, text):
    """A file that is no log of histograms must be named, not read as an empty one."""
    file = tmp_path / "x.hlog"
    file.write_text(text)
    done = CliRunner().invoke(cli, ["hlog", "merge", str(file)], standalone_mode=False)
    assert "x.hlog" in str(done.exception)
