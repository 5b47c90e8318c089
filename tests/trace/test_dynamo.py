"""Dynamo's agentic Mooncake rows: a graph of requests."""

import json

import pytest

from pddbench.errors import TraceError
from pddbench.trace.dynamo import read_dynamo
from pddbench.trace.hits import planned_hits


def row(name, session, tokens, ids, wait_for=(), **more):
    fields = {"request_id": name, "session_id": session, "input_length": tokens, "output_length": 5}
    return {**fields, "hash_ids": ids, "wait_for": list(wait_for), **more}


def write(tmp_path, *lines):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


EVENT = {"tool_call_id": "c", "tool_class": "bash", "status": "succeeded", "duration_ms": 40, "input_tokens": 3}
# a planner spawns a researcher (a session of its own), and goes on when it is done; an unrelated session beside them
GRAPH = [
    row("join", "p", 200, [1, 2, 3, 4], ["ask", "r2"], delay=10, tool_wait_ms=40.5, tool_events=[EVENT]),
    row("ask", "p", 100, [1, 2], timestamp=1000, branches=["r1"], prefix_reset=True),
    row("r1", "r", 70, [7, 8], ["ask"], delay=100, prefix_reset=True),
    row("r2", "r", 130, [7, 8, 9], ["r1"], delay=0),
    row("else", "e", 100, [1, 6], timestamp=1500),
]


def test_graph_sessions_and_times(tmp_path):
    """Parents of another session would break the trace; waits are delay + tool wait after the last one waited for."""
    trace = read_dynamo(write(tmp_path, *GRAPH))
    found = [(r.request_id, r.session_id, r.parents, r.start_s, r.gap_s, r.kind) for r in trace.rows]
    assert found == [
        ("ask", "p", (), 1.0, None, "root"),
        ("r1", "p", ("ask",), None, 0.1, "subagent"),
        ("r2", "p", ("r1",), None, 0.0, "user"),
        ("join", "p", ("ask", "r2"), None, 0.0505, "tool"),
        ("else", "e", (), 1.5, None, "root"),
    ]
    assert trace.header.counts == {"merged_sessions": 1, "tool_events": 1}


def test_block_size_is_worked_out(tmp_path):
    """It is not in the file; taken for 512 every hit would be wrong."""
    trace = read_dynamo(write(tmp_path, *GRAPH))
    assert trace.header.block_tokens == 64
    assert planned_hits(trace.rows).tolist() == [0, 0, 70, 100, 64]
    assert any("only power of two" in text for text in trace.header.assumptions)


@pytest.mark.parametrize("lines", [[row("a", "s", 10, [1])], [row("a", "s", 10, [1]), row("b", "s", 9, [1] * 50)]])
def test_undecided_block_size_is_asked_for(tmp_path, lines):
    """Several sizes fit short prompts, none fits a damaged file."""
    path = write(tmp_path, *lines)
    with pytest.raises(TraceError, match="--source-block-tokens"):
        read_dynamo(path)
    assert read_dynamo(path, 16).header.block_tokens == 16


def test_other_spellings_of_fields(tmp_path):
    """Both are written by Dynamo's tools; inside tool_events the same words mean something else."""
    renamed = {"delay": "delay_ms", "timestamp": "created_time", "input_length": "input_tokens"}
    lines = [{renamed.get(name, name): value for name, value in line.items()} for line in GRAPH]
    assert read_dynamo(write(tmp_path, *lines)).rows == read_dynamo(write(tmp_path, *GRAPH)).rows


@pytest.mark.parametrize(
    ("lines", "line", "problem"),
    [
        ([row("a", "s", 64, [1], ["b"])], 1, "'b' is not in the file"),
        ([row("a", "s", 90, [1, 2], ["b"]), row("b", "s", 90, [1, 2], ["a"])], 1, "circle"),
        ([row("a", "s", 90, [1, 2], ["a"])], 1, "circle"),
        ([row("a", "s", 90, [1, 2]), row("a", "s", 90, [1, 2])], 2, "already in the file"),
        ([row("", "s", 90, [1, 2])], 1, "request_id"),
        ([row("a", "s", 90, [1, 2], colour=1)], 1, "not known"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, lines, line, problem):
    """A graph with a hole or a circle never ends."""
    with pytest.raises(TraceError, match=problem) as caught:
        read_dynamo(write(tmp_path, *lines), 64)
    assert caught.value.line == line
