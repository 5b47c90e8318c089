"""A measured window in the answer: its length, the sessions it cuts, the mix in and out of it; and live history."""

import io

import pytest
from rich.console import Console

from pddbench.analyze.summary import summarise
from pddbench.report.table import render
from pddbench.runfolder.load import load

from .synth import Recipe, make_run

FROM_S, UNTIL_S = 20.0, 80.0


def phases(arm, repeat, requests, events, server, health):
    """Requests by their due time; the last ones were not sent any more."""
    for i, due in enumerate(requests["due_ns"]):
        s = due / 1e9
        requests["phase"][i] = "warmup" if s < FROM_S else "measure" if s < UNTIL_S else "drain"


def window(manifest):
    manifest["window"] = {"from_s": FROM_S, "until_s": UNTIL_S}


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """The summary of a run of which only a window was measured."""
    folder = make_run(tmp_path_factory.mktemp("window"), Recipe(edit=phases, manifest=window, repeats=2))
    return load(folder), summarise(load(folder))


def test_rates_count_over_the_window_and_not_over_its_drain(answer):
    """Without it, a long last reply would lower the rate of a deployment that served the window well."""
    run, summary = answer
    rows = run.requests
    inside = rows[(rows["arm"] == "pdd") & (rows["phase"] == "measure")]
    figure = summary["arms"]["pdd"]["figures"]["request_rate.rate"]
    assert summary["arms"]["pdd"]["requests"] == len(inside) > 50
    assert figure["point"] == pytest.approx((inside["outcome"] == "ok").sum() / (2 * (UNTIL_S - FROM_S)))


def test_sessions_that_the_window_cuts_have_no_completion_time(answer):
    """Without it, a session's part inside the window would pass for the whole of it."""
    for arm in answer[1]["arms"].values():
        assert arm["figures"]["session_completion.p50"]["withheld"] == "duration_s cuts sessions"


def test_the_mix_in_and_out_is_shown(answer):
    """Without it, a window of other hits or lengths than the trace's would speak for the trace."""
    run, summary = answer
    rows = run.requests
    mix = {part["phase"]: part for part in summary["arms"]["pdd"]["mix"]}
    for phase in ("warmup", "measure", "drain"):
        mine = rows[(rows["arm"] == "pdd") & (rows["phase"] == phase)]
        assert 10 < len(mine) == mix[phase]["requests"] == sum(mix[phase]["buckets"].values())
        assert mix[phase]["mean_input_tokens"] == mine["input_tokens_planned"].mean()
    text = io.StringIO()
    render(summary, Console(file=text, width=120))
    said = text.getvalue()
    assert "due from 20 s to 80 s" in said and "before: mean hit %" in said and "after: requests" in said


def test_a_window_that_was_not_filled_is_said(tmp_path):
    """Without it, the idle end of a window would count as capacity."""

    def long(manifest):
        manifest["window"] = {"from_s": FROM_S, "until_s": 1e5}

    def late(arm, repeat, requests, *others):
        requests["phase"] = ["warmup" if due < FROM_S * 1e9 else "measure" for due in requests["due_ns"]]

    summary = summarise(load(make_run(tmp_path, Recipe(edit=late, manifest=long, repeats=1))))
    assert {finding["arm"] for finding in summary["findings"] if finding["rule"] == "window"} == set(summary["arms"])
    rate = summary["arms"]["pdd"]["figures"]["request_rate.rate"]["point"]
    assert rate > 2 * summary["arms"]["pdd"]["requests"] / 1e5, "over the time to its last end"


def test_live_history_says_what_was_sent(tmp_path):
    """Without it, arms that were asked other things would be compared as if they had not been."""

    def shorter(arm, repeat, requests, *others):
        rows = zip(requests["input_tokens_planned"], requests["turn"], strict=True)
        requests["input_tokens_sent"] = [n - 84 * (turn > 0) for n, turn in rows]
        requests["prompt_tokens"] = list(requests["input_tokens_sent"])

    def live(manifest):
        manifest["history"] = "live"

    summary = summarise(load(make_run(tmp_path, Recipe(edit=shorter, manifest=live, repeats=1))))
    found = [finding for finding in summary["findings"] if finding["rule"] == "live_history"]
    assert len(found) == 3 and all(int(f["message"].split(", ")[-1].split()[0]) == 360 for f in found)
    assert all(-0.01 < f["measured"] < 0 for f in found)
    assert not [f for f in summary["findings"] if f["rule"] == "prompt_lengths"], "they are as sent"
    assert summary["run"]["history"] == "live"
