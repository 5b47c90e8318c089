"""Mooncake rows with sessions: whole prompts and increments look alike."""

import json

import pytest

from pddbench.errors import TraceError
from pddbench.trace.hits import planned_hits
from pddbench.trace.mooncake_sessions import read_cumulative, read_delta, read_sessions
from pddbench.trace.read import read_trace


def row(session, tokens, output, ids=None, **more):
    fields = {"session_id": session, "input_length": tokens, "output_length": output, **more}
    return fields if ids is None else {**fields, "hash_ids": ids}


def write(tmp_path, *lines):
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# two sessions with one system prompt (block 1); the same conversation told both ways
DELTA = [
    row("a", 1024, 100, [1, 2], timestamp=0),
    row("b", 1024, 100, [1, 3], timestamp=2000),
    row("a", 300, 50, [4], delay=2500),
    row("a", 500, 50, [5], delay=1000),
]
WHOLE = [
    row("a", 1024, 100, [1, 2], timestamp=0),
    row("b", 1024, 100, [1, 3], timestamp=2000),
    row("a", 1424, 50, [1, 2, 4], delay=2500),
    row("a", 1974, 50, [1, 2, 4, 5], delay=1000),
]


def test_increments_add_up(tmp_path):
    """AIPerf: a later row holds the new tokens only; read as whole prompts the load is a fraction of the true one."""
    trace = read_sessions(write(tmp_path, *DELTA))
    found = [(r.request_id, r.turn, r.input_tokens, r.prefix_of, r.prefix_tokens, r.gap_s) for r in trace.rows]
    assert found == [
        ("L1", 0, 1024, None, 0, None),
        ("L2", 0, 1024, "L1", 512, None),
        ("L3", 1, 1424, "L1", 1124, 2.5),
        ("L4", 2, 1974, "L3", 1474, 1.0),
    ]
    assert planned_hits(trace.rows).tolist() == [0, 512, 1024, 1424]
    assert planned_hits(trace.rows, "prompt+output").tolist() == [0, 512, 1124, 1474]
    assert trace.header.source_format == "mooncake-delta"
    assert trace.header.assumptions[0].startswith("rows of a session are increments")
    assert "0 of 2 later turns" in trace.header.assumptions[0]


def test_whole_prompts_are_seen(tmp_path):
    """The same rows added up twice would make prompts of twice the length."""
    trace = read_sessions(write(tmp_path, *WHOLE))
    assert [r.input_tokens for r in trace.rows] == [1024, 1024, 1424, 1974]
    assert planned_hits(trace.rows).tolist() == [0, 512, 1024, 1424]
    assert trace.header.source_format == "mooncake-cumulative"
    assert "2 of 2 later turns" in trace.header.assumptions[0]


def test_named_meaning_is_kept(tmp_path):
    """Who knows better than the ids is obeyed."""
    path = write(tmp_path, *WHOLE)
    assert [r.input_tokens for r in read_delta(path).rows] == [1024, 1024, 2548, 4572]
    assert read_trace(path, "mooncake-cumulative").rows == read_cumulative(path).rows == read_sessions(path).rows


@pytest.mark.parametrize(
    "lines",
    [
        [row("a", 100, 10, timestamp=0), row("a", 150, 10)],
        [row("a", 100, 10, [1], timestamp=0), row("a", 9, 1, [2]), row("a", 9, 1, [2]), row("a", 9, 1, [3])],
    ],
)
def test_no_guess_where_it_is_undecided(tmp_path, lines):
    """A guess would be a workload of another size, without a word."""
    with pytest.raises(TraceError, match="mooncake-cumulative or --format mooncake-delta") as caught:
        read_sessions(write(tmp_path, *lines))
    assert caught.value.line == 2 and caught.value.field == "session_id"


def test_without_ids_shorter_turns_are_increments(tmp_path):
    """A whole prompt is not shorter than what it repeats, save after a compaction."""
    trace = read_sessions(write(tmp_path, row("a", 1000, 10, timestamp=0), row("a", 50, 10), row("a", 40, 10)))
    assert [r.input_tokens for r in trace.rows] == [1000, 1060, 1110]
    assert trace.header.counts == {"unknown_gaps": 2, "rows_without_ids": 3}


def test_one_turn_each_makes_no_difference(tmp_path):
    """Files of single turns need no decision."""
    path = write(tmp_path, row("a", 512, 1, [1], timestamp=0), row("b", 512, 1, [1], timestamp=5))
    assert read_sessions(path).rows == read_delta(path).rows
    assert "no difference" in read_sessions(path).header.assumptions[0]


def test_missing_starts_are_said(tmp_path):
    """Sessions without a timestamp all start at once, which nobody recorded."""
    trace = read_delta(write(tmp_path, row("a", 5, 1), row("b", 5, 1)))
    assert [r.start_s for r in trace.rows] == [0.0, 0.0]
    assert trace.header.counts["sessions_without_start"] == 2
    assert any("start at 0" in text for text in trace.header.assumptions)


@pytest.mark.parametrize(
    ("lines", "line", "field", "problem"),
    [
        ([row("a", 5, 1, delay=3)], 1, "delay", "follows nothing"),
        ([{"session_id": "a", "output_length": 1, "messages": []}], 1, None, "text in place of lengths"),
        ([row("a", 2**31 - 1, 1), row("a", 5, 1)], 2, "input_length", "add up"),
        ([row("a", 5, 1, [1], speed=1)], 1, "speed", "not known"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, lines, line, field, problem):
    """Each would otherwise be dropped or wrapped round."""
    with pytest.raises(TraceError, match=problem) as caught:
        read_delta(write(tmp_path, *lines))
    assert caught.value.line == line and (field is None or caught.value.field == field)
