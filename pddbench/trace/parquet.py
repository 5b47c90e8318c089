"""The canonical trace as Parquet: a column a field, the header as JSON in the schema's metadata."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pddbench.errors import TraceError
from pddbench.text import printable
from pddbench.trace.canonical import read_header, write_header
from pddbench.trace.model import Row, Trace
from pddbench.trace.source import explain
from pddbench.trace.validate import validate_rows

HEADER_KEY = b"pddbench.trace.header"
_BATCH_ROWS = 65536


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
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata or {}
            if HEADER_KEY not in metadata:
                raise TraceError(path, None, None, f"no trace header ({HEADER_KEY.decode()}) in the schema's metadata")
            header = read_header(metadata[HEADER_KEY], path)
            _check_columns(file.schema_arrow.names, path)
            rows: list[Row] = []
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                rows += [_row(fields, path, len(rows) + i) for i, fields in enumerate(batch.to_pylist(), start=1)]
    except (pa.ArrowException, OSError) as error:
        raise TraceError(path, None, None, f"cannot be read as Parquet ({printable(str(error))})") from error
    if not rows:
        raise TraceError(path, None, None, "there is a header but no request")
    validate_rows(rows, path)
    return Trace(header, rows)


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
