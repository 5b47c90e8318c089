"""TraceLab: rounds of agents with the provider's real hits."""

import json

import pytest

from pddbench.errors import TraceError
from pddbench.trace.hits import planned_hits
from pddbench.trace.tracelab import read_tracelab


def event(kind, second):
    return {"event_type": kind, "timestamp": f"2026-01-01T00:00:{second:06.3f}Z"}


def round_of(session, index, total, hit, output, events, **more):
    fields = {"session_id": session, "round_index": index, "input_tokens_total": total, "prefix_tokens": hit}
    return {**fields, "output_tokens": output, "timing_events": events, **more}


def write(tmp_path, *lines):
    path = tmp_path / "round_trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


ROUNDS = [
    round_of("b", 0, 500, 0, 10, [event("user_message", 2), event("text", 4)]),
    round_of("a", 0, 1000, 400, 50, [event("user_message", 1), event("tool_call", 3)]),
    round_of("a", 1, 1200, 1040, 20, [event("tool_result", 4), event("tool_result", 7.5), event("text", 9)]),
    round_of("a", 2, 1300, 2000, 5, [event("user_message", 8), event("text", 10)]),
    round_of("a", 3, 1400, 600, 5, []),
]


def test_times_parents_and_hits(tmp_path):
    """Sent at the last input, ended at the last other event; the hit is the provider's, given to the round before."""
    trace = read_tracelab(write(tmp_path, *ROUNDS))
    found = [(r.session_id, r.turn, r.start_s, r.gap_s, r.prefix_tokens, len(r.parents)) for r in trace.rows]
    assert found == [
        ("a", 0, 0.0, None, 0, 0),
        ("b", 0, 1.0, None, 0, 0),
        ("a", 1, 6.5, 4.5, 1040, 1),
        ("a", 2, 7.0, 0.0, 1220, 1),
        ("a", 3, None, None, 600, 1),
    ]
    assert planned_hits(trace.rows, "prompt+output").tolist() == [0, 0, 1040, 1220, 600]
    assert planned_hits(trace.rows).tolist() == [0, 0, 1000, 1200, 600]
    counts = trace.header.counts
    assert counts["hit_tokens_reported"] == 4040 and counts["hit_tokens_without_donor"] == 400 + 780
    assert (counts["negative_gaps"], counts["unknown_gaps"]) == (1, 1)
    assert any("really hit" in text for text in trace.header.assumptions)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"timing_events": []}, "timing_events"),
        ({"timing_events": [{"event_type": "text", "timestamp": "noon"}]}, "timing_events[0].timestamp"),
        ({"newly_append_tokens": 1}, "newly_append_tokens"),
        ({"session_id": ""}, "session_id"),
    ],
)
def test_bad_rounds(tmp_path, change, field):
    """A first round without a time has no place in a replay; sums that do not add up mean other columns."""
    with pytest.raises(TraceError) as caught:
        read_tracelab(write(tmp_path, ROUNDS[1], {**ROUNDS[0], **change}))
    assert (caught.value.line, caught.value.field) == (2, field)


HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"


def test_csv(tmp_path):
    """The replay form: prompt = prefix + new, waits in ms, a later round of lower prefix is a compaction's tail."""
    path = tmp_path / "t.csv"
    path.write_text(
        HEADER + "0,117,0,0,2318,200,300\n1,50,0,10,20,5,0\n0,117,1,2518,348,131,154\n0,117,5,2000,10,1,0\n"
    )
    trace = read_tracelab(path)
    found = [(r.request_id, r.start_s, r.gap_s, r.input_tokens, r.prefix_of, r.prefix_tokens) for r in trace.rows]
    assert found == [
        ("1/0", 0.05, None, 30, None, 0),
        ("0/0", 0.117, None, 2318, None, 0),
        ("0/1", None, 0.3, 2866, "0/0", 2518),
        ("0/5", None, 0.154, 2010, "0/1", 2000),
    ]
    assert trace.header.counts == {
        "hit_tokens_reported": 4528,
        "hit_tokens_without_donor": 10,
        "rows_with_hit_tokens_without_donor": 1,
    }


@pytest.mark.parametrize(
    ("line", "field"),
    [("0,0,0,5,5,5,5", "round_idx"), (",0,1,5,5,5,5", "session_id"), ("0,-1,1,5,5,5,5", "arrival_time")],
)
def test_bad_csv(tmp_path, line, field):
    """A round that is there twice, or a session without a name, would be chained to the wrong one."""
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "0,117,0,0,2318,200,300\n" + line + "\n")
    with pytest.raises(TraceError) as caught:
        read_tracelab(path)
    assert (caught.value.line, caught.value.field) == (3, field)
