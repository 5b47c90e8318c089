"""The plan: who is sent when, after whom, and with which identity."""

import msgspec
import pytest

from pddbench.errors import InputError
from pddbench.trace.model import Header, Row, Trace
from pddbench.workload.experiment import Workload
from pddbench.workload.plan import make_plan, planned_duration_s

NS = 10**9


def row(name, session="s", turn=0, **more):
    more = {"input_tokens": 100, "output_tokens": 10, "start_s": None if more.get("parents") else 0.0, **more}
    return Row(request_id=name, session_id=session, turn=turn, **more)


def plan(rows, **work):
    return make_plan(Trace(Header(), rows), Workload(trace="t", **work))


CHAIN = [
    row("a", start_s=5.0),
    row("b", turn=1, parents=("a",), gap_s=10.0, start_s=20.0, prefix_of="a", prefix_tokens=110, input_tokens=150),
    row("c", turn=2, parents=("b",), gap_s=-1.0, start_s=30.0, prefix_of="b", prefix_tokens=150, input_tokens=150,
        output_tokens=0),
]  # fmt: skip


def test_idle_cap_comes_before_time_scale():
    """Without it, a cap of 2 s at scale 0.1 waits 1 s or 2 s instead of 0.2 s (TRAPS 29)."""
    made = plan(CHAIN, idle_cap_s=2.0, time_scale=0.1)
    assert made.requests[1].gap_ns == round(0.2 * NS)
    assert made.counts["capped_gaps"] == 1


def test_time_scale_tenth_is_ten_times_faster():
    """Without it, the factor could run the other way round."""
    rows = [row("a", "s1", start_s=0.0), row("b", "s2", start_s=100.0)]
    assert plan(rows, time_scale=0.1).requests[1].start_ns == 10 * NS


def test_replay_begins_at_once_and_says_so():
    """Without it, a trace recorded from 5 s on waits, or is shifted silently."""
    made = plan(CHAIN)
    assert made.requests[0].start_ns == 0
    assert any("begin at 5 s" in note for note in made.notes)


def test_odd_values_are_counted_not_hidden():
    """Without it, a clamped output or a negative gap changes the workload silently."""
    made = plan(CHAIN)
    assert made.requests[2].gap_ns == 0
    assert made.requests[2].output_tokens == 1
    assert made.counts == {"negative_gaps": 1, "clamped_outputs": 1}


def test_full_hit_is_capped_at_input_minus_one():
    """Without it, the plan promises a hit no engine can serve (one token must be computed)."""
    assert plan(CHAIN).requests[2].cached_tokens_planned == 149


def test_timing_trace_uses_recorded_starts_inside_the_session():
    """Without it, `timing = trace` would still wait for think times."""
    made = plan(CHAIN, timing="trace", time_scale=0.5)
    assert [request.start_ns for request in made.requests] == [0, round(7.5 * NS), round(12.5 * NS)]
    with pytest.raises(InputError, match="start_s"):
        plan([row("a"), row("b", turn=1, parents=("a",))], timing="trace")


def test_limit_is_said_aloud():
    """Without it, a shortened trace looks like the whole one (TRAPS 24)."""
    made = plan(CHAIN, limit_requests=2)
    assert len(made.requests) == 2
    assert made.notes[0] == "only the first 2 of 3 requests of the trace; 1 sessions cut short"


def test_session_rate_and_seed():
    """Without it, the offered rate is not the asked one, or changes from run to run."""
    rows = [row(f"r{i}", f"s{i}", start_s=float(i)) for i in range(2000)]
    for arrival in ("poisson", "gamma", "constant"):
        starts = [r.start_ns for r in plan(rows, arrival=arrival, session_rate=4.0, burstiness=0.5).requests]
        assert starts == sorted(starts)
        assert starts[-1] / NS == pytest.approx(500, rel=0.12)
        again = [r.start_ns for r in plan(rows, arrival=arrival, session_rate=4.0, burstiness=0.5).requests]
        other = [r.start_ns for r in plan(rows, arrival=arrival, session_rate=4.0, burstiness=0.5, seed=2).requests]
        assert starts == again
        assert (starts == other) == (arrival == "constant")


def test_identity_says_what_is_asked_not_when():
    """Without it, arms with other bytes could pass as the same workload."""
    first = [r.plan_sha256 for r in plan(CHAIN).requests]
    assert first == [r.plan_sha256 for r in plan(CHAIN, idle_cap_s=1.0, seed=9).requests]
    longer = [CHAIN[0], msgspec.structs.replace(CHAIN[1], prefix_tokens=109), CHAIN[2]]
    changed = [r.plan_sha256 for r in plan(longer).requests]
    assert changed[0] == first[0]
    assert changed[1] != first[1]


def test_planned_duration_follows_the_chain():
    """Without it, the user is told a wrong duration before the start."""
    assert planned_duration_s(plan(CHAIN)) == 10.0


def test_warmups_share_nothing():
    """Without it, warm-up requests would warm the measured prompts' cache."""
    made = plan(CHAIN, warmups=2)
    extra = made.requests[3:]
    assert [r.phase for r in extra] == ["warmup", "warmup"]
    assert all(r.prefix_of == -1 and r.cached_tokens_planned == 0 for r in extra)
    assert len(made.measured) == 3


@pytest.mark.parametrize(
    "work",
    [
        {"time_scale": 9e5, "timing": "trace"},
        {"time_scale": 9e5},
        {"arrival": "poisson", "session_rate": 1e-300},
        {"arrival": "constant", "session_rate": 5e-324},
    ],
)
def test_times_no_timer_can_be_set_to(work):
    """Without it a scale or rate that is far off ends in a traceback about integers."""
    rows = [row("a"), row("b", turn=1, parents=("a",), gap_s=1e5, start_s=1e5), row("c", session="t", start_s=1.0)]
    with pytest.raises(InputError, match=r"request '[bc]' comes to .* more than any timer can be set to"):
        plan(rows, **work)


def test_empty_trace_is_refused():
    """Without it, an empty trace prints an empty success."""
    with pytest.raises(InputError, match="no requests"):
        plan([])


SHARED = [
    row("a", "s1", start_s=0.0),
    row("a2", "s1", 1, parents=("a",), gap_s=1.0, prefix_of="a", prefix_tokens=110, input_tokens=160),
    row("b", "s2", start_s=1.0, prefix_of="a", prefix_tokens=60, input_tokens=90),
    row("c", "s3", start_s=2.0, prefix_of="a", prefix_tokens=80, input_tokens=85),
]


def test_primed_sends_what_sessions_share_and_plans_those_hits():
    """Without it, a primed run would call its warm hits a fault, or prime nothing."""
    made = plan(SHARED, cache="primed")
    (prime,) = [r for r in made.requests if r.kind == "prime"]
    assert (prime.phase, prime.prefix_of, prime.input_tokens, prime.output_tokens) == ("warmup", 0, 80, 1)
    assert [r.cached_tokens_planned for r in made.measured] == [80, 100, 60, 80]
    assert [r.cached_tokens_planned for r in plan(SHARED).measured] == [0, 100, 60, 80]
    assert made.counts["primes"] == 1


def test_steady_measures_all_but_the_first_sessions():
    """Without it, cold first sessions sit in a figure that is said to be of the steady state."""
    made = plan(SHARED, cache="steady", warmup_sessions=1)
    assert [r.request_id for r in made.measured] == ["b", "c"]
    assert [r.start_ns for r in made.requests] == [0, None, NS, 2 * NS]
    with pytest.raises(InputError, match="leaves none"):
        plan(SHARED, cache="steady", warmup_sessions=3)


def test_ramp_brings_the_rate_up_and_keeps_the_order():
    """Without it, a ramp could lose sessions or offer another rate after it."""
    rows = [row(f"r{i}", f"s{i}", start_s=float(i)) for i in range(400)]
    flat = [r.start_ns / NS for r in plan(rows, arrival="constant", session_rate=2.0).requests]
    ramped = [r.start_ns / NS for r in plan(rows, arrival="constant", session_rate=2.0, ramp_s=60.0).requests]
    assert ramped == sorted(ramped)
    assert ramped[-1] == pytest.approx(flat[-1] + 30)
    assert sum(t < 60 for t in ramped) == pytest.approx(60, abs=1)  # half of 2/s x 60 s
