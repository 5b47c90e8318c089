"""The canonical trace as Parquet: a column a field, the header as JSON in the schema's metadata."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pddbench.errors import TraceError
from pddbench.text import printable
from pddbench.trace.canonical import read_header, write_header
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.source import explain
from pddbench.trace.validate import check_numbers, validate_rows

HEADER_KEY = b"pddbench.trace.header"
_BATCH_ROWS = 65536
_NAMES = Row.__struct_fields__
_fields = attrgetter(*_NAMES)


def schema() -> pa.Schema:
    """Columns and types (DESIGN: the canonical trace)."""
    return pa.schema(
        [
            pa.field("request_id", pa.string(), nullable=False),
            pa.field("session_id", pa.string(), nullable=False),
            pa.field("turn", pa.int32(), nullable=False),
            pa.field("input_tokens", pa.int32(), nullable=False),
            pa.field("output_tokens", pa.int32(), nullable=False),
            pa.field("parents", pa.list_(pa.string()), nullable=False),
            pa.field("start_s", pa.float64()),
            pa.field("gap_s", pa.float64()),
            pa.field("prefix_of", pa.string()),
            pa.field("prefix_tokens", pa.int32(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
        ]
    )


def write_parquet(trace: Trace, file: IO[bytes]) -> None:
    """Write all rows, compressed by zstd."""
    rows = [{**msgspec.structs.asdict(row), "parents": list(row.parents)} for row in trace.rows]
    table = pa.Table.from_pylist(rows, schema=schema().with_metadata({HEADER_KEY: write_header(trace.header)}))
    pq.write_table(table, file, compression="zstd")


def read_parquet(path: Path) -> Trace:
    """The trace in a Parquet file; in errors the line is the number of the row, from 1."""
    header, batches = iter_parquet(path)
    rows: list[Row] = []
    for batch in batches:
        rows += [_row(fields, path, len(rows) + i) for i, fields in enumerate(batch.to_pylist(), start=1)]
    if not rows:
        raise TraceError(path, None, None, "there is a header but no request")
    validate_rows(rows, path)
    return Trace(header, rows)


def iter_parquet(path: Path) -> tuple[Header, Iterator[pa.RecordBatch]]:
    """The header and the rows batch by batch, in the types of `schema`; in errors the line is the row's number."""
    with _reading(path), pq.ParquetFile(path) as file:
        metadata = file.schema_arrow.metadata or {}
        if HEADER_KEY not in metadata:
            raise TraceError(path, None, None, f"no trace header ({HEADER_KEY.decode()}) in the schema's metadata")
        _check_columns(file.schema_arrow.names, path)
        return read_header(metadata[HEADER_KEY], path), _batches(path)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    with _reading(path), pq.ParquetFile(path) as file:
        done = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            yield _typed(batch, path, done)
            done += batch.num_rows


def _typed(batch: pa.RecordBatch, path: Path, done: int) -> pa.RecordBatch:
    """A batch in our types; one of other types, or with nulls where none may be, goes through rows and is checked."""
    mine = batch.select(schema().names)
    if mine.schema.types == schema().types and not any(_null(mine.column(f.name)) for f in schema() if not f.nullable):
        return pa.RecordBatch.from_arrays(mine.columns, schema=schema())
    rows = []
    for number, fields in enumerate(batch.to_pylist(), start=done + 1):
        rows.append(_row(fields, path, number))
        check_numbers(rows[-1], partial(TraceError, path, number))
    return as_batch(rows)


def _null(column: pa.Array) -> bool:
    """Whether a value, or an element of a list, is null."""
    inner = column.flatten().null_count if pa.types.is_list(column.type) else 0
    return bool(column.null_count or inner)


def as_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Some rows in the types of `schema`."""
    if not rows:
        return pa.RecordBatch.from_pylist([], schema())
    columns = dict(zip(_NAMES, zip(*map(_fields, rows), strict=True), strict=True))
    return pa.RecordBatch.from_arrays([_array(columns[f.name], f.type) for f in schema()], schema=schema())


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as Arrow. Made of buffers: `pyarrow.array` loads pandas for a list, which takes a second and 45 MB."""
    if pa.types.is_list(kind):
        ends = array("i", accumulate(map(len, values), initial=0))
        names = _array(list(chain.from_iterable(values)), kind.value_type)
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends)], children=[names])
    missing = values.count(None)
    given = [value is not None for value in values] if missing else None
    mask = None if given is None else pa.py_buffer(np.packbits(given, bitorder="little"))
    if pa.types.is_string(kind):
        texts = [b"" if text is None else text.encode() for text in values]
        ends = array("i", accumulate(map(len, texts), initial=0))
        return pa.Array.from_buffers(
            kind, len(values), [mask, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))], missing
        )
    code = "d" if pa.types.is_floating(kind) else "i"
    numbers = array(code, values if given is None else (0 if value is None else value for value in values))
    return pa.Array.from_buffers(kind, len(values), [mask, pa.py_buffer(numbers)], missing)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise TraceError(path, None, None, f"cannot be read as Parquet ({printable(str(error))})") from error


def _check_columns(found: list[str], path: Path) -> None:
    known = schema().names
    for name in known:
        if name not in found:
            raise TraceError(path, None, name, "the column is missing")
    for name in found:
        if name not in known:
            raise TraceError(path, None, name, "the column is not known here")


def _row(fields: dict[str, Any], path: Path, number: int) -> Row:
    try:
        return msgspec.convert(fields, Row)
    except msgspec.ValidationError as error:
        field, problem = explain(str(error))
        raise TraceError(path, number, field, problem) from error
