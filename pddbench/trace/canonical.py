"""Reader and writer of the canonical trace as JSON lines (a header, then a row a line) and as Parquet.

`*.trace.jsonl`, `*.trace.jsonl.gz`, `*.trace.jsonl.zst`, `*.trace.parquet`; both forms hold the same, losslessly.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from pddbench.errors import InputError, TraceError
from pddbench.trace.model import SCHEMA_VERSION, Header, Row, Trace
from pddbench.trace.source import PARQUET_MAGIC, decode, head, numbered_lines
from pddbench.trace.validate import validate_rows

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def read_canonical(path: Path) -> Trace:
    """The trace in a canonical file, every rule checked; `TraceError` names file, line (Parquet: row) and field."""
    if head(path).startswith(PARQUET_MAGIC):
        from pddbench.trace.parquet import read_parquet

        return read_parquet(path)
    lines = numbered_lines(path)
    header = read_header(next(lines)[1], path)
    decoder = msgspec.json.Decoder(Row)
    rows = [decode(decoder, raw, path, number) for number, raw in lines]
    if not rows:
        raise TraceError(path, 2, None, "there is a header but no request")
    validate_rows(rows, path, first_line=2)
    return Trace(header, rows)


def read_header(raw: bytes, path: Path) -> Header:
    """The header in `raw`, the first line; unknown keys and later schema versions are errors."""
    fields = decode(msgspec.json.Decoder(dict[str, Any]), raw, path, 1)
    if "schema_version" not in fields:
        raise TraceError(path, 1, "schema_version", "the first line must be the header, with the schema version")
    known = {field.name for field in msgspec.structs.fields(Header)}
    if unknown := sorted(set(fields) - known):
        raise TraceError(path, 1, unknown[0], "is not known in a header (what is not standard belongs into 'extra')")
    header = decode(msgspec.json.Decoder(Header), raw, path, 1)
    if header.schema_version != SCHEMA_VERSION:
        problem = f"version {header.schema_version} cannot be read; this program knows version {SCHEMA_VERSION}"
        raise TraceError(path, 1, "schema_version", problem)
    return header


def write_header(header: Header) -> bytes:
    """The header as one line of JSON, always with its schema version."""
    return msgspec.json.encode({"schema_version": header.schema_version, **msgspec.to_builtins(header)})


def write_trace(trace: Trace, path: Path | str) -> None:
    """Write by suffix, under a temporary name first: a file of this name is either whole or not there.

    Raises `InputError` for an unknown suffix or a place that cannot be written, `TraceError` for a row that breaks a
    rule. An existing file is replaced; callers ask before.
    """
    path = Path(path)
    write = _writer(path)
    validate_rows(trace.rows, path)
    try:
        with replacing(path) as file:
            write(trace, file)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def check_suffix(path: Path) -> None:
    """Raise `InputError` unless the name of `path` says how to write a trace."""
    if not path.name.endswith(SUFFIXES):
        raise InputError(f"{path}: unknown suffix; a trace is written as one of *.trace{', *.trace'.join(SUFFIXES)}")


def _writer(path: Path) -> Callable[[Trace, IO[bytes]], None]:
    check_suffix(path)
    if path.name.endswith(".parquet"):
        from pddbench.trace.parquet import write_parquet

        return write_parquet
    return {".gz": _write_gzip, ".zst": _write_zstd}.get(path.suffix, _write_lines)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` when all went well."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_lines(trace: Trace, file: IO[bytes]) -> None:
    file.write(write_header(trace.header) + b"\n")
    encoder = msgspec.json.Encoder()
    for row in trace.rows:
        file.write(encoder.encode(row) + b"\n")


def _write_gzip(trace: Trace, file: IO[bytes]) -> None:
    with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
        _write_lines(trace, cast(IO[bytes], packed))


def _write_zstd(trace: Trace, file: IO[bytes]) -> None:
    import pyarrow as pa

    with pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as packed:
        _write_lines(trace, packed)
