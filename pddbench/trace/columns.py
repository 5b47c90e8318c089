"""A canonical trace as columns: about 100 bytes a request where rows take a kilobyte, and checked all at once.

For traces of any length: `validate`, `stats`, `oracle` and `convert` work on these. A file is read batch by batch; the
rules are those of `trace.validate`, looked up for whole columns, and the sentence about a row that breaks one is made
by the very checks that read row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pddbench.errors import TraceError
from pddbench.trace.canonical import read_header
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.parquet import as_batch, iter_parquet, schema
from pddbench.trace.source import PARQUET_MAGIC, decode, head, numbered_lines
from pddbench.trace.units import MOST_S
from pddbench.trace.validate import check_numbers, check_row

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_BATCH_ROWS = 32_768
_NUMBERS = ("turn", "input_tokens", "output_tokens", "prefix_tokens")


@dataclass
class Columns:
    """A trace: its header, its rows as an Arrow table (`trace.parquet.schema`), and the same as numbers.

    `donor` is the index of `prefix_of` (-1: none); `parent_row`, `parent` are the pairs (row, index of its parent).
    """

    header: Header
    table: pa.Table
    input_tokens: Ints
    output_tokens: Ints
    prefix_tokens: Ints
    donor: Ints
    parent_row: Ints
    parent: Ints

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def sessions(self) -> int:
        """Number of different session ids."""
        return len(pc.unique(self.table["session_id"]))

    def seconds(self, name: str) -> npt.NDArray[np.float64]:
        """`start_s` or `gap_s`, NaN where it is not known."""
        return _floats(self.table[name])

    def rows(self) -> Iterator[Row]:
        """The rows one by one."""
        for batch in self.table.to_batches(max_chunksize=_BATCH_ROWS):
            yield from msgspec.convert(batch.to_pylist(), list[Row])

    def row(self, index: int) -> Row:
        """One row."""
        return msgspec.convert(self.table.slice(index, 1).to_pylist()[0], Row)


def read_columns(path: Path) -> Columns:
    """The trace in a canonical file, every rule checked; `TraceError` names file, line (Parquet: row) and field."""
    if head(path).startswith(PARQUET_MAGIC):
        header, batches = iter_parquet(path)
        return _checked(header, pa.Table.from_batches(list(batches), schema()), path, first_line=1)
    lines = numbered_lines(path)
    header = read_header(next(lines)[1], path)
    decoder = msgspec.json.Decoder(Row)
    rows = (decode(decoder, raw, path, number) for number, raw in lines)
    return _checked(header, _table(rows, path, first_line=2), path, first_line=2)


def columns_of(trace: Trace) -> Columns:
    """A trace in memory as columns; its rows keep the rules."""
    return _numbers(trace.header, _table(iter(trace.rows), "trace", 1))


def _table(rows: Iterator[Row], path: Path | str, first_line: int) -> pa.Table:
    """Rows as a table, some at a time."""
    batches, at = [], first_line
    while batch := list(islice(rows, _BATCH_ROWS)):
        try:
            batches.append(as_batch(batch))
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            for line, row in enumerate(batch, start=at):
                check_numbers(row, partial(TraceError, path, line))
            raise
        at += len(batch)
    return pa.Table.from_batches(batches, schema())


def _checked(header: Header, table: pa.Table, path: Path, first_line: int) -> Columns:
    if not table.num_rows:
        raise TraceError(path, 2 if first_line == 2 else None, None, "there is a header but no request")
    columns = _numbers(header, table)
    bad = _first_bad(columns)
    if bad is not None:
        _explain(columns, bad, path, first_line)
    return columns


def _numbers(header: Header, table: pa.Table) -> Columns:
    """The columns that are computed with, and names as row numbers (-1: not in the file)."""
    ids = table["request_id"].combine_chunks()
    counts = _ints(pc.list_value_length(table["parents"]))
    inputs, outputs, prefixes = (_ints(table[name]) for name in ("input_tokens", "output_tokens", "prefix_tokens"))
    return Columns(
        header=header,
        table=table,
        input_tokens=inputs,
        output_tokens=outputs,
        prefix_tokens=prefixes,
        donor=_places(table["prefix_of"], ids),
        parent_row=np.repeat(np.arange(table.num_rows, dtype=np.int64), counts),
        parent=_places(pc.list_flatten(table["parents"]), ids),
    )


def _places(names: Any, ids: Any) -> Ints:
    """Row number of each name; -1 where there is none, or no such row."""
    return _ints(pc.fill_null(pc.index_in(names, value_set=ids), -1))


def _ints(column: Any) -> Ints:
    found: Ints = column.to_numpy().astype(np.int64)
    return found


def _floats(column: Any) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = pc.cast(column, pa.float64()).to_numpy().astype(np.float64)
    return found


def _first_bad(columns: Columns) -> int | None:
    """The first row that breaks a rule; all rules of `trace.validate` at once."""
    n = len(columns)
    bad = np.zeros(n, dtype=np.bool_)
    table, here = columns.table, np.arange(n, dtype=np.int64)
    bad |= _repeated(table["request_id"])
    for name in ("request_id", "session_id", "kind"):
        bad |= _ints(pc.binary_length(table[name])) == 0
    for name in _NUMBERS:
        bad |= _ints(table[name]) < 0
    start_s, gap_s = columns.seconds("start_s"), columns.seconds("gap_s")
    for name, seconds in (("start_s", start_s), ("gap_s", gap_s)):
        given = table[name].is_valid().to_numpy()
        bad |= given & ~(np.abs(seconds) <= MOST_S)
    known = table["start_s"].is_valid().to_numpy()
    has_parents = np.zeros(n, dtype=np.bool_)
    has_parents[columns.parent_row] = True
    bad |= (known & (start_s < 0)) | (~has_parents & ~known)
    bad[columns.parent_row[_bad_parents(columns)]] = True
    named, donor = table["prefix_of"].is_valid().to_numpy(), columns.donor
    bad |= np.where(named, (donor < 0) | (donor >= here), columns.prefix_tokens != 0)
    bad |= named & (columns.prefix_tokens > columns.input_tokens)
    context = columns.input_tokens[donor] + columns.output_tokens[donor]
    bad |= named & (donor >= 0) & (columns.prefix_tokens > context)
    return int(np.argmax(bad)) if bad.any() else None


def _repeated(names: Any) -> Bools:
    """Where a name was there before."""
    codes = _ints(names.combine_chunks().dictionary_encode().indices)
    repeated = np.ones(len(codes), dtype=np.bool_)
    repeated[np.unique(codes, return_index=True)[1]] = False
    return repeated


def _bad_parents(columns: Columns) -> Bools:
    """By pair (row, parent): the parent is not earlier, not of the same session, or named twice."""
    row, parent = columns.parent_row, columns.parent
    session = _ints(columns.table["session_id"].combine_chunks().dictionary_encode().indices)
    bad = (parent < 0) | (parent >= row) | (session[parent] != session[row])
    pairs = row * (len(columns) + 1) + parent
    twice = np.ones(len(pairs), dtype=np.bool_)
    twice[np.unique(pairs, return_index=True)[1]] = False
    found: Bools = bad | twice
    return found


def _explain(columns: Columns, bad: int, path: Path, first_line: int) -> None:
    """Raise what the check of single rows says of a row."""
    row = columns.row(bad)
    names = list({row.request_id, *row.parents, *([row.prefix_of] if row.prefix_of is not None else [])})
    places = dict(zip(names, _places(pa.array(names), columns.table["request_id"].combine_chunks()), strict=True))
    earlier = {name: columns.row(int(place)) for name, place in places.items() if 0 <= place < bad}
    known = {name for name, place in places.items() if place >= 0}
    check_row(row, earlier, known, partial(TraceError, path, first_line + bad))
    raise AssertionError(f"row {bad} was found bad as a column and good as a row")
