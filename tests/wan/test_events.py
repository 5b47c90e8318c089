"""`[wan] events`: a link that changes during `run` and `simulate`, and what a client, the report and the rule see."""

import json
import subprocess
import sys
import time

import pandas as pd
import pytest
import three_arms
from traces_left import CHECKOUT

from pddbench.errors import InputError
from pddbench.runfolder.finish import save_plan
from pddbench.runner.prepare import prepare
from pddbench.runner.simulate import simulate_frame, spool_arm
from pddbench.runner.writer import writer_of
from pddbench.wan.guard import Guard
from pddbench.wan.meter import Meter
from pddbench.wan.openlink import WanLink, open_shapes
from pddbench.wan.shape import Shape
from pddbench.wan.steps import brown_out, cut
from pddbench.workload.load import load_experiment

CUT_S = (3.0, 2.0)  # from, for


def experiment(folder, events, speed=4.0, arm="naive"):
    """The experiment of `three_arms` with one arm, whose link changes; its path."""
    path = three_arms.write_experiment(folder, speed)
    text = path.read_text().split("[[arm]]")[0].replace("rate_mbit = 1000", f"rate_mbit = 1000\nevents = {events}")
    path.write_text(f'{text}[[arm]]\nname = "{arm}"\nemulated = "{arm}"\n')
    return path


def pddbench(*words):
    argv = [sys.executable, "-m", "pddbench", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, cwd=CHECKOUT, timeout=300, check=False)


def rows_of(folder):
    rows = pd.read_parquet(folder / "requests" / "naive.1.parquet")
    sent_s, end_s = rows["sent_ns"] / 1e9, rows["end_ns"] / 1e9
    return rows.assign(sent_s=sent_s, ttft_s=rows["first_token_ns"] / 1e9 - sent_s, end_s=end_s)


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def check_cut(folder, slack_s):
    """What is under way when the link is cut waits for its end, whether KV or tokens; all tokens come."""
    rows, (from_s, for_s) = rows_of(folder), CUT_S
    assert (rows["outcome"] == "ok").all()
    assert (rows["completion_tokens"] == three_arms.OUTPUT).all()
    under_way = rows[(rows["sent_s"] < from_s) & (rows["end_s"] > from_s)]
    assert len(under_way) and (under_way["end_s"] >= from_s + for_s).all(), "an answer came through a cut link"
    assert (under_way["max_gap_ns"] / 1e9).max() > for_s - slack_s, "tokens of a stream wait"
    (run,) = manifest(folder)["runs"]
    assert [change["state"] for change in run["link_changes"]] == ["cut", "as asked"]
    assert [change["wanted_s"] for change in run["link_changes"]] == [from_s, from_s + for_s]
    assert all(0 <= each["in_force_s"] - each["wanted_s"] < 1.0 for each in run["link_changes"])
    page = (folder / "report.html").read_text()
    assert '"link_changes":[[3' in page, "the report marks the cut"
    assert json.loads((folder / "summary.json").read_text())["run"]["wan_events"] == ["cut 3 2"]
    return run


def test_a_simulated_cut_is_felt(tmp_path):
    """An experiment about a cut would be answered by a link that has none; counted and made tokens must agree."""
    path, out = experiment(tmp_path, ["cut 3 2"]), tmp_path / "out"
    done = pddbench("simulate", path, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "which changes (cut 3 2)" in " ".join(done.stdout.split())
    check_cut(out, slack_s=0.05)
    found = rows_of(out)
    by_token(load_experiment(path), tmp_path / "by-token")
    assert (rows_of(tmp_path / "by-token")["end_ns"] == found["end_ns"]).all()
    usual = simulate_frame(load_experiment(experiment(tmp_path, [])))["first_token_ns"]
    early = usual < CUT_S[0] * 1e9
    assert early.any() and (found["first_token_ns"][early] == usual[early]).all(), "nothing changes before the cut"


def test_an_event_after_the_end_never_was(tmp_path):
    """The manifest told of a cut at 500 s in a run of some ten, and the report of a link that changes."""
    done = pddbench("simulate", experiment(tmp_path, ["cut 3 2", "cut 500 5"]), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (run,) = manifest(tmp_path / "out")["runs"]
    assert [change["wanted_s"] for change in run["link_changes"]] == [3.0, 5.0]
    assert "events not reached before the run was over: 'cut 500 5' in naive.1" in " ".join(done.stdout.split())
    assert "which changes (cut 3 2) " in " ".join(done.stdout.split()), "the first line tells what happened"
    done = pddbench("simulate", experiment(tmp_path, ["cut 500 5"]), "--out", tmp_path / "none")
    assert done.returncode == 0 and "link_changes" not in manifest(tmp_path / "none")["runs"][0]
    findings = json.loads((tmp_path / "none" / "summary.json").read_text())["findings"]
    assert [each["level"] for each in findings if each["rule"] == "wan_events"] == ["warning"]


def by_token(loaded, folder):
    """The same run with every token made, as live history needs it."""
    for name in ("", "requests", "events", "health", "spool"):
        (folder / name).mkdir(exist_ok=True)
    prepared = prepare(loaded, "model")
    (setup,) = prepared.arms
    save_plan(folder, 1, prepared.plan)
    bodies = writer_of(setup, prepared.plan, "salt", None)
    spool_arm(folder, setup.name, 1, setup.spec, prepared.plan, bodies, setup.chat)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tun", "model"])
def test_a_cut_during_a_run(tmp_path, backend, tun_works):
    """`run` would leave the link as it is, or void a run because the link was what its schedule says."""
    allow = [word for name in three_arms.BUSY for word in ("--allow", name)]
    path = experiment(tmp_path, ["cut 3 2"])
    done = pddbench("run", path, "--wan", backend, "--out", tmp_path / "out", *allow)
    assert done.returncode == 0, done.stdout + done.stderr
    run = check_cut(tmp_path / "out", slack_s=0.5)
    if backend == "tun":
        three_arms.check_link(run["link"])
        assert run["link"]["directions"]["a_to_b"]["loss_pct"] == 0, "healed before it is measured again"


@pytest.mark.slow
def test_a_run_stopped_while_its_link_is_measured_says_so(tmp_path, tun_works):
    """Its last line was about files that were never written."""
    path, out = experiment(tmp_path, []), tmp_path / "out"
    argv = [sys.executable, "-m", "pddbench", "run", str(path), "--wan", "tun", "--out", str(out)]
    popen = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT)
    while "started" not in (line := popen.stderr.readline()):  # the link is made and measured next
        assert line, "it ended too soon"
    popen.terminate()
    said, errors = popen.communicate(timeout=120)
    assert popen.returncode == 143 and said == "", (said, errors)
    assert errors.splitlines()[-1] == (
        "pddbench: stopped by SIGTERM before any request was sent: there is nothing to report"
    )


def test_events_that_cannot_be_are_refused_before_traffic(tmp_path):
    """A typo, or events without a link of ours, would be a run without the event that it is about."""
    for events, words in ((["cut 2"], "an event is"), (["cut 2 3", "cut 4 1"], "overlap")):
        with pytest.raises(InputError, match=rf"\[wan\] events: .*{words}"):
            load_experiment(experiment(tmp_path, events))
    done = pddbench("run", experiment(tmp_path, ["cut 3 2"], arm="baseline"), "--dry-run")
    assert done.returncode == 2 and "none (naive, pdd) has one" in done.stderr


# --- the guard beside a schedule

SHAPE = Shape(5.0, 200.0)


@pytest.fixture
def guard(tun_works):
    """A guard that looks often, over a link whose changes a test may sabotage."""
    opened = Guard(open_shapes(SHAPE, SHAPE, "tun"), every_s=0.2)
    yield opened
    opened.close()


def watch(guard, steps, until_s, load=None):
    """Let the guard follow a schedule for a while; what it found."""
    guard.begin()
    guard.begin_schedule(steps, time.monotonic())
    if load is not None:
        load()
    time.sleep(max(0.0, until_s))
    guard.end(load=False)
    return [text for text in guard.problems if "start:" in text]


@pytest.mark.slow
def test_a_guard_knows_of_the_cut(guard):
    """A cut that was asked for would void the run, as silence or as a link that is not as it was."""
    assert watch(guard, cut(0.3, 2.5), 3.5) == []
    assert [change["state"] for change in guard.changes] == ["cut", "as asked"]


@pytest.mark.slow
def test_a_cut_that_does_not_happen_is_found(guard, monkeypatch):
    """The run would be reported as one with a cut."""

    make_deaf(monkeypatch)
    found = watch(guard, cut(0.3, 30.0), 2.5)
    assert any("sent while the link was to be cut" in text for text in found), found


class _Deaf:
    """A backend that says yes to any change and makes none."""

    def __init__(self, backend):
        self._backend = backend

    def apply(self, a_to_b, b_to_a):
        pass

    def __getattr__(self, name):
        return getattr(self._backend, name)


def make_deaf(monkeypatch):
    """Every change of a link is acknowledged and none made."""
    original = WanLink.change

    def deaf(link, a_to_b, b_to_a):
        link.backend, real = _Deaf(link.backend), link.backend
        original(link, a_to_b, b_to_a)
        link.backend = real

    monkeypatch.setattr(WanLink, "change", deaf)


@pytest.mark.slow
def test_a_brown_out_that_does_not_happen_is_found(guard, monkeypatch):
    """The line would carry its full rate while the report says a tenth of it."""
    make_deaf(monkeypatch)

    def load():
        with Meter(guard.link.side_a, guard.link.side_b) as meter:
            meter.throughput(0.3, 2.0)

    found = watch(guard, brown_out(0.0, 60.0, 0.1), 0.0, load)
    assert any("more than the 20 that were asked" in text for text in found), found
