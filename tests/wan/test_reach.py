"""Round trips to a real destination: what answers, what does not, and what follows from it."""

import socket

from pddbench.wan.destination import parse
from pddbench.wan.reach import Carried, Trips, compared, trips
from pddbench.wan.shape import Shape

TO = parse("127.0.0.1:1")


def test_an_open_and_a_closed_port_answer():
    """A destination whose service is not up yet would be called dead."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = trips(parse(f"127.0.0.1:{server.getsockname()[1]}"))
        port = server.getsockname()[1]
        assert len(found.rtt_ms) >= 3 and found.how == f"TCP connect to {port}" and not found.why_not
    closed = trips(parse(f"127.0.0.1:{port}"))
    assert len(closed.rtt_ms) >= 3 and 0 < closed.median_ms < 1000


def test_what_cannot_be_timed_says_why():
    """An unmeasured delay would look like a measured one."""
    many = trips(parse("10.0.0.0/24:80"))
    assert not many.rtt_ms and "256 addresses" in many.why_not
    assert "not measured: 10.0.0.0/24:80 is 256" in compared(TO, many, many, Shape(20.0, None), both_ways=False)


def test_the_verdict_is_on_what_was_added():
    """The way there has a delay of its own; both directions count twice."""
    before, now = Trips("ping", [5.0, 5.1, 5.2]), Trips("ping", [25.0, 25.2, 25.4])
    assert "20.10 ms more, 20 asked: as asked" in compared(TO, before, now, Shape(20.0, None), both_ways=False)
    assert "40 asked: NOT AS ASKED" in compared(TO, before, now, Shape(20.0, None), both_ways=True)
    assert "NOT AS ASKED" in compared(TO, before, before, Shape(20.0, None), both_ways=False)


def test_the_highest_rate_is_kept(monkeypatch):
    """A mean over an idle hour would say nothing of the line."""
    clock = iter([0.0, 2.0, 4.0])
    monkeypatch.setattr("pddbench.wan.reach.time.monotonic", lambda: next(clock))
    carried = Carried()
    for n_bytes in (0, 2_500_000, 2_500_000):
        carried.count(n_bytes)
    assert (
        carried.words(Shape(0.0, 10.0), 7, 1) == "carried 7 packets, at most 10 Mbit/s of 10 asked; 1 lost or dropped"
    )
