"""The WEKA / kv-cache-tester reader."""

import json

import pytest

from pddbench.errors import TraceError
from pddbench.trace.hits import planned_hits
from pddbench.trace.read import read_trace
from pddbench.trace.validate import validate_rows
from pddbench.trace.weka import read_weka

B = 64


def req(t, blocks, api=1.0, out=10, extra=0, types=("tool_result",)):
    found = {
        "t": t,
        "type": "n",
        "in": len(blocks) * B + extra,
        "out": out,
        "hash_ids": blocks,
        "input_types": list(types),
    }
    return found if api is None else {**found, "api_time": api}


def sub(t, requests, agent="agent_001", **more):
    return {"t": t, "type": "subagent", "agent_id": agent, "requests": requests, **more}


def write(path, requests, name="x", indent=None):
    document = {"id": name, "block_size": B, "hash_id_scope": "local", "requests": requests}
    path.write_text(json.dumps(document, indent=indent))
    return path


def read(tmp_path, requests):
    trace = read_weka(write(tmp_path / "x.json", requests))
    validate_rows(trace.rows)
    return trace, {row.request_id: row for row in trace.rows}


def test_main_line_is_a_chain_with_end_to_start_gaps(tmp_path):
    """Start-to-start gaps would count the reply time twice."""
    trace, rows = read(tmp_path, [req(0, [1], 2.5), req(10, [1, 2], 3), req(14.5, [1, 2, 3])])
    assert [row.parents for row in trace.rows] == [(), ("x/0",), ("x/1",)]
    assert [row.gap_s for row in trace.rows] == [None, 7.5, 1.5]
    assert [row.start_s for row in trace.rows] == [0, 10, 14.5]
    assert [row.turn for row in trace.rows] == [0, 1, 2]
    assert rows["x/2"].prefix_of == "x/1" and rows["x/2"].prefix_tokens == 128


def test_unsorted_entries_are_sorted(tmp_path):
    """Entries in the order of the file would make a later request the parent of an earlier one."""
    trace, _ = read(tmp_path, [req(0, [1]), req(20, [1, 2, 3]), req(10, [1, 2])])
    assert [row.start_s for row in trace.rows] == [0, 10, 20]
    assert [row.prefix_tokens for row in trace.rows] == [0, 64, 128]


def test_negative_and_unknown_gaps_are_counted(tmp_path):
    """A gap below 0 is no wait, and a gap after an unknown end is not known: both are said."""
    trace, _ = read(tmp_path, [req(0, [1], 20), req(10, [1], None), req(30, [1])])
    assert [row.gap_s for row in trace.rows] == [None, 0.0, None]
    assert trace.header.counts == {"negative_gaps": 1, "unknown_gaps": 1, "missing_api_times": 1}


def test_zero_output_and_floor_or_ceil_ids(tmp_path):
    """Replies of 0 tokens and both ways of counting ids are in the data; only other counts are suspicious."""
    trace, _ = read(tmp_path, [req(0, [1, 2], out=0, extra=30), req(5, [1, 2, 3], extra=-30), req(9, [1], extra=200)])
    assert trace.header.counts == {"zero_outputs": 1, "id_count_mismatches": 1}
    assert [row.prefix_tokens for row in trace.rows] == [0, 128, 64]


@pytest.mark.parametrize("absolute", [False, True])
def test_subagent_that_ended_before_joins(tmp_path, absolute):
    """Its first request follows the spawning turn; the next turn waits for its last one as well."""
    shift = 5 if absolute else 0
    inner = [req(0 + shift, [7, 8], 2), req(4 + shift, [7, 8, 9], 3)]
    trace, rows = read(tmp_path, [req(0, [1], 3), sub(5, inner), req(20, [1, 2])])
    assert [row.request_id for row in trace.rows] == ["x/0", "x/agent_001/0", "x/agent_001/1", "x/1"]
    assert rows["x/agent_001/0"].parents == ("x/0",) and rows["x/agent_001/0"].start_s == 5
    assert rows["x/agent_001/1"].parents == ("x/agent_001/0",) and rows["x/agent_001/1"].gap_s == 2
    assert rows["x/1"].parents == ("x/0", "x/agent_001/1")
    assert rows["x/1"].gap_s == 20 - 12  # after the last parent's end
    assert trace.header.counts == {"subagents": 1, "joined_subagents": 1}
    assert [row.kind for row in trace.rows] == ["root", "subagent", "subagent", "tool"]


@pytest.mark.parametrize("api", [15.0, 16.0])
def test_subagent_that_was_still_running_never_joins(tmp_path, api):
    """A join with a sub-agent that ended later (or just then) would delay a turn that did not wait for it."""
    trace, rows = read(tmp_path, [req(0, [1], 3), sub(5, [req(0, [7], api)]), req(20, [1, 2]), req(50, [1, 2, 3])])
    assert rows["x/1"].parents == ("x/0",) and rows["x/2"].parents == ("x/1",)
    assert "joined_subagents" not in trace.header.counts


def test_subagent_without_api_time_ends_by_its_duration(tmp_path):
    """Without a known end nobody may wait for it; its entry tells the end."""
    _, rows = read(tmp_path, [req(0, [1]), sub(5, [req(0, [7], None)], duration_ms=4000), req(20, [1, 2])])
    assert rows["x/1"].parents == ("x/0", "x/agent_001/0") and rows["x/1"].gap_s == 11
    _, rows = read(tmp_path, [req(0, [1]), sub(5, [req(0, [7], None)]), req(20, [1, 2])])
    assert rows["x/1"].parents == ("x/0",)


def test_a_duration_shorter_than_the_requests_is_not_believed(tmp_path):
    """A sub-agent cannot end before its last request starts; a join with it would be a parent from the future."""
    inner = [req(0, [7], 2), req(30, [7, 8], None)]
    _, rows = read(tmp_path, [req(0, [1]), sub(5, inner, duration_ms=4000), req(20, [1, 2])])
    assert rows["x/1"].parents == ("x/0",)


def test_two_subagents_beside_each_other(tmp_path):
    """Both start after the same turn, share ids within the file, and both are waited for; names stay apart."""
    agents = [sub(2, [req(0, [7, 8], 2)]), sub(3, [req(0, [7, 9], 2)])]
    _, rows = read(tmp_path, [req(0, [1]), *agents, req(20, [1, 2])])
    assert rows["x/1"].parents == ("x/0", "x/agent_001/0", "x/agent_001.2/0")
    assert rows["x/agent_001.2/0"].prefix_of == "x/agent_001/0"


def test_subagent_before_any_turn_and_empty_one(tmp_path):
    """A session may have several roots, and an agent that asked nothing is counted, not lost."""
    trace, rows = read(tmp_path, [sub(0, [req(0, [7])]), sub(1, [], "agent_002"), req(3, [1])])
    assert rows["x/agent_001/0"].parents == () and rows["x/0"].parents == ("x/agent_001/0",)
    assert trace.header.counts["empty_subagents"] == 1


def test_compaction_is_told_from_a_new_question(tmp_path):
    """Low-hit turns are looked at by kind."""
    long = list(range(1, 11))
    trace, _ = read(tmp_path, [req(0, long), req(5, [*long, 11], types=["text"]), req(9, [1, 2, 90], types=["text"])])
    assert [row.kind for row in trace.rows] == ["root", "user", "compaction"]


def test_folder_keeps_ids_apart(tmp_path):
    """Ids are local to a file: equal ids in two files share nothing."""
    write(tmp_path / "b.json", [req(0, [1, 2])], "b")
    write(tmp_path / "a.json", [req(0, [1, 2]), req(5, [1, 2, 3])], "a")
    (tmp_path / "LICENSE").write_text("not a trace")
    trace = read_trace(tmp_path)
    assert [row.request_id for row in trace.rows] == ["a/0", "a/1", "b/0"]
    assert planned_hits(trace.rows).tolist() == [0, 128, 0]
    assert any("without a common clock" in text for text in trace.header.assumptions)


def test_ids_that_claim_a_wider_scope_are_said(tmp_path):
    """Hits between files would be missed in silence."""
    document = {"id": "x", "block_size": B, "hash_id_scope": "global", "requests": [req(0, [1])]}
    (tmp_path / "x.json").write_text(json.dumps(document))
    header = read_weka(tmp_path / "x.json").header
    assert header.counts == {"files_with_wider_ids": 1} and any("not local" in text for text in header.assumptions)


def test_folder_errors(tmp_path):
    """An empty folder, and a session that is there twice, are told; the second would mix two conversations."""
    with pytest.raises(TraceError, match="no \\*\\.json"):
        read_trace(tmp_path)
    write(tmp_path / "a.json", [req(0, [1])], "same")
    write(tmp_path / "b.json", [req(0, [1])], "same")
    with pytest.raises(TraceError, match=r"b\.json:1: field 'id'.*a\.json"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"in": -1}, "requests[1].in"),
        ({"t": "1"}, "requests[1].t"),
        ({"out": None}, "requests[1].out"),
        ({"hash_ids": [1, 2.5]}, "requests[1].hash_ids[1]"),
        ({"api_time": -3}, "requests[1].api_time"),
    ],
)
def test_bad_field_is_named_with_its_line(tmp_path, change, field):
    """A document over many lines has its error on one of them."""
    path = write(tmp_path / "x.json", [req(0, [1]), {**req(1, [1]), **change}], indent=1)
    entry = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if text == "  {" and i > 10)
    with pytest.raises(TraceError) as caught:
        read_weka(path)
    assert (caught.value.line, caught.value.field) == (entry, field)


def test_bad_field_inside_a_subagent(tmp_path):
    """The path goes down to the request that is wrong."""
    inner = [req(0, [7]), {k: v for k, v in req(1, [7]).items() if k != "out"}]
    path = write(tmp_path / "x.json", [req(0, [1]), sub(3, inner)], indent=1)
    with pytest.raises(TraceError, match=r"field 'requests\[1\].requests\[1\].out': is missing") as caught:
        read_weka(path)
    text = path.read_text().splitlines()
    assert text[caught.value.line - 1].strip() == "{" and caught.value.line > 20


def test_broken_document_says_the_line(tmp_path):
    """A cut or damaged document is not read as far as it goes."""
    path = write(tmp_path / "x.json", [req(0, [1]), req(1, [1])], indent=1)
    lines = path.read_text().splitlines()
    lines[16] = "  !"
    path.write_text("\n".join(lines))
    with pytest.raises(TraceError, match="not valid JSON") as caught:
        read_weka(path)
    assert caught.value.line == 17


def test_no_request_at_all(tmp_path):
    """An empty session is an error, not an empty plan."""
    with pytest.raises(TraceError, match="no request"):
        read_weka(write(tmp_path / "x.json", []))


def test_real_extracts_match_the_published_figures(data):
    """Each of the ten files, request by request, against the hits derived elsewhere from all 710 files."""
    import pandas as pd

    known = pd.read_parquet(data / "calib" / "weka_requests.parquet")
    files = sorted((data / "weka").glob("*.json"))
    assert len(files) == 10
    for path in files:
        want = known[known.trace == f"traces/{path.name}"]
        trace = read_weka(path)
        validate_rows(trace.rows)
        hits = planned_hits(trace.rows)
        found = sorted(
            (row.input_tokens, row.output_tokens, int(hit)) for row, hit in zip(trace.rows, hits, strict=True)
        )
        assert found == sorted(zip(want["in"].tolist(), want["out"].tolist(), want["hit"].tolist(), strict=True))
        if path.stem == "trace_0142":
            assert (len(found), sum(f[0] for f in found), sum(f[2] for f in found)) == (30, 1_967_200, 1_814_784)
    whole = read_trace(data / "weka")
    assert len(whole.rows) == 345 and len({row.session_id for row in whole.rows}) == 10


def test_subagents_of_real_sessions(data):
    """The one agent that ended before the next turn joins, those that ran on do not."""
    trace = read_weka(data / "weka" / "trace_0277.json")
    assert trace.header.counts == {"subagents": 4, "joined_subagents": 1}
    joins = {row.request_id: row.parents for row in trace.rows if len(row.parents) > 1}
    assert joins == {"trace_0277/1": ("trace_0277/0", "trace_0277/agent_001/3")}


def test_made_up_traps(data):
    """Unsorted entries, relative inner times, an empty reply and missing times in one small file."""
    trace = read_weka(data / "synthetic" / "weka_traps.json")
    rows = {row.request_id: row for row in trace.rows}
    assert rows["syn_0001/agent_001/0"].parents == ("syn_0001/2",)
    assert rows["syn_0001/agent_001/1"].start_s == 12.5
    assert rows["syn_0001/2"].kind == "compaction" and rows["syn_0001/2"].gap_s is None
    assert trace.header.counts["negative_gaps"] == 1
