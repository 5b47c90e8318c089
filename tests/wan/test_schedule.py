"""Links that change during a run."""

import pytest

from pddbench.errors import InputError
from pddbench.wan.meter import Meter
from pddbench.wan.openlink import open_shapes
from pddbench.wan.schedule import Change, Scheduled, brown_out, checked, cut, flap, parse_event, run_schedule
from pddbench.wan.shape import Gilbert, Shape

USUAL = (Shape(5.0, 100.0), Shape(5.0, 50.0, gilbert=Gilbert(1.0, 20.0)))


def test_shapes_of_schedules_return_to_what_was():
    """A link that stays down after its schedule would spoil the rest of the run."""
    assert [(c.at_s, c.a_to_b.rate_mbit, c.b_to_a.rate_mbit) for c in brown_out(USUAL, 10.0, 5.0, 0.1)] == [
        (10.0, 10.0, 5.0), (15.0, 100.0, 50.0)]  # fmt: skip
    down, up = cut(USUAL, 1.0, 2.0)
    assert (down.a_to_b.loss_share, down.b_to_a.loss_share) == (1.0, 1.0)
    assert (up.at_s, up.a_to_b, up.b_to_a) == (3.0, *USUAL)
    steps = flap(USUAL, 1.0, 0.5, 2.0, times=3)
    assert [c.at_s for c in steps] == [1.0, 1.5, 3.5, 4.0, 6.0, 6.5]
    assert steps[-1].a_to_b == USUAL[0]


def test_schedules_that_make_no_sense_are_refused():
    """Steps out of order would be applied at once, one after the other."""
    with pytest.raises(InputError, match="rise"):
        checked([*cut(USUAL, 5.0, 1.0), Change(2.0, *USUAL)])
    with pytest.raises(InputError, match="rise"):
        checked([Change(-1.0, *USUAL)])
    with pytest.raises(InputError, match="share"):
        brown_out(USUAL, 1.0, 1.0, 0.0)
    with pytest.raises(InputError, match="rate"):
        brown_out((Shape(1.0, None), Shape(1.0, None)), 1.0, 1.0, 0.5)


def test_events_as_text():
    """A typo in an event would run the whole experiment over a link that never changes."""
    assert parse_event("cut 5 2", USUAL) == cut(USUAL, 5.0, 2.0)
    assert parse_event("flap 5 1 2 3", USUAL) == flap(USUAL, 5.0, 1.0, 2.0, 3)
    assert parse_event("brown-out 5 10 0.1", USUAL) == brown_out(USUAL, 5.0, 10.0, 0.1)
    for text in ("cut 5", "cut x 2", "brownout 5 1 0.5", "cut -1 2", "cut nan 2", "cut 1 inf"):
        with pytest.raises(InputError, match="an event is"):
            parse_event(text, USUAL)


@pytest.mark.slow
def test_a_cut_is_total_and_heals(tun_works):
    """A cut that lets packets through, or never ends, is another experiment."""
    usual = (Shape(2.0, 100.0), Shape(2.0, 100.0))
    with open_shapes(*usual, "tun") as link, Meter(link.side_a, link.side_b) as meter:
        seen = []
        applied = run_schedule(link, cut(usual, 0.0, 1.5), before_each=lambda: seen.append(len(meter.rtt_ms(3, 0.3))))
        seen.append(len(meter.rtt_ms(3, 5.0)))
        assert seen == [3, 0, 3]
        assert [a.wanted_s for a in applied] == [0.0, 1.5]
        assert all(a.in_force_s >= a.wanted_s for a in applied)
        with Scheduled(link, cut(usual, 0.0, 3600.0)) as beside:
            while link.shapes[0].loss_share == 0:
                pass
        assert len(beside.applied) == 1 and beside.error is None, "the end stops a schedule where it is"
