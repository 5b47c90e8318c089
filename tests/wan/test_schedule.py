"""Links that change during a run."""

import numpy as np
import pytest

from pddbench.errors import InputError
from pddbench.wan.clock import VirtualClock
from pddbench.wan.fluid import FluidLink
from pddbench.wan.link import Link
from pddbench.wan.meter import Meter
from pddbench.wan.openlink import open_shapes
from pddbench.wan.schedule import Scheduled, check_rates, run_schedule, shape_at
from pddbench.wan.shape import Gilbert, Shape
from pddbench.wan.steps import Step, Waits, brown_out, cut, flap, parse_event, parse_events, shifted

USUAL = Shape(5.0, 50.0, gilbert=Gilbert(1.0, 20.0))


def test_shapes_of_schedules_return_to_what_was():
    """A link that stays down after its schedule would spoil the rest of the run."""
    assert brown_out(10.0, 5.0, 0.1) == [Step(10.0, 0.1), Step(15.0, 1.0)]
    assert cut(1.0, 2.0) == [Step(1.0, 0.0), Step(3.0, 1.0)]
    steps = flap(1.0, 0.5, 2.0, times=3)
    assert [step.at_s for step in steps] == [1.0, 1.5, 3.5, 4.0, 6.0, 6.5]
    assert [step.rate_share for step in steps] == [0.0, 1.0] * 3
    assert shape_at(USUAL, 1.0) is USUAL
    assert shape_at(USUAL, 0.0).loss_share == 1.0
    slow = shape_at(USUAL, 0.1)
    assert slow.rate_mbit == 5.0 and slow.gilbert == USUAL.gilbert
    assert slow.limit_packets == USUAL.limit_packets, "the queue does not shrink with the rate"


def test_schedules_that_make_no_sense_are_refused():
    """Steps out of order would be applied at once, one after the other."""
    for events in (["cut 5 3", "cut 7 1"], ["cut 5 3", "brown-out 8 1 0.5"], ["flap 1 1 1 5", "cut 4 1"]):
        with pytest.raises(InputError, match="overlap"):
            parse_events(events)
    for text, words in (("brown-out 1 1 0", "share"), ("brown-out 1 1 1e-9", "nothing"),
                        ("cut 1 0", "above 0"), ("flap 1 1 0 2", "up for some"),
                        ("flap 1 1 1 2.5", "whole number"), ("flap 1 1 1 0", "whole number")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            parse_event(text)
    with pytest.raises(InputError, match="rate"):
        check_rates(brown_out(1.0, 1.0, 0.5), Shape(1.0, None), Shape(1.0, None))


def test_a_brown_out_to_next_to_nothing_is_refused():
    """At 8 bit/s the kernel's token bucket had room for 4 bytes, and lost every packet: a cut, called a brown-out."""
    usual, slow = Shape(5.0, 1.0), Shape(5.0, 0.1)
    check_rates(brown_out(1.0, 1.0, 1e-4), usual, usual)
    with pytest.raises(InputError, match=r"0\.0001 leaves nothing of 0\.1 Mbit/s: give at least 0\.001$"):
        check_rates(brown_out(1.0, 1.0, 1e-4), usual, slow)


def test_events_as_text():
    """A typo in an event would run the whole experiment over a link that never changes."""
    assert parse_event("cut 5 2") == cut(5.0, 2.0)
    assert parse_event("flap 5 1 2 3") == flap(5.0, 1.0, 2.0, 3)
    assert parse_event("brown-out 5 10 0.1") == brown_out(5.0, 10.0, 0.1)
    assert parse_events(["cut 9 1", "cut 5 2"]) == (*cut(5.0, 2.0), *cut(9.0, 1.0)), "in any order"
    for text in ("cut 5", "cut x 2", "brownout 5 1 0.5", "cut -1 2", "cut nan 2", "cut 1 inf", ""):
        with pytest.raises(InputError, match="an event is"):
            parse_event(text)


def test_what_is_sent_during_a_cut_leaves_at_its_end():
    """Control messages of the model would cross a link on which nothing does."""
    waits = Waits(shifted([*cut(1.0, 2.0), *brown_out(5.0, 1.0, 0.5), *cut(8.0, 1.0)], 10.0))
    times = [9.0, 11.0, 12.5, 13.0, 15.5, 18.5, 30.0]
    leave = [9.0, 13.0, 13.0, 13.0, 15.5, 19.0, 30.0]
    assert [waits.leaves_s(at) for at in times] == leave
    assert waits.leave_s(np.array(times)).tolist() == leave
    assert waits.arrives_s(11.5 + 0.015, 0.015) == 13.015
    assert Waits().leave_s(np.array(times)).tolist() == times


def arrival_s(steps, n_bytes=10_000_000, at_s=0.0, others=0, **link):
    """When a transfer of the model arrives whose line changes."""
    clock, arrived = VirtualClock(), []
    line = FluidLink(Link(**{"one_way_ms": 15.0, "rate_mbit": 100.0, "flow_rate_mbit": 100.0} | link), clock)
    line.follow(steps, 0.0)
    for other in range(others):
        clock.call_at(at_s, line.send, 100 + other, n_bytes, lambda: None)
    clock.call_at(at_s, line.send, 1, n_bytes, lambda: arrived.append(clock.now()))
    clock.run()
    return arrived[0]


@pytest.mark.parametrize("flow_rate_mbit", [100.0, 20.0])
@pytest.mark.parametrize("others", [0, 1])
def test_the_model_carries_nothing_while_it_is_cut(flow_rate_mbit, others):
    """A cut that the model does not feel would answer what a cut does with: nothing."""
    figures = {"flow_rate_mbit": flow_rate_mbit, "others": others}
    usual = arrival_s([], **figures)
    assert arrival_s(cut(0.3, 5.0), **figures) == pytest.approx(usual + 5.0, abs=0.031), "a round may be left half full"
    assert arrival_s(cut(usual + 1.0, 5.0), **figures) == usual
    assert arrival_s(cut(0.0, 2.0), at_s=1.0, **figures) == pytest.approx(2.0 + usual, abs=1e-9), "its handshake waits"


def test_a_brown_out_of_the_model_takes_its_bytes_longer():
    """The share of the rate would be taken for the share of the time, or never given back."""
    usual = arrival_s([])
    # 10 s at a tenth of the rate carry what 1 s carries otherwise
    assert arrival_s(brown_out(0.4, 10.0, 0.01)) == pytest.approx(usual + 9.9, abs=0.02)
    assert arrival_s(brown_out(0.4, 1000.0, 0.1)) == pytest.approx(0.4 + 10 * (usual - 0.415) + 0.015, abs=0.05)


@pytest.mark.slow
def test_a_cut_is_total_and_heals(tun_works):
    """A cut that lets packets through, or never ends, is another experiment."""
    usual = Shape(2.0, 100.0)
    with open_shapes(usual, usual, "tun") as link, Meter(link.side_a, link.side_b) as meter:
        seen = []
        applied = run_schedule(link, cut(0.0, 1.5), before_each=lambda: seen.append(len(meter.rtt_ms(3, 0.3))))
        seen.append(len(meter.rtt_ms(3, 5.0)))
        assert seen == [3, 0, 3]
        assert [a.wanted_s for a in applied] == [0.0, 1.5]
        assert all(a.in_force_s >= a.wanted_s for a in applied)
        with Scheduled(link, cut(0.0, 3600.0)) as beside:
            while link.shapes[0].loss_share == 0:
                pass
        assert len(beside.applied) == 1 and beside.error is None, "the end stops a schedule where it is"
        assert beside.not_reached == [Step(3600.0, 1.0)]
        beside.restore()
        assert link.shapes == (usual, usual) and len(meter.rtt_ms(3, 5.0)) == 3
