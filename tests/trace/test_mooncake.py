"""The Mooncake reader."""

import gzip
import json

import pytest

from pddbench.errors import TraceError
from pddbench.trace.hits import planned_hits
from pddbench.trace.mooncake import read_mooncake


def write(path, lines, ending="\n"):
    path.write_bytes(b"".join(json.dumps(line).encode() + ending.encode() for line in lines))
    return path


def line(timestamp, tokens, output, ids):
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": ids}


FIVE = [
    line(0, 1300, 20, [0, 1, 2]),
    line(0, 1536, 1, [0, 1, 3]),
    line(3053, 1320, 7, [0, 1, 4]),
    line(3053, 2100, 9, [0, 1, 3, 5, 6]),
    line(1000, 1, 0, [7]),
]


def test_times_order_and_names(tmp_path):
    """Milliseconds become seconds, equal times keep the order of the file, and names lead back to its lines."""
    trace = read_mooncake(write(tmp_path / "t.jsonl", FIVE))
    assert [row.request_id for row in trace.rows] == ["L1", "L2", "L5", "L3", "L4"]
    assert [row.start_s for row in trace.rows] == [0, 0, 1.0, 3.053, 3.053]
    assert all(row.session_id == row.request_id and row.parents == () for row in trace.rows)
    assert any("not ascending" in text for text in trace.header.assumptions)
    assert trace.header.counts == {"zero_outputs": 1}
    assert planned_hits(trace.rows).tolist() == [0, 1024, 0, 1024, 1536]


def test_id_count_that_does_not_fit_is_said(tmp_path):
    """Another block size than 512 would pass unseen and give a wrong hit rate."""
    lines = [line(0, 1300, 20, [0]), line(0, 100, 20, [0, 1, 2]), line(5, 1300, 20, [0])]
    trace = read_mooncake(write(tmp_path / "t.jsonl", lines))
    assert trace.header.counts["id_count_mismatches"] == 3
    assert any(text.startswith("warning: 3 rows") for text in trace.header.assumptions)
    assert [row.prefix_tokens for row in trace.rows] == [0, 100, 512]


@pytest.mark.parametrize(
    ("step_ms", "word"), [(0.25, "implausibly fast"), (1e8, "implausibly slow"), (500, "2 a second")]
)
def test_unit_of_time_is_doubted(tmp_path, step_ms, word):
    """Seconds read as milliseconds (or the reverse) run a thousand times too fast or slow without a word."""
    lines = [line(i * step_ms, 10, 1, [i]) for i in range(5)]
    trace = read_mooncake(write(tmp_path / "t.jsonl", lines))
    assert word in trace.header.assumptions[0]
    assert trace.header.assumptions[0].startswith("warning") == ("implausibly" in word)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"timestamp": "0"}, "timestamp"),
        ({"timestamp": -1}, "timestamp"),
        ({"input_length": 1.5}, "input_length"),
        ({"input_length": -1}, "input_length"),
        ({"output_length": True}, "output_length"),
        ({"output_length": 2**31}, "output_length"),
        ({"hash_ids": None}, "hash_ids"),
        ({"hash_ids": [1, "2"]}, "hash_ids[1]"),
        ({"priority": 3}, "priority"),
        ({"session_id": "a"}, "session_id"),
    ],
)
def test_bad_field_is_named(tmp_path, bad, field):
    """A field that is not understood must not be guessed at or dropped."""
    path = write(tmp_path / "t.jsonl", [*FIVE, {**FIVE[0], **bad}])
    with pytest.raises(TraceError) as caught:
        read_mooncake(path)
    assert (caught.value.line, caught.value.field) == (6, field)
    assert str(caught.value).startswith(f"{path}:6: field ")


def test_sessions_are_not_taken_for_whole_prompts(tmp_path):
    """Rows of sessions are increments in some tools; read as whole prompts they are a different workload."""
    path = write(tmp_path / "t.jsonl", [{**FIVE[0], "session_id": "a"}])
    with pytest.raises(TraceError, match="increments"):
        read_mooncake(path)


@pytest.mark.parametrize("field", ["timestamp", "input_length", "output_length"])
def test_missing_field_is_named(tmp_path, field):
    """Absent times and lengths must not become 0."""
    path = write(tmp_path / "t.jsonl", [FIVE[0], {k: v for k, v in FIVE[1].items() if k != field}])
    with pytest.raises(TraceError, match="is missing") as caught:
        read_mooncake(path)
    assert (caught.value.line, caught.value.field) == (2, field)


def test_rows_without_ids_are_said(tmp_path):
    """AIPerf leaves ids out where nothing is shared; a reader that took it for a mistake could not read its files."""
    trace = read_mooncake(
        write(tmp_path / "t.jsonl", [FIVE[0], {"timestamp": 0, "input_length": 9, "output_length": 1}])
    )
    assert trace.header.counts == {"rows_without_ids": 1}
    assert trace.rows[1].prefix_of is None and any("wholly fresh" in text for text in trace.header.assumptions)


def test_block_size_may_be_given(tmp_path):
    """Other engines write other blocks; read as 512 they would give a wrong hit rate."""
    trace = read_mooncake(write(tmp_path / "t.jsonl", [line(0, 60, 2, [1, 2]), line(1, 60, 2, [1, 3])]), 32)
    assert trace.rows[1].prefix_tokens == 32 and trace.header.block_tokens == 32 and not trace.header.counts


def test_gzip_crlf_and_no_final_newline(tmp_path):
    """Files come like this from other systems; the content is the same."""
    plain = read_mooncake(write(tmp_path / "a.jsonl", FIVE)).rows
    crlf = write(tmp_path / "b.jsonl", FIVE, "\r\n")
    crlf.write_bytes(crlf.read_bytes().rstrip())
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert read_mooncake(crlf).rows == read_mooncake(packed).rows == plain


def test_real_extracts(data):
    """The published figures of the extract, exactly, and the same from a plain set of id prefixes."""
    for name, want in (("conversation_first1500", (1500, 20_981_721, 5_663_986)), ("synthetic_first600", None)):
        path = data / "mooncake" / f"{name}.jsonl"
        trace = read_mooncake(path)
        found = (len(trace.rows), sum(r.input_tokens for r in trace.rows), int(planned_hits(trace.rows).sum()))
        seen, hits = set(), 0
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        for item in sorted(lines, key=lambda item: item["timestamp"]):
            prefixes = [tuple(item["hash_ids"][: k + 1]) for k in range(len(item["hash_ids"]))]
            hits += min(512 * sum(prefix in seen for prefix in prefixes), item["input_length"])
            seen.update(prefixes)
        assert found == (len(lines), sum(item["input_length"] for item in lines), hits)
        assert want is None or found == want


def test_made_up_traps(data):
    """Our own file of traps, plain and packed."""
    plain = read_mooncake(data / "synthetic" / "mooncake_traps.jsonl")
    packed = read_mooncake(data / "synthetic" / "mooncake_traps.jsonl.gz")
    assert plain.rows == packed.rows
    assert planned_hits(plain.rows).sum() == 3584
