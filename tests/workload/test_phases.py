"""A window of due times: who is measured follows from the rows alone."""

import pytest

from pddbench.errors import InputError
from pddbench.trace.model import Header, Row, Trace
from pddbench.workload.experiment import Workload
from pddbench.workload.phases import phases
from pddbench.workload.plan import make_plan, planned_duration_s

NS = 10**9


def chain(session, start_s, turns=3, gap_s=10.0):
    names = [f"{session}.{turn}" for turn in range(turns)]
    return [
        Row(name, session, turn, 100, 10, tuple(names[turn - 1 : turn]) if turn else (), None if turn else start_s,
            gap_s if turn else None)
        for turn, name in enumerate(names)
    ]  # fmt: skip


def plan(*sessions, **work):
    rows = [row for rows in zip(*sessions, strict=True) for row in rows]
    return make_plan(Trace(Header(), rows), Workload(trace="t", **work))


def test_due_decides_and_a_request_that_was_never_due_counts_where_it_would_have_been():
    """Without it, the turns lost to a failure inside the window would vanish, and the arm look better for it."""
    made = plan(chain("a", 0.0), chain("b", 15.0), duration_s=20.0, warmup_s=5.0)
    assert [r.request_id for r in made.requests] == ["a.0", "b.0", "a.1", "b.1", "a.2", "b.2"]
    due = [0, 15 * NS, 11 * NS, None, 26 * NS, None]  # b.0 fails after 2 s, so that b.1 and b.2 are never due
    end = [NS, 17 * NS, 12 * NS, None, None, None]
    assert phases(made, due, end) == ["warmup", "measure", "measure", "drain", "drain", "drain"]
    end[1] = 14 * NS  # it fails earlier: its next turn would have been due at 24 s, inside
    assert phases(made, due, end)[3:] == ["measure", "drain", "drain"]


def test_the_edges_of_the_window_belong_to_it_and_not():
    """Without it, two windows one after the other would count a request twice, or not at all."""
    made = plan(chain("a", 0.0), duration_s=10.0, warmup_s=5.0)
    due = [5 * NS, 15 * NS - 1, 15 * NS]
    assert phases(made, due, [None] * 3) == ["measure", "measure", "drain"]


def test_without_a_window_phases_are_the_plans():
    """Without it, a steady start would be measured, or a whole run drained."""
    made = plan(chain("a", 0.0), chain("b", 15.0), cache="steady", warmup_sessions=1, warmups=1)
    assert phases(made, [], []) == ["warmup", "measure"] * 3 + ["warmup"]
    assert planned_duration_s(plan(chain("a", 0.0), chain("b", 15.0), cache="steady", warmup_sessions=1)) == 35
    cut = plan(chain("a", 0.0), chain("b", 15.0), cache="steady", warmup_sessions=1, duration_s=100.0)
    assert phases(cut, [0] * 6, [0] * 6) == ["warmup", "measure"] * 3, "what fills caches is never measured"


def test_the_window_starts_after_the_ramp_and_bounds_the_planned_duration():
    """Without it, the ramp would be measured, and the duration shown before the start be that of the whole trace."""
    sessions = [chain(f"s{n}", 0.0, turns=50, gap_s=30.0) for n in range(20)]
    made = plan(*sessions, arrival="poisson", session_rate=1.0, ramp_s=5.0, duration_s=60.0)
    assert (made.window.from_ns, made.window.until_ns) == (5 * NS, 65 * NS)
    assert planned_duration_s(made) == 65.0
    assert any("due from 5 s to 65 s" in note for note in made.notes)


def test_a_window_after_the_last_request_is_refused():
    """Without it, a whole run would measure nothing."""
    with pytest.raises(InputError, match=r"begins at 60 s, but the last request is due at about 35 s"):
        plan(chain("a", 0.0), chain("b", 15.0), duration_s=20.0, warmup_s=60.0)
