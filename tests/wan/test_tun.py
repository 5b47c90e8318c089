"""The TUN backend, with real packets: both emulators, each direction on its own, and what is left after a kill."""

import os
import time

import brown_out
import pytest
from traces_left import HOLD, host_devices, left_by_kills, named_namespaces

from pddbench.errors import WorldError
from pddbench.wan.meter import Meter
from pddbench.wan.openlink import open_shapes
from pddbench.wan.shape import Gilbert, Shape

pytestmark = [pytest.mark.usefixtures("tun_works"), pytest.mark.slow]

both_emulators = pytest.mark.parametrize("emulator", ["c", "python"])
_LATE_MS = 15.0  # of the least late of many packets, on a busy machine


@both_emulators
def test_round_trip_is_the_sum_of_both_ways(emulator):
    """A delay put on one end only, or twice on one, gives the right sum only by luck: the two ways differ here."""
    with open_shapes(Shape(10.0, 50.0), Shape(20.0, 100.0), "tun", emulator) as link:
        with Meter(link.side_a, link.side_b) as meter:
            times = meter.rtt_ms(30, 2.0)
        assert len(times) == 30
        assert 30.0 <= min(times) <= 30.0 + _LATE_MS
        assert link.facts["emulator"].startswith("C" if emulator == "c" else "Python")
        link.change(Shape(1.0, 50.0), Shape(2.0, 50.0))
        with Meter(link.side_a, link.side_b) as meter:
            assert 3.0 <= min(meter.rtt_ms(20, 2.0)) <= 3.0 + _LATE_MS


@both_emulators
def test_rate_bounds_tcp_and_bytes_are_counted(emulator):
    """The line would carry any amount, or the counters would not say how much."""
    with open_shapes(Shape(2.0, 40.0), Shape(2.0, 40.0), "tun", emulator) as link:
        with Meter(link.side_a, link.side_b) as meter:
            mbit, control = meter.throughput(0.5, 1.5)
        counted = link.counters()
        assert control == "cubic"
        assert 20.0 < mbit < 40.0 * 1.02, "the upper bound is the line's, the lower one a busy machine's"
        assert counted["a_to_b"]["bytes"] > 1.5 * mbit * 1e6 / 8
        assert counted["b_to_a"]["bytes"] < counted["a_to_b"]["bytes"] / 5, "only acknowledgements"


@both_emulators
@pytest.mark.parametrize("shape", [Shape(1.0, 100.0, loss_pct=2.0), Shape(1.0, 100.0, gilbert=Gilbert(1.0, 30.0))])
def test_losses_are_as_many_as_asked(emulator, shape):
    """Loss that is not applied, or hits bundles of packets, changes every transfer by factors."""
    with open_shapes(shape, Shape(1.0, 100.0), "tun", emulator) as link:
        found = link.verify()
        (loss,) = [finding for finding in found.findings if finding.name == "loss a_to_b"]
        assert loss.ok, loss.words()  # the emulator's seed is fixed
        assert link.counters()["b_to_a"]["lost"] == 0


def test_a_full_queue_drops_and_says_so():
    """A bounded queue is what makes a line congested; unbounded it would only be slow."""
    with open_shapes(Shape(0.0, 1.0), Shape(0.0, 1.0), "tun") as link:
        with Meter(link.side_a, link.side_b) as meter:
            meter.measure("datagrams", 13_000, 100_000, seconds=5)
        counted = link.counters()["a_to_b"]
        assert counted["dropped"] > 0
        assert counted["queued_bytes"] <= 10_000 * 1500


@both_emulators
def test_what_waits_for_the_line_leaves_at_its_new_rate(emulator):
    """A brown-out of a second lasted until what had queued in it was through, at a tenth of the rate for ten times as
    long; then all came at once, faster than the line. The slow phases here would last an hour."""  # fmt: skip
    slow, line = Shape(0.0, 0.001), Shape(0.0, 2.0)
    with open_shapes(slow, line, "tun", emulator) as link, Meter(link.side_a, link.side_b) as meter:

        def waiting():
            return link.counters()["a_to_b"]["queued_bytes"]

        meter.measure("datagrams", 400, 1000, seconds=0.5)
        queued, began_s = waiting(), time.monotonic()
        assert queued > 400_000
        link.change(line, line)
        for _ in range(300):
            if waiting() < queued / 2:
                break
            time.sleep(0.1)
        assert 0 < waiting() < queued / 2, "what was queued in the slow phase left no faster after it"
        assert time.monotonic() - began_s > 0.9 * (queued / 2) * 4e-6, "faster than the line"
        link.change(slow, line)
        queued = waiting()
        time.sleep(queued * 4e-6)
        assert waiting() > queued / 2, "what was queued before the slow phase left as if there were none"


def test_a_brown_out_lasts_as_long_as_asked():
    with open_shapes(brown_out.LINE, brown_out.LINE, "tun") as link:
        brown_out.check(*brown_out.carried_mbit(link))


def test_the_end_of_the_emulator_is_an_error():
    """A run over a dead link would wait for its timeouts."""
    with open_shapes(Shape(1.0, 100.0), Shape(1.0, 100.0), "tun") as link:
        os.kill(link.backend.pid, 9)
        with pytest.raises(WorldError, match="ended"):
            link.backend.check_unchanged()


def test_sigkill_at_random_moments_leaves_nothing():
    """A killed run must leave no device, process or namespace on somebody's machine."""
    before = host_devices(), named_namespaces()
    assert left_by_kills(["-c", HOLD, "tun"], latest_s=0.5) == []
    assert (host_devices(), named_namespaces()) == before
