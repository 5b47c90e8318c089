"""Swim-lanes of emulated arms, simulated and live: what each role did is saved, drawn, and adds up."""

import pandas as pd
import pytest
from click.testing import CliRunner
from run_kit import BUSY, small_rows, write_trace

from pddbench.cli import cli
from pddbench.deploy.emulator.observe import EVENTS, EventLog
from pddbench.errors import InputError
from pddbench.report.swimlane import bars

EXPERIMENT = """
name = "lanes"
[workload]
trace = "t.trace.jsonl"
idle_cap_s = 1.0
[[arm]]
name = "pdd"
emulated = "pdd"
handoff = "catch_up"
catch_up_tokens = 10
[[arm]]
name = "naive"
emulated = "naive"
"""


def pddbench(*words):
    """The command in this process; its errors are raised."""
    return CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small simulated run."""
    path = tmp_path_factory.mktemp("lanes")
    write_trace(path / "t.trace.jsonl", small_rows(8, tokens=3000, gap_s=0.5, start_gap_s=1.0, output=150))
    (path / "e.toml").write_text(EXPERIMENT)
    done = pddbench("simulate", path / "e.toml", "--out", path / "run", "--quiet")
    assert done.return_value == 0, done.exception
    return path / "run"


def test_roles_tell_the_story_of_the_requests(folder):
    """Without it, the picture could show other times than the table does."""
    roles, requests = (pd.read_parquet(folder / name) for name in ("roles", "requests"))
    assert set(roles["event"]) <= set(EVENTS)
    for _, request in requests.iterrows():
        mine = roles[(roles["arm"] == request["arm"]) & (roles["request_id"] == request["request_id"])]
        times = dict(zip(mine["event"], mine["t_ns"], strict=True))
        assert times["queued"] == request["sent_ns"]
        assert times["prefilled"] <= request["first_token_ns"]
        if request["handoff_rounds"] >= 1:
            assert (mine["event"] == "round").sum() == request["handoff_rounds"] - 1
            assert mine.loc[mine["event"] == "hand_over", "tokens"].item() == request["handoff_token"]
            assert times["kv_at_md"] - times["kv_start"] == pytest.approx(request["kv_wan_ns"], abs=2)
            lanes = bars(list(zip(mine["event"], mine["t_ns"] / 1e9, strict=True)))
            assert {bar.lane for bar in lanes} == {"wait", "P", "link", "RLD", "seam", "MD"}
            assert all(bar.end_s >= bar.start_s for bar in lanes)


def test_it_draws(folder, tmp_path):
    """Without it, one request or a window could end in a traceback."""
    one = pddbench("swimlane", folder, "--arm", "pdd", "--out", tmp_path / "one.png")
    window = pddbench("swimlane", folder, "--arm", "naive", "--window", "0,5", "--out", tmp_path / "window.svg")
    assert one.return_value == window.return_value == 0, (one.exception, window.exception)
    assert (tmp_path / "one.png").stat().st_size > 5000 and b"<svg" in (tmp_path / "window.svg").read_bytes()


@pytest.mark.slow
def test_a_live_run_has_lanes_too(tmp_path):
    """Without it, what the roles do live could only be guessed from the simulation of it."""
    rows = small_rows(3, turns=2, tokens=3000, gap_s=0.2, start_gap_s=0.3, output=150)
    for row in rows:  # ids that a header cannot hold as they are
        for name in ("request_id", "prefix_of"):
            row[name] = row[name] and f"ä {row[name]}%"
        row["parents"] = [f"ä {parent}%" for parent in row["parents"]]
    write_trace(tmp_path / "t.trace.jsonl", rows)
    (tmp_path / "e.toml").write_text(EXPERIMENT + "[emulator]\nspeed = 3\n")
    done = pddbench("run", tmp_path / "e.toml", "--out", tmp_path / "run", "--wan", "model", "--quiet", *BUSY)
    assert done.return_value == 0, done.exception
    done = pddbench("simulate", tmp_path / "e.toml", "--out", tmp_path / "sim", "--quiet")
    assert done.return_value == 0, done.exception
    (live, sent), (simulated, _) = (
        [pd.read_parquet(tmp_path / run / name) for name in ("roles", "requests")] for run in ("run", "sim")
    )
    assert set(live["request_id"]) == {row["request_id"] for row in rows}
    assert set(live["event"]) == set(simulated["event"])
    for arm in ("pdd", "naive"):
        queued = live[(live["arm"] == arm) & (live["event"] == "queued")].set_index("request_id")["t_ns"]
        waited_s = (queued - sent[sent["arm"] == arm].set_index("request_id")["sent_ns"]) / 1e9
        assert len(queued) == len(rows) and waited_s.between(0, 1).all(), "on the run's own clock"
        assert live.loc[live["arm"] == arm, "t_ns"].is_monotonic_increasing
    one = pddbench("swimlane", tmp_path / "run", "--arm", "pdd", "--request", "ä s1.0%", "--out", tmp_path / "one.png")
    assert one.return_value == 0, one.exception


def test_a_full_log_says_so():
    """Without it, a deployment that serves for days would fill its memory, or lanes would end without a word."""
    log = EventLog(2)
    for rid in range(5):
        log("queued", rid, 0.5, -1, 1, 0)
    assert log.events().dropped == 3 and len(log.events().codes) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "choose one with --arm naive | pdd"),
        (["--arm", "nobody"], "arms are naive, pdd"),
        (["--arm", "pdd", "--repeat", "9"], "no run 9"),
        (["--arm", "pdd", "--request", "x"], "is not in the roles table"),
        (["--arm", "pdd", "--window", "5"], "give two times"),
        (["--arm", "pdd", "--window", "5,1"], "must be before"),
        (["--arm", "pdd", "--window", "900000,900001"], "nothing happened"),
        (["--arm", "pdd", "--window", "0,1", "--request", "x"], "exclude each other"),
        (["--arm", "pdd", "--out", "/nowhere/at/all.png"], "cannot write"),
        (["--arm", "pdd", "--out", "lanes.xyz"], "cannot write"),
    ],
)
def test_what_a_user_gets_wrong_is_one_sentence(folder, words, sentence):
    """Without it, a typo would end in a traceback."""
    done = pddbench("swimlane", folder, *words)
    assert isinstance(done.exception, InputError) and sentence in str(done.exception)


def test_a_folder_without_roles(tmp_path):
    """Without it, a run without emulated arms would be drawn from nothing, or a typo end in a traceback."""
    for folder, sentence in ((tmp_path, "no roles table"), (tmp_path / "nowhere", "is not a folder")):
        done = pddbench("swimlane", folder)
        assert isinstance(done.exception, InputError) and sentence in str(done.exception)
