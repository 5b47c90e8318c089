"""The plan made in columns against the plan made row by row: the same requests, whatever is asked of them."""

import msgspec
import plan_by_rows
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.errors import InputError
from pddbench.trace.canonical import write_trace
from pddbench.trace.columns import columns_of
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.read import read_as_columns
from pddbench.workload import identity
from pddbench.workload.experiment import Workload
from pddbench.workload.plan import make_plan
from pddbench.workload.requests import Requests

SECONDS = st.none() | st.floats(0, 100, width=32)


@st.composite
def traces(draw):
    """Any trace the rules allow: several roots a session, joins, shared beginnings and replies, odd ids."""
    rows = []
    for i in range(draw(st.integers(1, 14))):
        session = draw(st.integers(0, 3))
        mine = [r.request_id for r in rows if r.session_id == f"s{session}"]
        parents = tuple(draw(st.lists(st.sampled_from(mine), max_size=2, unique=True))) if mine else ()
        donor = draw(st.integers(-1, i - 1))
        length = rows[donor].input_tokens + rows[donor].output_tokens if donor >= 0 else 0
        prefix = draw(st.sampled_from([length, draw(st.integers(0, length))]))
        rows.append(
            Row(
                request_id=f"r{i}\u00e9" if draw(st.booleans()) else f"{i}", session_id=f"s{session}",
                turn=draw(st.integers(0, 5)), input_tokens=prefix + draw(st.integers(0 if prefix else 1, 9)),
                output_tokens=draw(st.integers(0, 9)), parents=parents,
                start_s=draw(SECONDS if parents else st.floats(0, 100, width=32)),
                gap_s=draw(st.none() | st.floats(-1, 100, width=32)),
                prefix_of=rows[donor].request_id if donor >= 0 else None, prefix_tokens=prefix,
                kind=draw(st.sampled_from(["root", "tool", "measure"])),
            )
        )  # fmt: skip
    return Trace(Header(), rows)


WORKS = st.fixed_dictionaries(
    {},
    optional={
        "limit_requests": st.integers(1, 16), "idle_cap_s": st.floats(0, 50), "seed": st.integers(0, 3),
        "timing": st.sampled_from(["think", "trace", "none"]), "history": st.sampled_from(["recorded", "live"]),
        "cache": st.sampled_from(["cold", "primed"]), "warmups": st.integers(0, 3),
    },
)  # fmt: skip
ARRIVALS = st.sampled_from(
    [{}, {"time_scale": 0.3}, {"arrival": "poisson", "session_rate": 3.0}, {"arrival": "constant", "session_rate": 0.5},
     {"arrival": "gamma", "session_rate": 7.0, "burstiness": 0.5, "ramp_s": 4.0}]
)  # fmt: skip


def outcome(make, *args):
    """The plan, or the sentence."""
    try:
        return make(*args)
    except InputError as error:
        return str(error)


@given(traces(), WORKS, ARRIVALS, st.booleans())
@settings(max_examples=150, deadline=None)
def test_same_plan_as_row_by_row(trace, asked, arrival, steady):
    """Without it the fast way could plan other requests, times or identities, and nobody would see it."""
    work = Workload(trace="t", **asked, **arrival)
    if steady:
        work.cache, work.warmup_sessions = "steady", 1
    fast, slow = outcome(make_plan, trace, work), outcome(plan_by_rows.make_plan, trace, work)
    if isinstance(slow, str):
        assert fast == slow
        return
    assert list(fast.requests) == list(slow.requests)
    for field in ("sha256", "counts", "notes", "timing", "history"):
        assert getattr(fast, field) == getattr(slow, field)


@given(traces())
@settings(max_examples=30, deadline=None)
def test_identities_do_not_depend_on_what_is_kept(trace):
    """Without it the identity of a long trace's requests would depend on how many contexts are open at once."""
    kept, identity._KEPT = identity._KEPT, 1
    try:
        few = make_plan(trace, Workload(trace="t"))
    finally:
        identity._KEPT = kept
    assert few.sha256 == make_plan(trace, Workload(trace="t")).sha256


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_same_plan_from_every_form_of_a_file(tmp_path, suffix):
    """Without it Parquet and JSON of one trace could be two workloads; three batches, names that repeat across them."""
    rows = []
    for i in range(9000):
        before = rows[-1] if i % 3 else None
        shares_with = before.request_id if before else "request number 0" if i else None
        rows.append(
            Row(
                request_id=f"request number {i}", session_id=f"s{i // 3}", turn=i % 3, input_tokens=50 + 20 * (i % 3),
                output_tokens=5, parents=(before.request_id,) if before else (), start_s=None if before else i / 7,
                gap_s=None if i % 5 else 0.25, prefix_of=shares_with,
                prefix_tokens=(before.input_tokens + 5 if before else 20) if i else 0, kind=("root", "tool")[i % 2],
            )
        )  # fmt: skip
    trace = Trace(Header(), rows)
    write_trace(trace, path := tmp_path / f"t.trace{suffix}")
    made = make_plan(read_as_columns(path), Workload(trace="t"))
    slow = plan_by_rows.make_plan(trace, Workload(trace="t"))
    assert list(made.requests) == list(slow.requests) and made.sha256 == slow.sha256


def test_a_plan_grows_and_is_changed_like_a_list():
    """Without it warm-ups of a plan made in columns could overwrite or lose requests."""
    trace = Trace(Header(), [Row("a", "s", 0, 5, 1, start_s=0.0), Row("b", "warmup-0", 0, 5, 1, start_s=1.0)])
    plan = make_plan(columns_of(trace), Workload(trace="t", warmups=2))
    grown = Requests(list(plan.requests)).sealed()
    assert list(grown) == list(plan.requests)
    assert [r.session_id for r in plan.requests] == ["s", "warmup-0", "warmup-0", "warmup-1"]
    assert grown.ints("session").tolist() == plan.requests.ints("session").tolist()
    with pytest.raises(AssertionError):
        plan.requests.append(msgspec.structs.replace(plan.requests[0], index=4))
