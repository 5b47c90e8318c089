"""Qwen-Bailian: chains of chats."""

import json

import pytest

from pddbench.errors import TraceError
from pddbench.trace.bailian import read_bailian
from pddbench.trace.hits import planned_hits
from pddbench.trace.read import read_trace


def chat(chat_id, parent, at, tokens=32, ids=(1, 2), **more):
    fields = {"timestamp": at, "input_length": tokens, "output_length": 3, "type": "text", "turn": 1}
    return {"chat_id": chat_id, "parent_chat_id": parent, **fields, "hash_ids": list(ids), **more}


def write(tmp_path, *lines):
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_traps(data):
    """Seconds, 16-token blocks, a parent outside the file: a root, counted and said."""
    trace = read_bailian(data / "synthetic" / "bailian_traps.jsonl")
    found = [(r.request_id, r.session_id, r.turn, r.parents, r.start_s, r.prefix_tokens, r.kind) for r in trace.rows]
    assert found == [
        ("0", "0", 0, (), 0.0, 0, "root"),
        ("1", "1", 0, (), 0.25, 16, "root"),
        ("2", "0", 1, ("0",), 61.114, 32, "user"),
        ("3", "3", 3, (), 62.0, 0, "root"),
    ]
    assert planned_hits(trace.rows).tolist() == [0, 16, 32, 0]
    assert trace.header.block_tokens == 16 and trace.header.counts["absent_parents"] == 1
    assert trace.rows[2].gap_s is None and trace.header.counts["unknown_gaps"] == 1
    assert any("parent is not in the file: 1" in text for text in trace.header.assumptions)


def test_parents_come_first_whatever_the_order_of_the_file(tmp_path):
    """Equal stamps and shuffled lines occur; a child before its parent is no canonical trace."""
    lines = [chat(3, 2, 5.0), chat(2, 1, 5.0), chat(1, -1, 5.0), chat(4, -1, 1.0)]
    trace = read_bailian(write(tmp_path, *lines))
    assert [r.request_id for r in trace.rows] == ["4", "1", "2", "3"]
    assert {r.session_id for r in trace.rows} == {"1", "4"}


def test_child_with_an_earlier_stamp_is_counted(tmp_path):
    """Clocks of anonymised traces disagree; the order of the conversation is kept and the disagreement told."""
    trace = read_bailian(write(tmp_path, chat(1, -1, 9.0), chat(2, 1, 5.0)))
    assert [r.request_id for r in trace.rows] == ["1", "2"]
    assert trace.header.counts["children_before_their_parents"] == 1


@pytest.mark.parametrize(
    ("lines", "line", "problem"),
    [
        ([chat(1, -1, 0.0), chat(1, -1, 1.0)], 2, "already in the file"),
        ([chat(1, 2, 0.0), chat(2, 1, 1.0)], 1, "circle"),
        ([chat(1, -1, 0.0), chat(2, 3, 1.0), chat(3, 3, 1.0)], 2, "circle"),
        ([chat(1, -1, 0.0, other=1)], 1, "not known"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, lines, line, problem):
    """A circle of parents would wait for ever."""
    with pytest.raises(TraceError, match=problem) as caught:
        read_bailian(write(tmp_path, *lines))
    assert caught.value.line == line


def test_pointer_instead_of_data(tmp_path):
    """A clone without LFS holds three lines of text; they are no trace of three requests."""
    path = tmp_path / "qwen_traceA_blksz_16.jsonl"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(TraceError, match="git lfs pull"):
        read_trace(path, "bailian")
