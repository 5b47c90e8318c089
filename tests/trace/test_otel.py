"""OpenTelemetry spans: text, parents found by it, usage."""

import json

import pytest
from trace_samples import span

from pddbench.errors import TraceError
from pddbench.trace.content import messages_of
from pddbench.trace.hits import planned_hits
from pddbench.trace.otel import read_otel


def messages(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def call(i, prompt, reply, start=None, end=None, **attributes):
    return {
        **span(i),
        "start_time": f"2026-01-01T00:00:{start if start is not None else i:02}Z",
        "end_time": f"2026-01-01T00:00:{end if end is not None else i:02}.5Z",
        "attributes": {
            "gen_ai.input.messages": json.dumps(messages(*prompt)),
            "gen_ai.output.messages": json.dumps(messages(("assistant", reply))),
            **attributes,
        },
    }


def write(tmp_path, *spans):
    path = tmp_path / "o.json"
    path.write_text(json.dumps({"spans": spans}, indent=1))
    return path


ASK = [("user", "ask")]
ONE = [*ASK, ("assistant", "one"), ("user", "more")]
BOTH = [*ASK, ("assistant", "one"), ("assistant", "two"), ("user", "join")]


def test_parents_are_whose_replies_are_quoted(tmp_path):
    """parent_span_id is null in what frameworks write; without parents a chain would be sent all at once."""
    trace = read_otel(write(tmp_path, call(0, ASK, "one"), call(1, [("user", "b")], "two"), call(5, BOTH, "end")))
    assert [r.parents for r in trace.rows] == [(), (), ("s0", "s1")]
    assert [r.gap_s for r in trace.rows] == [None, None, 3.5]
    assert [r.kind for r in trace.rows] == ["root", "root", "user"]
    assert trace.rows[2].prefix_of == "s0"


def test_parents_that_had_not_ended_are_none(tmp_path):
    """A request cannot wait for a reply that came after it was sent, even if the text is the same."""
    trace = read_otel(write(tmp_path, call(0, ASK, "one", end=9), call(5, ONE, "end")))
    assert trace.rows[1].parents == () and trace.header.counts["parents_that_had_not_ended"] == 1


def test_only_the_nearest_parents(tmp_path):
    """Every turn quotes all before it; a parent of a parent adds nothing to wait for."""
    two = [*ONE, ("assistant", "two"), ("user", "and")]
    trace = read_otel(write(tmp_path, call(0, ASK, "one"), call(2, ONE, "two"), call(4, two, "three")))
    assert [r.parents for r in trace.rows] == [(), ("s0",), ("s2",)]


def test_equal_replies_are_told_apart(tmp_path):
    """Agents say 'ok' a hundred times: a request follows the one whose context it goes on with, else the latest."""
    goes_on, elsewhere = [*ASK, ("assistant", "ok"), ("user", "more")], [("user", "sum up"), ("assistant", "ok")]
    calls = [call(0, ASK, "ok"), call(2, [("user", "b")], "ok"), call(4, goes_on, "end"), call(6, elsewhere, "end")]
    assert [r.parents for r in read_otel(write(tmp_path, *calls)).rows] == [(), (), ("s0",), ("s2",)]


def test_parent_span_counts_and_sessions_do_not_mix(tmp_path):
    """The recorded parent is taken where it is a model call of the session that had ended."""
    child = {**call(3, [("user", "x")], "y"), "parent_span_id": "s0"}
    child["attributes"]["gen_ai.output.messages"] = json.dumps(messages(("assistant", "one")))
    other = call(4, ONE, "z", **{"gen_ai.conversation.id": "other"})
    named = {**call(5, [("user", "?"), ("assistant", "one")], "z"), "parent_span_id": "s0"}
    trace = read_otel(write(tmp_path, call(0, ASK, "one"), child, other, named))
    assert [r.parents for r in trace.rows] == [(), ("s0",), (), ("s0",)]
    assert [r.session_id for r in trace.rows] == ["t", "t", "other", "t"]


def test_usage_is_believed(tmp_path):
    """Lengths told by the server are exact; what is shared is then the donor's whole context."""
    usage = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 50}
    more = {"gen_ai.usage.prompt_tokens": 180, "gen_ai.usage.completion_tokens": 7}
    trace = read_otel(write(tmp_path, call(0, ASK, "one", **usage), call(2, ONE, "two", **more)))
    assert [(r.input_tokens, r.output_tokens, r.prefix_tokens) for r in trace.rows] == [(100, 50, 0), (180, 7, 150)]
    assert trace.header.lengths == "exact"
    assert planned_hits(trace.rows).tolist() == [0, 100]


def test_lengths_are_estimated_and_said(tmp_path):
    """Without a tokenizer a length is a guess, and must be called one."""
    trace = read_otel(write(tmp_path, call(0, [("user", "ü" * 8)], "one")))
    assert (trace.rows[0].input_tokens, trace.rows[0].output_tokens) == (16 // 4 + 4, 1 + 4)
    assert trace.header.lengths == "estimated" and any("bytes / 4" in text for text in trace.header.assumptions)


def test_other_spans_are_counted(tmp_path):
    """Tool spans are no requests; that they are left out is told."""
    tool = {**span(1), "attributes": {"gen_ai.operation.name": "execute_tool"}}
    failed = {**call(2, ASK, "one"), "status": {"code": 2}}
    trace = read_otel(write(tmp_path, call(0, ASK, "one"), tool, failed))
    assert len(trace.rows) == 2
    assert trace.header.counts["spans_that_call_no_model"] == 1 and trace.header.counts["calls_with_error_status"] == 1
    with pytest.raises(TraceError, match="none of the spans"):
        read_otel(write(tmp_path, tool))


def test_text_is_kept(tmp_path):
    """The side file gives back every prompt as it was, tools and system text with it."""
    more = {"gen_ai.tool.definitions": '[{"name": "sh"}]', "gen_ai.system_instructions": '"be brief"'}
    trace = read_otel(write(tmp_path, call(0, ASK, "one", **more), call(2, ONE, "two", **more)))
    system = {"role": "system", "content": "be brief"}
    assert messages_of(trace.content) == {"s0": [system, *messages(*ASK)], "s2": [system, *messages(*ONE)]}
    assert trace.content[1].tools == [{"name": "sh"}] and len(trace.content[1].messages) == 1
    assert trace.rows[1].prefix_tokens == trace.rows[0].input_tokens + trace.rows[0].output_tokens


def test_otlp_export_and_lines(tmp_path):
    """The collector's own JSON has camel case, typed values and nanoseconds as text; it is the same trace."""
    plain = read_otel(write(tmp_path, call(0, ASK, "one"), call(2, ONE, "two")))
    spans = []
    for i, start in ((0, 1_767_225_600), (2, 1_767_225_602)):
        source = call(i, ASK if i == 0 else ONE, "one" if i == 0 else "two")
        values = [{"key": key, "value": {"stringValue": text}} for key, text in source["attributes"].items()]
        values.append({"key": "n", "value": {"intValue": "5"}})
        times = {"startTimeUnixNano": str(start * 10**9), "endTimeUnixNano": str(start * 10**9 + 5 * 10**8)}
        spans.append({"traceId": "t", "spanId": f"s{i}", **times, "attributes": values})
    path = tmp_path / "otlp.jsonl"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    found = read_otel(path)
    assert found.rows == plain.rows and messages_of(found.content) == messages_of(plain.content)
    assert found.content[0].extra["attributes"] == {"n": 5}
    path.write_text("".join(json.dumps(item) + "\n" for item in spans))
    assert read_otel(path).rows == plain.rows


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"attributes": {"gen_ai.input.messages": "[{"}}, "spans[1].attributes.gen_ai.input.messages"),
        ({"attributes": {"gen_ai.input.messages": "{}"}}, "spans[1].attributes.gen_ai.input.messages"),
        (
            {"attributes": {"gen_ai.input.messages": "[]", "gen_ai.usage.input_tokens": -1}},
            "spans[1].attributes.gen_ai.usage.input_tokens",
        ),
        ({"end_time": None}, "spans[1].end_time"),
        ({"trace_id": 5}, "spans[1].trace_id"),
        ({"attributes": [{}]}, "spans[1].attributes[0]"),
    ],
)
def test_bad_spans_are_named(tmp_path, change, field):
    """File, line and field, in a document of many lines too."""
    path = write(tmp_path, span(0), {**span(1), **change})
    with pytest.raises(TraceError) as caught:
        read_otel(path)
    assert caught.value.field == field
    lines = path.read_text().splitlines()
    assert '"s1"' in lines[caught.value.line - 1]
