"""The canonical trace: lossless files, and every rule with file, line and field."""

import gzip
import json

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pddbench.errors import InputError, TraceError
from pddbench.trace import source
from pddbench.trace.canonical import SUFFIXES, read_canonical, write_trace
from pddbench.trace.columns import columns_of, read_columns
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.parquet import HEADER_KEY, schema
from pddbench.trace.synth import agentic_small

ROWS = [
    Row("a0", "a", 0, 100, 10, start_s=0.25),
    Row("a1", "a", 1, 120, 0, ("a0",), None, 1.5, "a0", 105, "tool"),
    Row("a2", "a", 1, 50, 3, ("a0",), 2.0, None, "a1", 50, "subagent"),
    Row("a3", "a", 2, 130, 3, ("a1", "a2"), None, -0.5, "a1", 120, "user"),
    Row("b0", "b", 0, 7, 0, start_s=1e-3),
]
HEADER = Header(source="x", licence="CC", assumptions=["zwölf"], counts={"n": 3}, extra={"deep": [1, {"k": None}]})


def read_both(path):
    """The trace row by row; in columns it must be the same, and refused in the same words."""
    try:
        trace = read_canonical(path)
    except TraceError as error:
        with pytest.raises(TraceError) as caught:
            read_columns(path)
        assert str(caught.value) == str(error)
        assert (caught.value.line, caught.value.field) == (error.line, error.field)
        raise
    columns = read_columns(path)
    assert list(columns.rows()) == trace.rows and columns.header == trace.header
    return trace


def put(path, rows, header=None):
    """A JSONL file as a stranger would write it, rules kept or not."""
    lines = [{"schema_version": 1} if header is None else header, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def plain(row, **change):
    return {**msgspec.to_builtins(row), **change}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_written_and_read_again_is_the_same(tmp_path, suffix):
    """What is lost in a file is lost for every later run."""
    path = tmp_path / f"t.trace{suffix}"
    write_trace(Trace(HEADER, ROWS), path)
    assert read_both(path) == Trace(HEADER, ROWS)
    assert list(tmp_path.iterdir()) == [path]


TEXT = st.text(min_size=1, max_size=8)
SECONDS = st.floats(0, 1e9, allow_nan=False)
ROOT = st.builds(
    Row,
    request_id=TEXT,
    session_id=TEXT,
    turn=st.integers(0, 2**31 - 1),
    input_tokens=st.integers(0, 2**31 - 1),
    output_tokens=st.integers(0, 2**31 - 1),
    start_s=SECONDS,
    gap_s=st.none() | st.floats(-1e9, 1e9),
    kind=TEXT,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ROOT, min_size=1, max_size=4, unique_by=lambda row: row.request_id), st.sampled_from(SUFFIXES))
def test_any_text_and_number_survives(tmp_path, rows, suffix):
    """Names with quotes, newlines or emoji, and floats to the last digit."""
    path = tmp_path / f"t{suffix}"
    write_trace(Trace(Header(), rows), path)
    assert read_both(path).rows == rows


def test_header_always_says_its_version(tmp_path):
    """A file of defaults would otherwise begin with `{}` and be no trace for anybody."""
    write_trace(Trace(Header(), ROWS), tmp_path / "t.jsonl")
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0]) == {"schema_version": 1}


BROKEN = [
    ({"request_id": "a0"}, "request_id", "already used"),
    ({"request_id": ""}, "request_id", "empty"),
    ({"session_id": ""}, "session_id", "empty"),
    ({"kind": ""}, "kind", "empty"),
    ({"turn": -1}, "turn", "not between"),
    ({"input_tokens": -1}, "input_tokens", "not between"),
    ({"output_tokens": 2**31}, "output_tokens", "not between"),
    ({"prefix_tokens": -1}, "prefix_tokens", "not between"),
    ({"prefix_tokens": 131}, "prefix_tokens", "input tokens"),
    ({"prefix_tokens": 121, "prefix_of": "a1"}, "prefix_tokens", "more than the 120 \\+ 0 tokens"),
    ({"prefix_of": "zz"}, "prefix_of", "not in the file"),
    ({"prefix_of": "b0"}, "prefix_of", "comes later"),
    ({"prefix_of": "a3"}, "prefix_of", "the row itself"),
    ({"prefix_of": None}, "prefix_tokens", "names no request"),
    ({"parents": ["zz"]}, "parents", "not in the file"),
    ({"parents": ["a3"]}, "parents", "the row itself"),
    ({"parents": ["b0"]}, "parents", "comes later"),
    ({"parents": ["a1", "a1"]}, "parents", "twice"),
    ({"parents": ["a1"], "session_id": "c"}, "parents", "another session"),
    ({"parents": []}, "start_s", "a root"),
    ({"start_s": -0.1}, "start_s", "before the trace's zero"),
    ({"start_s": 1e300}, "start_s", "not a number of seconds"),
    ({"gap_s": -1e300}, "gap_s", "not a number of seconds"),
]


FITS_32_BITS = [case for case in BROKEN if 2**31 not in case[0].values()]  # a column of Parquet cannot hold others


@pytest.mark.parametrize(
    ("change", "field", "problem", "suffix"),
    [(*case, ".jsonl") for case in BROKEN] + [(*case, ".parquet") for case in FITS_32_BITS],
)
def test_each_rule_names_line_and_field(tmp_path, change, field, problem, suffix):
    """A broken trace that is replayed anyway makes a workload nobody described."""
    rows = [plain(row) for row in ROWS]
    rows[3].update(change)
    path = tmp_path / f"t{suffix}"
    if suffix == ".jsonl":
        put(path, rows)
    else:
        table = pa.Table.from_pylist(rows, schema=schema().with_metadata({HEADER_KEY: b'{"schema_version":1}'}))
        pq.write_table(table, path)
    with pytest.raises(TraceError, match=problem) as caught:
        read_both(path)
    assert (caught.value.line, caught.value.field) == (5 if suffix == ".jsonl" else 4, field)


def test_parents_may_not_form_a_cycle(tmp_path):
    """Two rows that wait for each other would hang the replay."""
    rows = [
        plain(ROWS[0]),
        plain(ROWS[1], parents=["a2"], prefix_of=None, prefix_tokens=0),
        plain(ROWS[2], parents=["a1"]),
    ]
    with pytest.raises(TraceError, match="comes later") as caught:
        read_both(put(tmp_path / "t.jsonl", rows))
    assert (caught.value.line, caught.value.field) == (3, "parents")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"turn": "1"}, "turn"),
        ({"hash_ids": []}, "hash_ids"),
        ({"parents": [1]}, "parents[0]"),
        ({"kind": None}, "kind"),
    ],
)
def test_wrong_types_and_unknown_fields(tmp_path, change, field):
    """An unknown column may be the one that mattered."""
    with pytest.raises(TraceError) as caught:
        read_both(put(tmp_path / "t.jsonl", [plain(ROWS[0], **change)]))
    assert (caught.value.line, caught.value.field) == (2, field)


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"source": "x"}, "schema_version"),
        ({"schema_version": 1, "owner": 1}, "owner"),
    ],
)
def test_headers_that_are_not_understood(tmp_path, header, field):
    """A later version may mean other things by the same columns."""
    with pytest.raises(TraceError) as caught:
        read_both(put(tmp_path / "t.jsonl", [plain(ROWS[0])], header))
    assert (caught.value.line, caught.value.field) == (1, field)


def test_header_alone(tmp_path):
    """A trace without requests is told as such."""
    with pytest.raises(TraceError, match="no request"):
        read_both(put(tmp_path / "t.jsonl", []))


def test_parquet_of_somebody_else(tmp_path):
    """A Parquet file without our header, with a column missing or with one more, is told by name."""
    good = pa.Table.from_pylist([plain(ROWS[0])], schema=schema().with_metadata({HEADER_KEY: b'{"schema_version":1}'}))
    path = tmp_path / "t.parquet"
    for table, text in (
        (good.replace_schema_metadata(None), "no trace header"),
        (good.drop_columns(["kind"]), "field 'kind': the column is missing"),
        (good.append_column("more", pa.array([1])), "field 'more'"),
        (good.slice(0, 0), "no request"),
    ):
        pq.write_table(table, path)
        with pytest.raises(TraceError, match=text):
            read_both(path)
    path.write_bytes(b"PAR1 and then junk")
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        read_both(path)


def test_not_a_number_is_no_time(tmp_path):
    """Parquet can hold NaN where JSON cannot; no timer can be set to it."""
    rows = [plain(ROWS[0], start_s=float("nan"))]
    table = pa.Table.from_pylist(rows, schema=schema().with_metadata({HEADER_KEY: b'{"schema_version":1}'}))
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TraceError, match="nan is not a number of seconds") as caught:
        read_both(tmp_path / "t.parquet")
    assert (caught.value.line, caught.value.field) == (1, "start_s")


def test_writing_keeps_what_was_there_when_it_fails(tmp_path):
    """A conversion that breaks half way must not leave half a file, nor eat the old one."""
    path = tmp_path / "t.jsonl"
    path.write_text("precious")
    with pytest.raises(TraceError):
        write_trace(Trace(Header(), [ROWS[1]]), path)
    with pytest.raises(TypeError):
        write_trace(Trace(Header(extra={"x": object()}), [ROWS[0]]), path)
    assert path.read_text() == "precious" and list(tmp_path.iterdir()) == [path]


def test_unusable_outputs(tmp_path):
    """A wrong suffix and a missing directory are told in a sentence."""
    with pytest.raises(InputError, match="unknown suffix"):
        write_trace(agentic_small(1), tmp_path / "t.csv")
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(agentic_small(1), tmp_path / "no" / "t.jsonl")


@pytest.mark.parametrize("limit", ["MOST_LINE_BYTES", "MOST_CONTENT_BYTES"])
def test_a_small_file_cannot_fill_the_memory(tmp_path, monkeypatch, limit):
    """A few kilobytes of gzip can hold a line or a document of gigabytes: a sentence, not a MemoryError."""
    monkeypatch.setattr(source, limit, 1000)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"x": "' + b"a" * 5000 + b'"}\n'))
    reader = source.read_content if limit == "MOST_CONTENT_BYTES" else lambda p: list(source.numbered_lines(p))
    with pytest.raises(TraceError, match="MiB"):
        reader(path)


LOOSE = st.builds(
    Row,
    request_id=st.sampled_from(["a", "b", "c", "d", ""]),
    session_id=st.sampled_from(["s", "t"]),
    turn=st.integers(-1, 2),
    input_tokens=st.integers(0, 5),
    output_tokens=st.integers(0, 3),
    parents=st.lists(st.sampled_from(["a", "b", "zz"]), max_size=2).map(tuple),
    start_s=st.sampled_from([None, 0.0, 1.0, -1.0, 1e12]),
    gap_s=st.sampled_from([None, 0.0, -2.0]),
    prefix_of=st.sampled_from([None, "a", "b", "c", "zz"]),
    prefix_tokens=st.integers(0, 6),
    kind=st.sampled_from(["root", "tool"]),
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LOOSE, min_size=1, max_size=5), st.sampled_from([".jsonl", ".parquet"]))
def test_columns_and_rows_are_checked_alike(tmp_path, rows, suffix):
    """Long traces are checked as columns: a rule that only one way knows would let through what the other refuses."""
    path = tmp_path / f"t{suffix}"
    if suffix == ".jsonl":
        put(path, [plain(row) for row in rows])
    else:
        named = schema().with_metadata({HEADER_KEY: b'{"schema_version":1}'})
        pq.write_table(pa.Table.from_pylist([plain(row) for row in rows], schema=named), path)
    try:
        read_both(path)
    except TraceError as error:
        assert str(error).startswith(str(path))


@pytest.mark.parametrize(
    "change", [{"request_id": None}, {"turn": None}, {"parents": [None]}, {"turn": 1.5}, {"start_s": "1"}]
)
def test_parquet_of_other_types_is_refused_in_the_words_of_its_row(tmp_path, change):
    """Columns are taken as they are only if they are of our types and hold no null where none may be."""
    rows = [plain(ROWS[0], **change), plain(ROWS[1], **change)]
    table = pa.Table.from_pylist(rows).replace_schema_metadata({HEADER_KEY: b'{"schema_version":1}'})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TraceError) as caught:
        read_both(tmp_path / "t.parquet")
    assert caught.value.line == 1 and caught.value.field.startswith(next(iter(change)))


def test_a_trace_in_memory_as_columns(tmp_path):
    """What other formats are read into goes the same way as a canonical file."""
    columns = columns_of(Trace(HEADER, ROWS))
    assert list(columns.rows()) == ROWS and columns.sessions == 2
    assert columns.donor.tolist() == [-1, 0, 1, 1, -1]
    pairs = zip(columns.parent_row.tolist(), columns.parent.tolist(), strict=True)
    assert list(pairs) == [(1, 0), (2, 0), (3, 1), (3, 2)]
