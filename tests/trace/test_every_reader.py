"""What every reader of lines must survive: packing, marks, line ends, one line, a broken line in the middle."""

import copy
import json

import pytest
from trace_samples import IDS, PACKERS, SAMPLES, conversation, mooncake, span, tracelab

from pddbench.errors import TraceError
from pddbench.trace.canonical import write_trace
from pddbench.trace.content import messages_of, read_content_file, write_content
from pddbench.trace.read import FORMATS, detect_format, read_trace
from pddbench.trace.validate import validate_rows

every = pytest.mark.parametrize("sample", SAMPLES, ids=IDS)


def put(path, content):
    path.write_bytes(content)
    return path


def block_of(sample):
    return 16 if sample.name == "dynamo" else None


@every
@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_seen_from_the_content_and_named(tmp_path, sample, pack):
    """The format is found whatever the file is called and packed with; naming it makes no difference."""
    path = put(tmp_path / "file", pack(sample.text(5).encode()))
    assert detect_format(path) == sample.name
    trace = read_trace(path, block_tokens=block_of(sample))
    assert read_trace(path, sample.name, block_of(sample)) == trace
    assert len(trace.rows) == 5 and trace.header.assumptions
    validate_rows(trace.rows)


@every
def test_marks_and_line_ends_make_no_difference(tmp_path, sample):
    """A byte-order mark, CRLF and a missing last line end come from other systems; the rows are the same."""
    text = sample.text(4)
    plain = read_trace(put(tmp_path / "a", text.encode()), block_tokens=block_of(sample)).rows
    for content in ("\ufeff" + text, text.replace("\n", "\r\n"), text.rstrip("\n"), text + "\n\n"):
        assert read_trace(put(tmp_path / "b", content.encode()), block_tokens=block_of(sample)).rows == plain


@every
def test_one_line_is_a_trace(tmp_path, sample):
    """A trace of a single request must not end in a division by a span of 0 or in another format."""
    assert len(read_trace(put(tmp_path / "one", sample.text(1).encode()), block_tokens=block_of(sample)).rows) == 1


@every
@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_a_bad_field_in_the_middle_is_named_with_its_line(tmp_path, sample, pack):
    """A reader that guesses or goes on replays another workload; one that only says 'invalid' costs an evening."""
    path = put(tmp_path / "bad", pack(sample.text(9, broken_at=4).encode()))
    with pytest.raises(TraceError) as caught:
        read_trace(path, block_tokens=block_of(sample))
    assert caught.value.line == 5 + len(sample.head)
    assert caught.value.field.endswith(sample.field)
    assert str(caught.value).startswith(f"{path}:") and "\n" not in str(caught.value)


@every
@pytest.mark.parametrize("broken", ["{", '{"a": 1', "1,2", "[]", "null", "{}", '"\udcff'])
def test_a_broken_line_in_the_middle_is_named(tmp_path, sample, broken):
    """Half a line is what a full disk leaves behind; nothing after it may be read as if nothing had happened."""
    lines = sample.text(9).split("\n")
    lines[6] = broken
    path = put(tmp_path / "bad", "\n".join(lines).encode(errors="surrogateescape"))
    with pytest.raises(TraceError) as caught:
        read_trace(path, block_tokens=block_of(sample))
    assert caught.value.line == 7 and "\n" not in str(caught.value)


@every
def test_an_empty_line_in_the_middle_is_named(tmp_path, sample):
    """It may be a lost request."""
    lines = sample.text(5).split("\n")
    lines[3] = ""
    with pytest.raises(TraceError, match="empty, though others follow"):
        read_trace(put(tmp_path / "gap", "\n".join(lines).encode()), block_tokens=block_of(sample))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("content", [b"", b"\n\n", b"{}\n", b"[]\n", b"a,b\n1,2\n", b"{]\n", b'{"a": "\xff"}\n'])
def test_what_is_no_trace_of_the_named_format_is_a_sentence(tmp_path, name, content):
    """A wrong --format must end in one sentence, in every reader."""
    with pytest.raises(TraceError) as caught:
        read_trace(put(tmp_path / "x", content), name)
    assert "\n" not in str(caught.value)


@every
def test_the_canonical_file_is_the_same_trace(tmp_path, sample):
    """What a reader makes must pass every rule when written, and come back as it was."""
    trace = read_trace(put(tmp_path / "file", sample.text(6).encode()), block_tokens=block_of(sample))
    write_trace(trace, tmp_path / "t.trace.jsonl")
    again = read_trace(tmp_path / "t.trace.jsonl")
    assert (again.header, again.rows) == (trace.header, trace.rows)


@pytest.mark.parametrize("name", ["otel", "sweagent", "sharegpt"])
def test_the_line_of_a_broken_document(tmp_path, name):
    """In a document of a thousand lines 'not valid JSON' alone is no help."""
    document = {"spans": [], "history": [{"role": "user", "content": "a"}], "conversations": []}
    text = json.dumps([document] if name == "sharegpt" else document, indent=1).replace('"content"', "content")
    with pytest.raises(TraceError, match="not valid JSON") as caught:
        read_trace(put(tmp_path / "x", text.encode()), name)
    assert caught.value.line == text[: text.index("content")].count("\n") + 1


OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "t",
                            "spanId": "s",
                            "startTimeUnixNano": "5",
                            "endTimeUnixNano": "9",
                            "attributes": [
                                {"key": "gen_ai.input.messages", "value": {"stringValue": '[{"role": "user"}]'}},
                                {"key": "k", "value": {"kvlistValue": {"values": [{"key": "a", "value": {}}]}}},
                                {"key": "l", "value": {"arrayValue": {"values": [{"intValue": "3"}]}}},
                            ],
                        }
                    ]
                }
            ]
        }
    ]
}
TRAJECTORY = {
    "history": [{"role": "user", "content": [{"text": "a"}]}, {"role": "assistant", "tool_calls": [{"a": 1}]}]
}
CHATS = [conversation(0), {"messages": TRAJECTORY["history"], "tools": [{"name": "t"}]}]
DYNAMO = {**mooncake(1), "request_id": "r", "wait_for": [], "branches": ["a"], "tool_events": [{"status": "x"}]}
JUNK = [
    None,
    True,
    -1,
    2**70,
    0.5,
    "",
    "x",
    "\ud83d\ude00\0",
    [],
    [None],
    {},
    {"a": []},
    [[]],
    "1e999",
    "[",
    -(2.0**40),
]


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def with_junk(value, path, junk):
    if not path:
        return junk
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = junk
    return changed


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("otel", {"spans": [span(0), span(1, parent_span_id="s0")]}),
        ("otel", OTLP),
        ("sharegpt", CHATS),
        ("sweagent", TRAJECTORY),
        ("dynamo", DYNAMO),
        ("tracelab", tracelab(0)),
        ("mooncake", mooncake(0)),
        ("mooncake-delta", {**mooncake(0), "session_id": "a"}),
    ],
    ids=["otel", "otlp", "sharegpt", "sweagent", "dynamo", "tracelab", "mooncake", "mooncake-delta"],
)
def test_junk_in_any_place_is_read_or_refused_in_a_sentence(tmp_path, name, document):
    """A traceback for one odd value in a gigabyte, or a trace that breaks a rule, must come from none of them."""
    for path in places(document):
        for junk in JUNK:
            file = put(tmp_path / "junk", json.dumps(with_junk(document, path, junk)).encode())
            try:
                trace = read_trace(file, name, 16 if name == "dynamo" else None)
            except TraceError as error:
                assert "\n" not in str(error)
            else:
                write_trace(trace, tmp_path / "t.trace.jsonl")
                if trace.content is not None:
                    write_content(trace.content, tmp_path / "t.content.jsonl.zst")
                    assert len(messages_of(read_content_file(tmp_path / "t.content.jsonl.zst"))) == len(trace.rows)
