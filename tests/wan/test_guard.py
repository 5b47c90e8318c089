"""The guard of a link: what it says when the link is, becomes or was something else than asked."""

import json
import os
import signal
import time

import pytest

from pddbench.wan import guard as guard_module
from pddbench.wan.guard import Guard
from pddbench.wan.openlink import open_shapes
from pddbench.wan.shape import Shape

pytestmark = [pytest.mark.usefixtures("tun_works"), pytest.mark.slow]

SHAPE = Shape(10.0, 20.0)


def wait_for(condition, limit_s=20.0):
    """Until something holds; False when it does not within the limit."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_a_rate_of_half_and_a_delay_that_went_away_are_found():
    """A link off by a factor would carry a whole run as if it were the one asked."""
    guard = Guard(open_shapes(SHAPE, SHAPE, "tun"), every_s=0.2, tries=1)
    try:
        guard.begin()
        guard.problems.clear()  # a busy machine may have been late: this is about what comes
        other = Shape(1.0, 10.0)
        guard.link.backend.apply(other, other)  # behind the back of the link that was asked
        assert wait_for(lambda: guard.problems)
        assert "less than the 20 ms that were asked" in guard.problems[0]
        guard.end()
        facts = guard.facts()
    finally:
        guard.close()
    assert not facts["ok"] and not facts["after"]["ok"]
    assert any("throughput" in problem for problem in facts["problems"])
    assert facts["beside"]["probes"] > 0
    json.dumps(facts)


def test_a_dead_link_is_told_apart_from_a_changed_one():
    """Requests would wait for their timeouts over a link that nobody moves packets for."""
    guard = Guard(open_shapes(SHAPE, SHAPE, "tun"), every_s=0.2)
    try:
        guard.begin()
        os.kill(guard.link.backend.pid, 9)
        assert wait_for(lambda: guard.dead)
        assert any("ended" in problem for problem in guard.problems)
        guard.end()
        assert not guard.facts()["ok"]
    finally:
        guard.close()


def test_a_probe_that_stands_still_is_found(monkeypatch):
    """Nobody looked at the link any more, nor at what the kernel has in force, and the run said it was as asked."""
    monkeypatch.setattr(guard_module, "_STALLED_S", 0.5)
    guard = Guard(open_shapes(SHAPE, SHAPE, "tun"), every_s=0.2)
    try:
        guard.begin()
        guard.problems.clear()  # a busy machine may have been late: this is about what comes
        os.kill(guard._watcher.pid, signal.SIGSTOP)
        assert wait_for(lambda: any("the probe does not answer" in problem for problem in guard.problems))
    finally:
        guard.close()
