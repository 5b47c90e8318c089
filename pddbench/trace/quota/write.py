"""Write rows as they come: a trace of any length, in the memory of one batch."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from pddbench.errors import InputError
from pddbench.trace.canonical import check_suffix, replacing, write_header
from pddbench.trace.model import Header, Row

_BATCH_ROWS = 16_384


def write_rows(header: Header, rows: Iterable[Row], path: Path | str) -> int:
    """Write a canonical trace by suffix; the file appears when it is complete. Returns the number of rows.

    The rows must keep the rules of `validate_rows`: only the whole trace could be checked.
    """
    path = Path(path)
    check_suffix(path)
    counter = _Counter(rows)
    try:
        with replacing(path) as file:
            if path.suffix == ".parquet":
                _write_parquet(header, iter(counter), file)
            else:
                _write_lines(header, iter(counter), file, path.suffix)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    return counter.count


class _Counter:
    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self.count += 1
            yield row


def _write_lines(header: Header, rows: Iterator[Row], file: IO[bytes], suffix: str) -> None:
    packed = _packed(file, suffix)
    packed.write(write_header(header) + b"\n")
    encoder = msgspec.json.Encoder()
    while batch := list(islice(rows, _BATCH_ROWS)):
        packed.write(encoder.encode_lines(batch))
    if packed is not file:
        packed.close()


def _packed(file: IO[bytes], suffix: str) -> IO[bytes]:
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0))
    if suffix == ".zst":
        import pyarrow as pa

        return cast(IO[bytes], pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd"))
    return file


def _write_parquet(header: Header, rows: Iterator[Row], file: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pddbench.trace.parquet import HEADER_KEY, schema

    typed = schema().with_metadata({HEADER_KEY: write_header(header)})
    with pq.ParquetWriter(file, typed, compression="zstd") as writer:
        while batch := list(islice(rows, _BATCH_ROWS)):
            columns = [_fields(row) for row in batch]
            writer.write_table(pa.Table.from_pylist(columns, schema=typed))


def _fields(row: Row) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "parents": list(row.parents)}
