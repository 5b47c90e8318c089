"""A run against an earlier one's summary.json: worse only where noise does not explain it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from click.testing import CliRunner

from pddbench.analyze.baseline import BIGGER, SMALLER, _difference, change
from pddbench.analyze.summary import summarise
from pddbench.cli import cli
from pddbench.errors import InputError
from pddbench.report.earlier import tolerance
from pddbench.runfolder.load import load

sys.path.insert(0, str(Path(__file__).parents[1]))
from analyze.synth import Recipe, make_run


def figure(point, low, high, unit="s"):
    return {"unit": unit, "point": point, "low": low, "high": high, "rows": 500, "withheld": None}


def status(new, old, key="ttft_sched.p90", allowed=0.1):
    return change("pdd", key, new, old, allowed).status


def test_worse_beyond_tolerance_is_a_breach_and_noise_is_not():
    """A gate that fires on noise is switched off within a week."""
    old = figure(1.0, 0.95, 1.05)
    assert status(figure(1.5, 1.4, 1.6), old) == "breach"
    assert status(figure(1.02, 0.98, 1.06), old) == "pass"
    assert status(figure(1.2, 0.9, 1.6), old) == "undecided"
    assert status(figure(0.5, 0.4, 0.6), old) == "pass"


def test_shares_and_rates_fall():
    """For goodput the other direction is the bad one."""
    old = figure(5.0, 4.9, 5.1, "1/s")
    assert status(figure(3.0, 2.9, 3.1, "1/s"), old, "goodput.rate") == "breach"
    assert status(figure(7.0, 6.9, 7.1, "1/s"), old, "goodput.rate") == "pass"


def test_infinite_figures_are_compared_by_their_bounds():
    """Failures make a tail infinite: that is worse than any number, and no worse than before if it was so before."""
    fine, broken = figure(1.0, 0.9, 1.1), figure("inf", "inf", "inf")
    assert status(broken, fine) == "breach"
    assert status(broken, broken) == "pass"
    assert status(fine, broken) == "pass"
    assert status(figure("inf", 1.0, "inf"), fine) == "undecided"
    assert status(figure(1.0, 0.9, None), fine) == "undecided", "no upper bound: it may be anything"


def test_the_interval_of_a_difference_covers():
    """95% must be about 95%: checked on means, whose truth is known."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(2000):
        ends = []
        for mean, n in ((3.0, 50), (2.0, 80)):
            x = rng.normal(mean, 1, n)
            half = 1.96 / math.sqrt(n)
            ends.append((x.mean(), x.mean() - half, x.mean() + half))
        low, high = _difference(ends[0], ends[1], 1.1)
        inside += low <= 3.0 - 1.1 * 2.0 <= high
    assert 0.93 < inside / 2000 < 0.97


@pytest.mark.parametrize(("text", "want"), [("10%", 0.1), ("5 %", 0.05), ("0.2", 0.2), ("0", 0.0)])
def test_tolerance_is_read(text, want):
    """As a person writes it."""
    assert tolerance(text) == pytest.approx(want)


@pytest.mark.parametrize("text", ["", "-1", "ten", "nan", "10%%", "5000%"])
def test_wrong_tolerance_is_a_sentence(text):
    with pytest.raises(InputError, match="give a share"):
        tolerance(text)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run, and one in which pdd's first tokens come a second later."""
    base = tmp_path_factory.mktemp("runs")

    def slow(arm, repeat, requests, *_):
        if arm == "pdd":
            for name in ("first_token_ns", "second_token_ns", "last_token_ns", "end_ns"):
                requests[name] = [None if t is None else t + 1_000_000_000 for t in requests[name]]

    for name, edit in (("old", None), ("slow", slow)):
        folder = make_run(base / name, Recipe(sessions=24, repeats=1, edit=edit))
        (folder / "summary.json").write_text(json.dumps(summarise(load(folder))))
    return base


def invoke(*words):
    done = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    assert done.exception is None or isinstance(done.exception, InputError), done.exception
    return done


def test_check_against_an_earlier_run(runs):
    """The merge is stopped by the arm that got slower, by name, and only by that."""
    old = runs / "old" / "summary.json"
    same = invoke("check", runs / "old", "--baseline", old)
    assert same.return_value == 0 and "0 worse" in same.output
    slow = invoke("check", runs / "slow", "--baseline", old)
    assert slow.return_value == 99
    breaches = [line for line in slow.output.splitlines() if line.startswith("breach")]
    assert breaches and all("pdd." in line for line in breaches)
    assert invoke("check", runs / "slow", "--baseline", old, "--tolerance", "900%").return_value == 0
    plain = json.loads(invoke("check", runs / "slow", "--baseline", runs / "old", "--json").stdout)
    assert plain["exit_code"] == 99 and len(plain["earlier"]["changes"]) == 3 * len((*SMALLER, *BIGGER))


def test_ci_files_hold_it(runs, tmp_path):
    """The job's page and its test cases must say what the exit code means."""
    out = tmp_path / "ci"
    done = invoke("report", runs / "slow", "--ci", out, "--baseline", runs / "old" / "summary.json")
    assert done.return_value == 99
    failed = [
        case.get("name") for case in Xml.parse(out / "junit.xml").iter("testcase") if case.find("failure") is not None
    ]
    assert "pdd.ttft_sched.p50 <= 1.1 * earlier" in failed and not any("naive" in name for name in failed)
    assert "pdd.ttft\\_sched.p50" in (out / "summary.md").read_text()


def test_another_workload_is_not_compared(runs, tmp_path):
    """A pull request that changes the workload must neither fail for it nor pass as if it had been compared."""
    other = json.loads((runs / "old" / "summary.json").read_text())
    other["run"]["sessions"] = 7
    (tmp_path / "other.json").write_text(json.dumps(other))
    done = invoke("check", runs / "old", "--baseline", tmp_path / "other.json")
    assert done.return_value == 0 and "not compared: sessions was 7, is 24" in done.output
    assert invoke("check", runs / "old", "--baseline", tmp_path / "other.json", "--strict").return_value == 99


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"run": {}, "arms": {"a": {"figures": {"b": 3}}}}', "\xff"])
def test_a_wrong_baseline_is_a_sentence(runs, tmp_path, text):
    """It is a file somebody downloaded."""
    file = tmp_path / "baseline.json"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    done = invoke("check", runs / "old", "--baseline", file)
    assert isinstance(done.exception, InputError) and "--baseline" in str(done.exception)
