"""The live view: what it counts, that it costs the run nothing, and that it survives whatever happens to the run."""

from __future__ import annotations

import io
import json
import math
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from live_kit import MS, S, board, busy_board, event, health, request, served

from pddbench.cli import cli
from pddbench.errors import InputError
from pddbench.live import words
from pddbench.live.exposition import exposition, names
from pddbench.live.own import Own
from pddbench.live.server import address, bind
from pddbench.live.spread import Spread
from pddbench.live.tail import Tail
from pddbench.live.views import table
from pddbench.live.watch import Watch
from pddbench.replay import frames

ROOT = Path(__file__).parents[2]


def feed(watch, *parts):
    for part in parts:
        for frame in [part] if not hasattr(part, "__next__") else part:
            index = getattr(frame, "index", frames.NO_INDEX)
            if watch.wants(frames.kind_of(type(frame)), index):
                watch.take(frame)


def test_quantiles_are_the_reports():
    """The view must not show another P99 than the report, nor forget failures."""
    values = np.random.default_rng(1).lognormal(0, 1, 997)
    spread = Spread()
    for value in values.tolist():
        spread.add(value)
    for q in (0.5, 0.9, 0.99):
        for failed in (0, 5, 600):
            want = np.quantile(np.append(values, [math.inf] * failed), q, method="inverted_cdf")
            assert spread.quantile(q, failed) == pytest.approx(want, rel=2e-3)
    spread.add(10 * 86_400)
    assert spread.n == 998 and spread.quantile(1.0) == pytest.approx(86_400, rel=2e-3), "never dropped without a word"


def test_the_first_token_is_no_role_chunk():
    """A role-only first chunk once passed for the first token: 3 ms for a true 250."""
    watch = Watch("a", 1, 9, speed=2.0)
    feed(watch, frames.Zero(0), request(0, S, first_ms=250))
    assert watch.ttft.quantile(0.5) == pytest.approx(0.5, rel=2e-3), "in experiment time"
    assert (watch.sent, watch.done, watch.failed) == (1, 1, 0)


def test_frames_after_the_first_token_are_not_even_decoded():
    """The cost must be per request: a view that parses every token would take the core that the emulator needs."""
    watch = Watch("a", 1, 9)
    feed(watch, frames.Zero(0), request(0, S, first_ms=250, end_ms=None))
    assert not watch.wants(frames.kind_of(frames.Reads), 0)
    assert watch.wants(frames.kind_of(frames.Ended), 0)


def test_failures_are_infinitely_slow_and_named():
    """A deployment that fails fast must not look fast."""
    watch = Watch("a", 1, 9)
    feed(watch, frames.Zero(0), request(0, S, first_ms=100), request(1, S, status=500, error="\x1b[31mboom"))
    feed(watch, request(2, S, end_ms=50, status=None, ending="connection", error="refused"))
    assert (watch.failed, watch.silent_failures) == (2, 2)
    assert watch.ttft.quantile(0.5, watch.silent_failures) == math.inf
    assert list(watch.errors) == ["HTTP 500: boom", "connection: refused"]


def test_warmups_do_not_count():
    """A cold first request would stand in the quantiles of the measured ones."""
    watch = Watch("a", 1, 9)
    feed(watch, request(0, S, first_ms=9000), frames.Zero(5 * S), request(1, 6 * S, first_ms=100))
    assert (watch.warmups, watch.sent, watch.done) == (1, 1, 1)
    assert watch.ttft.quantile(0.99) == pytest.approx(0.1, rel=2e-3)


def test_several_client_processes_are_one_run(tmp_path):
    """Each has a spool of its own, with its own warm-ups and its own zero; the same index may be in both."""
    made = board(runs=[("pdd", 1)])
    made.announced.folder = str(tmp_path)
    (tmp_path / "spool").mkdir()
    for worker in range(2):
        parts = [*request(0, S, first_ms=9000), frames.Zero(5 * S), *request(1, 6 * S, first_ms=100 + 100 * worker)]
        (tmp_path / "spool" / f"pdd.1.w{worker}.spool").write_bytes(b"".join(map(frames.pack, parts)))
    made.read()
    made.read()
    watch = made.current
    assert (watch.warmups, watch.sent, watch.done, watch.ttft.n) == (2, 2, 2, 2)
    for t in range(7, 9):
        watch.take(health(t * S, lag_ms=0.1, cpu=0.1), 0)
        watch.take(health(t * S, lag_ms=9, cpu=0.5), 1)
    assert watch.worst(Own.cpu_share) == 0.5, "of several processes the worst counts, never the mean"
    assert watch.health()[0] == "bad" and "loop lag" in watch.health()[1]
    assert watch.ttft.quantile(1.0) == pytest.approx(0.2, rel=2e-3)


def test_a_run_of_a_moment_still_has_its_counts():
    """Its spool is gone before anybody looks."""
    made = board()
    made.count(9, 0, 8, 1, 1)
    assert "8/10 done" in words.line(made.snapshot(S)) and "1 failed" in words.line(made.snapshot(S))


def test_waiting_is_seen_before_it_ends():
    """During a stall every quantile of what came looks fine."""
    watch = Watch("a", 1, 9)
    feed(watch, frames.Zero(0), request(0, S, first_ms=100), request(1, 2 * S, end_ms=None))
    assert watch.waiting_s(32 * S) == pytest.approx(30)


@pytest.mark.parametrize(("lag_ms", "late_ms", "cpu", "lamp"), [(0.1, 0, 0.2, "good"), (3, 0, 0.2, "warn"),
                                                                  (9, 0, 0.2, "bad"), (0.1, 9, 0.2, "bad"),
                                                                  (0.1, 0, 0.95, "bad")])  # fmt: skip
def test_the_lamp_goes_by_the_rules_of_the_verdict(lag_ms, late_ms, cpu, lamp):
    """A user could stop a run that is bound to end as invalid."""
    watch = Watch("a", 1, 9)
    feed(watch, frames.Zero(0), *(request(i, S, first_ms=100, handed_ms=late_ms) for i in range(20)))
    feed(watch, health(6 * S, lag_ms, cpu))
    assert watch.health()[0] == lamp


@pytest.mark.parametrize(
    ("exact", "kernel", "late_ms", "lamp"),
    [(True, True, 0, "warn"), (False, True, 0, "bad"), (True, False, 0, "bad"), (True, True, 9, "bad")],
)
def test_a_late_loop_that_spoils_nothing_is_a_warning(exact, kernel, late_ms, lamp):
    """The rule only warns where the kernel stamps arrivals and a timerfd paces; a red lamp would make people stop runs
    that end as valid."""
    watch = Watch("a", 1, 9)
    many = (request(i, S, first_ms=100, handed_ms=late_ms, kernel=kernel) for i in range(20))
    feed(watch, frames.Zero(0, exact), frames.ClockOffset(0, 0), *many, health(6 * S, lag_ms=9))
    assert watch.health()[0] == lamp and "loop lag" in watch.health()[1]


def test_one_late_request_is_no_late_client():
    """The verdict leaves the largest of few samples out; a lamp that does not would be red without a reason."""
    watch = Watch("a", 1, 9)
    late = (request(i, S, first_ms=100, handed_ms=200 if i == 3 else 0) for i in range(20))
    feed(watch, frames.Zero(0), *late, health(6 * S))
    assert watch.health()[0] == "good"
    assert watch.worst(Own.send_lag_p99_s) == pytest.approx(0, abs=1e-5)


def test_what_the_clock_suffers_from_is_said():
    """A red lamp without a reason sends the user to the wrong place: the machine was busy, not the endpoint."""
    watch = board().current
    feed(watch, frames.Zero(0), *(health(i * S, waited_ms=250) for i in range(1, 9)))
    assert watch.worst(Own.waited_share) == pytest.approx(0.25)
    made = busy_board()
    assert "without a core 3% of the time" in words.own(made.snapshot(9 * S)["runs"][1])


def test_a_torn_frame_waits_for_its_rest(tmp_path):
    """The spool is read while it is written, at any byte."""
    data = b"".join(frames.pack(frame) for frame in [frames.Zero(7), *request(0, S, first_ms=100)])
    spool = tmp_path / "s"
    spool.write_bytes(b"")
    tail, seen = Tail(spool), []
    with spool.open("ab") as file:
        for at in range(0, len(data), 7):
            file.write(data[at : at + 7])
            file.flush()
            seen += [frames.pack(frame) for frame in tail.frames(lambda *_: True)]
    tail.close()
    assert b"".join(seen) == data


def test_every_view_shows_a_busy_board():
    """Each view of the same snapshot: JSON, line, table, exposition."""
    from rich.console import Console

    made = busy_board()
    shot = made.snapshot(9 * S)
    assert json.loads(json.dumps(shot)) == shot
    said = words.line(shot)
    assert "[2/2] pdd, repeat 1: 8/10 done, 1 in flight" in said and "1 failed" in said and "left" in said
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table(shot))
    drawn = console.export_text()
    assert "baseline.1" in drawn and "8/10" in drawn and "own health" in drawn
    text = exposition(made, 9 * S)
    assert 'pddbench_ttft_so_far_seconds{arm="pdd",repeat="1",quantile="0.99"} +Inf' in text
    assert 'pddbench_requests_failed_total{arm="pdd",repeat="1"} 1' in text


@pytest.mark.parametrize(("text", "want"), [(":9464", ("127.0.0.1", 9464)), ("9464", ("127.0.0.1", 9464)),
                                            ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:80", ("::1", 80))])  # fmt: skip
def test_serve_means_this_machine_unless_told(text, want):
    """A page without a password must not be open to the network by default."""
    assert address(text) == want


@pytest.mark.parametrize("text", ["", "here", ":99999", "http://x:1", "a b:1"])
def test_a_wrong_address_is_a_sentence(text):
    """It is found before any traffic."""
    with pytest.raises(InputError, match="ADDRESS:PORT"):
        address(text)


@pytest.mark.parametrize("text", ["nowhere.invalid:9464", "a..b:9464", "203.0.113.7:9464"])
def test_an_address_that_cannot_be_had_is_a_sentence(text):
    """A name that does not resolve, one that cannot be a name, an address of somebody else."""
    with pytest.raises(InputError, match="cannot listen there"):
        bind(text)


def test_a_taken_port_ends_before_traffic(tmp_path):
    """Half an hour later it would be too late, and no folder is left behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["run", str(ROOT / "workloads/quickstart/experiment.toml"), "--out", str(tmp_path / "out"),
                 "--serve", f":{taken.getsockname()[1]}", "--quiet"]  # fmt: skip
        done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(done.exception, InputError) and "choose another port" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_only_three_paths_are_served():
    """Nothing else of the machine can be asked for."""
    with served(busy_board()) as where:
        for path, kind in (("", "text/html"), ("state.json", "application/json"), ("metrics", "text/plain")):
            with urllib.request.urlopen(where + path) as reply:
                assert reply.headers["Content-Type"].startswith(kind)
                assert reply.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("../etc/passwd", "state", "results"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(where + path)


def start_viewer(kind="lines"):
    command = [sys.executable, "-m", "pddbench.live.viewer", kind]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def test_the_viewer_outlives_signals_and_not_its_parent(tmp_path):
    """Ctrl-C goes to the whole terminal: the viewer must stay to show the end, and must end with its parent."""
    spool = tmp_path / "spool" / "pdd.1.spool"
    spool.parent.mkdir()
    parts = [frames.Opened("pdd", 1, 2, 0, 0), frames.Zero(1), *request(0, 10 * MS, first_ms=250)]
    spool.write_bytes(b"".join(map(frames.pack, parts)))
    viewer = start_viewer()
    hello = {"name": "x", "folder": str(tmp_path), "runs": [["pdd", 1]], "requests": 2, "planned_s": 1.0}
    for message in (["announce", hello], ["begin", ["pdd", 1]]):
        viewer.stdin.write(json.dumps(message) + "\n")
    viewer.stdin.flush()
    assert viewer.stderr.readline() == "[1/1] pdd, repeat 1: started\n"
    viewer.send_signal(signal.SIGINT)
    viewer.send_signal(signal.SIGTERM)
    _, said = viewer.communicate(timeout=60)
    assert viewer.returncode == 0
    assert "1/2 done" in said and "TTFT P50 0.25 s" in said and "Traceback" not in said


def test_hostile_chunks_do_not_end_the_view():
    """What a server sends is read here too."""
    watch = Watch("a", 1, 9)
    feed(watch, frames.Zero(0))
    for i, data in enumerate((b"data: {\n\n", b"data: [1]\n\n", b"\xff\xfe\n\n", b"data: " + b"x" * 1000, event(None))):
        feed(watch, *(f for f in request(i, S, end_ms=None)))
        feed(watch, frames.Reads(i, [(2 * S, data)]), frames.Ended(i, 3 * S, "eof", None))
    assert (watch.done, watch.ttft.n) == (5, 0)


def test_time_left_follows_the_plan():
    """A bar that says nothing about the end is none."""
    made = board()
    watch = made.current
    feed(watch, frames.Zero(0))
    assert made.left_s(20 * S) == pytest.approx(40 + 60)
    assert {"pddbench_runs", "pddbench_time_left_seconds"} <= names(exposition(made, 20 * S))
