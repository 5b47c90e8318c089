"""Formats seen from the content, and files that are none: one sentence each, nothing skipped."""

import gzip
import json

import pyarrow as pa
import pytest

from pddbench.errors import InputError, TraceError
from pddbench.trace.canonical import SUFFIXES, write_trace
from pddbench.trace.read import read_trace, sha256_of
from pddbench.trace.synth import agentic_small

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}'
WEKA = {"id": "w", "block_size": 64, "requests": [{"t": 0, "in": 70, "out": 2, "hash_ids": [1]}]}


def put(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def zstd(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
@pytest.mark.parametrize(
    ("content", "format_name"),
    [(LINE, "mooncake"), (json.dumps(WEKA), "weka"), (json.dumps(WEKA, indent=2), "weka")],
)
def test_formats_are_seen_from_the_content(tmp_path, content, format_name, pack):
    """Suffixes lie; gzip and zstd are seen by their first bytes, one line is a file."""
    path = put(tmp_path / "some.file", pack(content.encode()))
    assert read_trace(path).header.source_format == format_name
    assert read_trace(str(path), format_name).rows == read_trace(path).rows


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_canonical_files_are_seen_too(tmp_path, suffix):
    """All four forms open by the same call."""
    trace = agentic_small(3)
    write_trace(trace, tmp_path / f"t{suffix}")
    assert read_trace(tmp_path / f"t{suffix}") == trace


def test_byte_order_mark_is_no_data(tmp_path):
    """Windows tools put it in front; it must neither break the first line nor hide the format."""
    assert len(read_trace(put(tmp_path / "t", b"\xef\xbb\xbf" + LINE.encode())).rows) == 1
    assert len(read_trace(put(tmp_path / "w", b"\xef\xbb\xbf" + json.dumps(WEKA).encode())).rows) == 1


def test_empty_lines_at_the_end_only(tmp_path):
    """A final empty line is common; one in the middle may be a lost request."""
    assert len(read_trace(put(tmp_path / "t", f"{LINE}\n\n\n")).rows) == 1
    with pytest.raises(TraceError, match="empty, though others follow") as caught:
        read_trace(put(tmp_path / "t", f"{LINE}\n\n{LINE}\n"))
    assert caught.value.line == 2


@pytest.mark.parametrize(
    "broken", [LINE[:40], LINE + "x", "[]", "null", '{"timestamp": NaN}', '"\\ud800"', "[" * 100000]
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_broken_line_17(tmp_path, broken, pack):
    """A reader that goes on after a broken line replays another workload."""
    path = put(tmp_path / "t", pack("\n".join([LINE] * 16 + [broken] + [LINE] * 8).encode()))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.line == 17 and str(caught.value).startswith(f"{path}:17: ")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (b"\n\n", "nothing but empty lines"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Git LFS pointer"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "binary data"),
        (bytes(range(128, 256)) * 40, "neither JSON nor"),
        (LINE.encode("utf-16"), "UTF-16"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "a header but no request"),
        (b'{"a": 1}\n{"a": 2}\n', r"unknown trace format \(fields: a\)"),
        (b"[1, 2]", "holds no objects"),
        (b"[]", "fields: none"),
        (b'[{"a": 1}]', "fields: a"),
        (b"0,1.33,8.59,Weibull,0.3,0.4\n", "ServeGen"),
        (b"When,Prompt\n1,2\n", "neither JSON nor the header"),
        (b'{"timestamp": 1, "event": {"schema": "dynamo.request.trace.v1"}}\n', "request_trace_to_mooncake"),
        (b"{}", r"fields: none"),
        (b'{"timestamp": 0, \n', "not valid JSON"),
        (gzip.compress(LINE.encode() * 900)[:-30], "cannot be read or decompressed"),
        (zstd(LINE.encode() * 900)[:-9], "cannot be read or decompressed"),
        (b"\x28\xb5\x2f\xfdjunk that is no zstd frame", "cannot be read or decompressed"),
        (b'{"request_id": "a", "input_tokens": 3}', "must be the header"),
    ],
)
def test_what_is_no_trace_is_told_in_a_sentence(tmp_path, content, problem):
    """Each was met in public data sets; a traceback or an empty run would follow."""
    path = put(tmp_path / "t", content)
    with pytest.raises(TraceError, match=problem) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_missing_file_and_directory(tmp_path):
    """A typing error in a path is the commonest of all."""
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "nothing")
    with pytest.raises(TraceError, match=r"no \*\.json"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="directory"):
        read_trace(tmp_path, "mooncake")


def test_named_format_is_kept_to(tmp_path):
    """A format that was named is not changed behind the user's back, and a misspelt one gets a hint."""
    path = put(tmp_path / "t", LINE)
    with pytest.raises(TraceError, match="field 'requests': is missing"):
        read_trace(path, "weka")
    with pytest.raises(InputError, match="did you mean 'mooncake'"):
        read_trace(path, "moonckae")


def test_text_from_a_file_cannot_drive_the_terminal(tmp_path):
    """Field names are shown in errors; escape sequences in them must not reach the terminal."""
    with pytest.raises(TraceError) as caught:
        read_trace(put(tmp_path / "t", json.dumps({"\x1b[31mred\x1b[0m": 1})))
    assert "\x1b" not in str(caught.value)


def test_identity_of_a_file_and_of_a_folder(tmp_path):
    """The manifest names the very bytes that were replayed; of a folder, the names and bytes of its files."""
    path = put(tmp_path / "w.json", json.dumps(WEKA))
    assert sha256_of(path) == read_trace(path).header.source_sha256
    before = sha256_of(tmp_path)
    assert before == read_trace(tmp_path).header.source_sha256 != sha256_of(path)
    put(tmp_path / "v.json", json.dumps({**WEKA, "id": "v"}))
    assert sha256_of(tmp_path) != before
