"""A canonical trace as columns: about 100 bytes a request where rows take a kilobyte, and checked all at once.

For traces of any length: `validate`, `stats`, `oracle` and `convert` work on these. A file is read batch by batch; the
rules are those of `trace.validate`, looked up for whole columns, and the sentence about a row that breaks one is made
by the very checks that read row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
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
from pddbench.trace.source import PARQUET_MAGIC, decode, head, line_blocks
from pddbench.trace.units import MOST_S
from pddbench.trace.validate import check_numbers, check_row

Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
_BATCH_ROWS = 32_768
_NUMBERS = ("turn", "input_tokens", "output_tokens", "prefix_tokens")


@dataclass
class Columns:
    """A trace: its header, its rows as an Arrow table (`trace.parquet.schema`), and who is meant by the names in it.

    `donors` is the index of `prefix_of` (-1: none); `parents` are the indices of all rows' parents, one row's behind
    those of another; `again`: where a request id was there before. Numbers are made of the table when asked for.
    """

    header: Header
    table: pa.Table
    donors: Int32s
    parents: Int32s
    again: Bools

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def turn(self) -> Ints:
        """Place in its session, shape (n,)."""
        return _ints(self.table["turn"])

    @property
    def input_tokens(self) -> Ints:
        """Tokens of each prompt, shape (n,)."""
        return _ints(self.table["input_tokens"])

    @property
    def output_tokens(self) -> Ints:
        """Tokens of each reply, shape (n,)."""
        return _ints(self.table["output_tokens"])

    @property
    def prefix_tokens(self) -> Ints:
        """Tokens shared with the donor, shape (n,)."""
        return _ints(self.table["prefix_tokens"])

    @property
    def donor(self) -> Ints:
        """`donors` to compute with, shape (n,)."""
        return self.donors.astype(np.int64)

    @property
    def parent(self) -> Ints:
        """`parents` to compute with: with `parent_row` the pairs (row, index of its parent)."""
        return self.parents.astype(np.int64)

    @property
    def parent_row(self) -> Ints:
        """The row of each of `parents`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.parent_counts)

    @property
    def parent_counts(self) -> Ints:
        """Number of parents of each row, shape (n,)."""
        return _ints(pc.list_value_length(self.table["parents"]))

    @property
    def session(self) -> Int32s:
        """Number of each row's session, in the order in which sessions first occur, shape (n,)."""
        return _codes(self.table["session_id"])

    def keep_first(self, n: int) -> None:
        """Only the first `n` rows; all they name is among them."""
        head = int(self.parent_counts[:n].sum())
        self.table, self.donors, self.parents = self.table.slice(0, n), self.donors[:n], self.parents[:head]
        self.again = self.again[:n]

    def forget_names(self) -> None:
        """Let go of `prefix_of`, and of the names in `parents`: who is meant is known."""
        ends = np.concatenate([[0], np.cumsum(self.parent_counts)]).astype(np.int32)
        nobody = pa.Array.from_buffers(
            pa.list_(pa.null()), len(self), [None, pa.py_buffer(ends)], children=[pa.nulls(len(self.parents))]
        )
        self.table = self.table.drop_columns(["prefix_of", "parents"]).append_column("parents", nobody)
        pa.default_memory_pool().release_unused()

    def forget(self, *names: str) -> None:
        """Let go of some columns."""
        self.table = self.table.drop_columns(list(names))
        pa.default_memory_pool().release_unused()

    @property
    def sessions(self) -> int:
        """Number of different session ids."""
        return len(pc.unique(self.table["session_id"]))

    def seconds(self, name: str) -> npt.NDArray[np.float64]:
        """`start_s` or `gap_s`, NaN where it is not known."""
        found: npt.NDArray[np.float64] = numbers_of(self.table[name], np.float64)
        found[~valid(self.table[name])] = np.nan
        return found

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
    blocks = line_blocks(path)
    lines, first_block = next(blocks)
    header = read_header(first_block, path)
    return _checked(header, _table(_rows(blocks, path), path, first_line=1 + lines), path, first_line=2)


def _rows(blocks: Iterator[tuple[int, bytes]], path: Path) -> Iterator[list[Row]]:
    """The rows of blocks of lines. What is not plainly a row a line is looked at line by line, and refused there.

    A value cannot reach over a line here: every line begins with a brace, and a row has no object in it.
    """
    decoder = msgspec.json.Decoder(Row)
    at = 2
    for lines, block in blocks:
        plain = block.startswith(b"{") and block.count(b"\n{") == lines - 1
        try:
            rows = decoder.decode_lines(block) if plain else []
        except (msgspec.MsgspecError, UnicodeDecodeError):
            rows = []
        if len(rows) != lines:
            rows = [decode(decoder, raw, path, at + i) for i, raw in enumerate(block.split(b"\n"))]
        at += lines
        yield rows


def columns_of(trace: Trace) -> Columns:
    """A trace in memory as columns; its rows keep the rules."""
    batches = (trace.rows[first : first + _BATCH_ROWS] for first in range(0, len(trace.rows), _BATCH_ROWS))
    return _numbers(trace.header, _table(batches, "trace", 1))


def _table(batches: Iterator[list[Row]], path: Path | str, first_line: int) -> pa.Table:
    """Rows as a table, some at a time."""
    out, at = [], first_line
    for batch in batches:
        try:
            out.append(as_batch(batch))
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            for line, row in enumerate(batch, start=at):
                check_numbers(row, partial(TraceError, path, line))
            raise
        at += len(batch)
    return pa.Table.from_batches(out, schema())


def _checked(header: Header, table: pa.Table, path: Path, first_line: int) -> Columns:
    if not table.num_rows:
        raise TraceError(path, 2 if first_line == 2 else None, None, "there is a header but no request")
    pa.default_memory_pool().release_unused()
    columns = _numbers(header, table)
    pa.default_memory_pool().release_unused()
    bad = _first_bad(columns)
    if bad is not None:
        _explain(columns, bad, path, first_line)
    return columns


def _numbers(header: Header, table: pa.Table) -> Columns:
    """The rows, and names as row numbers (-1: not in the file)."""
    n = table.num_rows
    ids, prefix_of, parents = table["request_id"], table["prefix_of"], pc.list_flatten(table["parents"])
    places = _places(pa.chunked_array([*ids.chunks, *prefix_of.chunks, *parents.chunks], pa.string()), ids)
    return Columns(header, table, places[n : 2 * n], places[2 * n :], places[:n] != np.arange(n, dtype=np.int32))


def _places(names: Any, ids: Any) -> Int32s:
    """Row number of the first row of each name; -1 where there is none, or no such row."""
    places = pc.index_in(names, value_set=ids)
    found: Int32s = numbers_of(places, np.int32)
    found[~valid(places)] = -1
    return found


def _codes(names: Any) -> Int32s:
    """Number of each name, in the order in which they first occur."""
    return numbers_of(pa.chunked_array([names.combine_chunks().dictionary_encode().indices]), np.int32)


def _ints(column: Any) -> Ints:
    return numbers_of(column, np.int32).astype(np.int64)


def numbers_of(column: Any, dtype: Any) -> npt.NDArray[Any]:
    """Numbers without nulls (what stands for a null is anything). Of buffers: `to_numpy` would load pandas."""
    parts = [
        np.frombuffer(chunk.buffers()[1], dtype=dtype, count=len(chunk) + chunk.offset)[chunk.offset :]
        for chunk in ([column] if isinstance(column, pa.Array) else column.chunks)
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def valid(column: Any) -> Bools:
    """Where a column is not null."""
    out = np.ones(len(column), dtype=np.bool_)
    at = 0
    for chunk in [column] if isinstance(column, pa.Array) else column.chunks:
        if chunk.null_count:
            bits = np.frombuffer(chunk.buffers()[0], dtype=np.uint8)
            given = np.unpackbits(bits, bitorder="little", count=chunk.offset + len(chunk))
            out[at : at + len(chunk)] = given[chunk.offset :]
        at += len(chunk)
    return out


def _first_bad(columns: Columns) -> int | None:
    """The first row that breaks a rule; all rules of `trace.validate` at once."""
    n = len(columns)
    table, here = columns.table, np.arange(n, dtype=np.int64)
    inputs, prefixes = columns.input_tokens, columns.prefix_tokens
    bad = columns.again.copy()
    for name in ("request_id", "session_id", "kind"):
        bad |= _ints(pc.binary_length(table[name])) == 0
    for name in _NUMBERS:
        bad |= _ints(table[name]) < 0
    start_s, gap_s = columns.seconds("start_s"), columns.seconds("gap_s")
    for name, seconds in (("start_s", start_s), ("gap_s", gap_s)):
        given = valid(table[name])
        bad |= given & ~(np.abs(seconds) <= MOST_S)
    known = valid(table["start_s"])
    bad |= (known & (start_s < 0)) | ((columns.parent_counts == 0) & ~known)
    bad[columns.parent_row[_bad_parents(columns)]] = True
    named, donor = valid(table["prefix_of"]), columns.donor
    bad |= np.where(named, (donor < 0) | (donor >= here), prefixes != 0)
    bad |= named & (prefixes > inputs)
    bad |= named & (donor >= 0) & (prefixes > (inputs + columns.output_tokens)[donor])
    return int(np.argmax(bad)) if bad.any() else None


def _bad_parents(columns: Columns) -> Bools:
    """By pair (row, parent): the parent is not earlier, not of the same session, or named twice."""
    row, parent = columns.parent_row, columns.parent
    session = columns.session
    bad: Bools = (parent < 0) | (parent >= row) | (session[parent] != session[row])
    several = np.flatnonzero((columns.parent_counts > 1)[row])
    pairs = row[several] * (len(columns) + 1) + parent[several]
    twice = np.ones(len(pairs), dtype=np.bool_)
    twice[np.unique(pairs, return_index=True)[1]] = False
    bad[several[twice]] = True
    return bad


def _explain(columns: Columns, bad: int, path: Path, first_line: int) -> None:
    """Raise what the check of single rows says of a row."""
    row = columns.row(bad)
    names = list({row.request_id, *row.parents, *([row.prefix_of] if row.prefix_of is not None else [])})
    places = dict(zip(names, _places(pa.array(names), columns.table["request_id"]).tolist(), strict=True))
    earlier = {name: columns.row(int(place)) for name, place in places.items() if 0 <= place < bad}
    known = {name for name, place in places.items() if place >= 0}
    check_row(row, earlier, known, partial(TraceError, path, first_line + bad))
    raise AssertionError(f"row {bad} was found bad as a column and good as a row")
