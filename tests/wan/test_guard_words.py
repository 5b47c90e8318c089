"""What a guard and a schedule say, without packets: no false alarms, which void a run, and no silence."""

import math
import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from pddbench.wan import guard as guard_module
from pddbench.wan.device import command
from pddbench.wan.guard import Guard
from pddbench.wan.meter import Meter
from pddbench.wan.netem import Netem
from pddbench.wan.openlink import WanLink
from pddbench.wan.schedule import Scheduled, run_schedule, shape_at
from pddbench.wan.shape import Shape
from pddbench.wan.steps import brown_out, cut

SHAPE = Shape(5.0, 100.0)
SLOW = shape_at(SHAPE, 0.1)


class FullLine:
    """A backend whose line carries `load` of its rate all the time; counting takes `counting_s` once it has counted."""

    def __init__(self):
        self.now_s, self.counting_s, self.load, self._bytes, self._rate = 0.0, 0.0, 1.0, 0.0, SHAPE.rate_mbit

    def wait(self, seconds):
        self.now_s += seconds
        self._bytes += self.load * self._rate * 1e6 / 8 * seconds

    def apply(self, a_to_b, b_to_a):
        self._rate = a_to_b.rate_mbit

    def check_unchanged(self):
        pass

    def counters(self):
        way = {"packets": 0.0, "bytes": self._bytes, "lost": 0.0, "dropped": 0.0, "queued_bytes": 0.0}
        self.wait(self.counting_s)
        return {"a_to_b": way, "b_to_a": way}


@pytest.fixture
def line(monkeypatch):
    found = FullLine()
    monkeypatch.setattr(guard_module, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def test_counting_that_takes_long_is_no_rate(line):
    """On a busy machine `tc` took a second once: what passed meanwhile was put into the four seconds after it."""
    guard = Guard(WanLink(None, line, SHAPE, SHAPE))
    for line.counting_s in (1.0, 0.0, 1.0, 0.0):
        guard._judge_rate()
        line.wait(4.0)
    assert guard.problems == []
    line.load = 1.5
    for _ in range(2):
        guard._judge_rate()
        line.wait(4.0)
    assert any("more than the 100 that were asked" in text for text in guard.problems)


def test_a_moment_between_two_brown_outs_counts_at_its_own_rate(line):
    """The line was the same at both looks, and what it rightly carried in between was more than that."""
    guard = Guard(WanLink(None, line, SHAPE, SHAPE))
    guard.link.change(SLOW, SLOW)
    guard._judge_rate()
    line.wait(2.0)
    guard.link.change(SHAPE, SHAPE)
    line.wait(1.0)
    guard.link.change(SLOW, SLOW)
    line.wait(2.0)
    guard._judge_rate()
    assert guard.problems == []


class ReadLate(Netem):
    """netem without a kernel; when it was first read back."""

    def __init__(self):
        self._sides, self._shapes, self._lines = {"a_to_b": None, "b_to_a": None}, {}, {}
        self.read_s = math.inf

    def _apply(self, *_):
        return None

    def check_unchanged(self):
        self.read_s = min(self.read_s, time.monotonic())


def test_a_change_is_in_force_before_it_is_read_back():
    """On a busy machine four `tc` that only read took a second: a change in time was late, and its run void."""
    backend, start_s = ReadLate(), time.monotonic()
    applied = run_schedule(WanLink(None, backend, SHAPE, SHAPE), brown_out(0.0, 0.01, 0.5), start_s=start_s)
    assert start_s + applied[0].in_force_s <= backend.read_s < math.inf


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired(["tc"], 30.0), BlockingIOError(11, "no more processes")])
def test_a_tool_that_never_ends_stops_a_schedule_with_a_word(error):
    """The thread was gone with a traceback, `error` was none, and the link stayed in its brown-out to the end."""

    class Stuck:
        name = "a"

        def run(self, argv):
            raise error

    backend = SimpleNamespace(apply=lambda *_: command(Stuck(), ["tc", "qdisc"]))
    with Scheduled(WanLink(None, backend, SHAPE, SHAPE), cut(0.0, 1.0)) as beside:
        beside._thread.join(20)
    assert "tc qdisc" in str(beside.error) and ("30 s" in str(beside.error) or "no more" in str(beside.error))


def test_a_server_that_does_not_end_is_ended():
    """Who measured waited for ever for a server that had been stopped, and with it the end of a run."""

    class Here:
        name, address = "b", "127.0.0.1"
        popen = staticmethod(subprocess.Popen)

    meter = Meter(Here(), Here())
    os.kill(meter._server.pid, signal.SIGSTOP)
    closing = threading.Thread(target=meter.close, daemon=True)
    closing.start()
    closing.join(30.0)
    ended = not closing.is_alive()
    meter._server.kill()
    assert ended
