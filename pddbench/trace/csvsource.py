"""CSV files as traces come in them: a header, then a request a line, without quoted line ends.

Lines are read one at a time, so that an error names its line; CRLF, a byte-order mark and a missing last line end
make no difference.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pddbench.errors import TraceError
from pddbench.text import printable
from pddbench.trace.source import INT32_MAX, numbered_lines


@dataclass(frozen=True)
class CsvLine:
    """One line of the file, its cells by column name."""

    path: Path
    number: int
    cells: dict[str, str]

    def fail(self, field: str, problem: str) -> TraceError:
        """The error to raise for a cell of this line."""
        return TraceError(self.path, self.number, field, problem)

    def text(self, field: str) -> str:
        """The cell without blanks around it; '' if the file lacks the column."""
        return self.cells.get(field, "").strip()

    def integer(self, field: str, default: int | None = None) -> int:
        """A whole number of at least 0 (tokens, a turn); `default` for an empty cell, if there is one."""
        text = self.text(field)
        if not text and default is not None:
            return default
        if not (text.isascii() and text.isdigit()):
            raise self.fail(field, f"{printable(text, 40)!r} is not a whole number of at least 0")
        if len(text) > 12 or int(text) > INT32_MAX:
            raise self.fail(field, f"{printable(text, 40)} is more than {INT32_MAX}")
        return int(text)

    def number_of(self, field: str) -> float | None:
        """A number of at least 0, None for an empty cell or a column that is not there."""
        if not (text := self.text(field)):
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise self.fail(field, f"{printable(text, 40)!r} is not a number of at least 0")
        return value

    def required_number(self, field: str) -> float:
        """Like `number_of`, but the cell must not be empty."""
        if (value := self.number_of(field)) is None:
            raise self.fail(field, "is empty")
        return value


def csv_lines(path: Path, required: Sequence[str]) -> Iterator[CsvLine]:
    """The lines after the header; `required` columns must be in it."""
    lines = numbered_lines(path)
    first, raw = next(lines)
    columns = [name.strip() for name in _cells(raw, path, first)]
    for name in required:
        if name not in columns:
            raise TraceError(path, first, name, f"the column is missing (found: {printable(', '.join(columns), 120)})")
    if len(set(columns)) < len(columns):
        raise TraceError(path, first, None, "the header names a column twice")
    number = 0
    for number, raw in lines:
        cells = _cells(raw, path, number)
        if len(cells) != len(columns):
            raise TraceError(path, number, None, f"{len(cells)} cells, but the header has {len(columns)} columns")
        yield CsvLine(path, number, dict(zip(columns, cells, strict=True)))
    if not number:
        raise TraceError(path, first + 1, None, "there is a header but no request")


def _cells(raw: bytes, path: Path, number: int) -> list[str]:
    try:
        return next(csv.reader([raw.decode()], strict=True))
    except (UnicodeDecodeError, csv.Error, StopIteration) as error:
        raise TraceError(path, number, None, f"is no line of CSV in UTF-8 ({printable(str(error), 120)})") from error
