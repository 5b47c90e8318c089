"""Bytes of a trace file: gzip and zstd by content, lines with their numbers, and decoding that says where it failed.

Nothing is skipped: an empty line in the middle, a Git LFS pointer, UTF-16 or binary data is a `TraceError`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import msgspec

from pddbench.errors import TraceError
from pddbench.text import printable

GZIP_MAGIC, ZSTD_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
UTF8_BOM = b"\xef\xbb\xbf"
INT32_MAX = 2**31 - 1
_SNIFF_BYTES = 4096
_BLOCK_BYTES = 1 << 20
_BLANK_START = re.compile(rb"\n\s")
MOST_LINE_BYTES, MOST_CONTENT_BYTES = 256 << 20, 2 << 30  # a small compressed file can hold a line without end
_T = TypeVar("_T")


def check_file(path: Path) -> None:
    """`path` is a readable, non-empty file; otherwise one sentence."""
    if not path.exists():
        raise TraceError(path, None, None, "no such file")
    if path.is_dir():
        raise TraceError(path, None, None, "this is a directory, not a trace file")
    try:
        with path.open("rb") as file:
            first = file.read(1)
    except OSError as error:
        raise TraceError(path, None, None, f"cannot be read ({error.strerror or error})") from error
    if not first:
        raise TraceError(path, None, None, "the file is empty")


def file_sha256(path: Path) -> str:
    """SHA-256 of the file as it lies on the disk (compressed, if it is)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_plain(path: Path) -> IO[bytes]:
    """The file's content, decompressed if it starts as gzip or zstd do (the suffix is not asked)."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(GZIP_MAGIC):
        return cast(IO[bytes], gzip.open(path, "rb"))
    if magic == ZSTD_MAGIC:
        import pyarrow as pa

        return cast(IO[bytes], io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")))
    return path.open("rb")


def head(path: Path, size: int = _SNIFF_BYTES) -> bytes:
    """The first `size` bytes of the content, without a UTF-8 byte-order mark; what is no text is refused."""
    try:
        with open_plain(path) as stream:
            start = stream.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise _broken_compression(path, None, error) from error
    if not start:
        raise TraceError(path, None, None, "the file is empty (nothing inside the compression)")
    if start.startswith(PARQUET_MAGIC):
        return start
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TraceError(path, 1, None, "the text is UTF-16; convert it to UTF-8")
    if start.startswith(b"version https://git-lfs"):
        raise TraceError(path, 1, None, "this is a Git LFS pointer, not the data; fetch it with `git lfs pull`")
    if b"\0" in start:
        raise TraceError(path, None, None, "binary data that is no known trace format")
    return start.removeprefix(UTF8_BOM)


def read_content(path: Path) -> bytes:
    """The whole decompressed content, without a byte-order mark."""
    try:
        with open_plain(path) as stream:
            content = stream.read(MOST_CONTENT_BYTES + 1)
            if len(content) > MOST_CONTENT_BYTES:
                raise TraceError(path, None, None, f"one document of more than {MOST_CONTENT_BYTES >> 20} MiB")
            return content.removeprefix(UTF8_BOM)
    except (OSError, EOFError, zlib.error) as error:
        raise _broken_compression(path, None, error) from error


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line without its end); empty lines are allowed at the end of the file only."""
    number = blank = 0
    try:
        with open_plain(path) as stream:
            for number, raw in enumerate(_bounded(stream), start=1):
                if len(raw) > MOST_LINE_BYTES:
                    raise TraceError(path, number, None, f"the line is longer than {MOST_LINE_BYTES >> 20} MiB")
                line = (raw.removeprefix(UTF8_BOM) if number == 1 else raw).strip()
                if not line:
                    blank = blank or number
                    continue
                if blank:
                    raise TraceError(path, blank, None, "the line is empty, though others follow")
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise _broken_compression(path, number + 1, error) from error
    if blank == 1:
        raise TraceError(path, 1, None, "the file holds nothing but empty lines")


def line_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines many at a time: their number, and they themselves (without the last end). The first line comes alone.

    What `numbered_lines` refuses is refused here in the same words; lines are stripped only where one begins with a
    blank.
    """
    number = 0
    try:
        with open_plain(path) as stream:
            first = stream.readline(MOST_LINE_BYTES + 1)
            while block := first or stream.read(_BLOCK_BYTES):
                if not first and not block.endswith(b"\n"):
                    block += stream.readline(MOST_LINE_BYTES + 1)
                lines = block.count(b"\n") + (not block.endswith(b"\n"))
                if len(block) > MOST_LINE_BYTES or block.isspace() or not _whole(block):
                    break  # the careful way has the sentence for what is wrong, or finds that nothing is
                yield lines, block.removesuffix(b"\n").removeprefix(b"" if number else UTF8_BOM)
                number += lines
                first = b""
            else:
                return
    except (OSError, EOFError, zlib.error) as error:
        raise _broken_compression(path, number + 1, error) from error
    for at, line in numbered_lines(path):
        if at > number:
            yield 1, line


def _whole(block: bytes) -> bool:
    """Whether every line of a block begins with something: none is empty."""
    return not block[:1].isspace() and _BLANK_START.search(block) is None


def _bounded(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines, the first that is too long cut off just behind the limit."""
    while line := stream.readline(MOST_LINE_BYTES + 1):
        yield line


def decode(
    decoder: msgspec.json.Decoder[_T],
    data: bytes | msgspec.Raw,
    path: Path,
    line: int | Callable[[], int],
    at: str = "",
) -> _T:
    """`data` as the decoder's type; a failure names file, line and field (`at`: the path above the data's own).

    `line` may be a function, called on failure only.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        field, problem = explain(str(error), at)
        raise TraceError(path, line if isinstance(line, int) else line(), field, problem) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not valid JSON ({printable(str(error))})"
        raise TraceError(path, line if isinstance(line, int) else line(), at or None, problem) from error


def decode_any(data: bytes, path: Path, line: int | None = None) -> Any:
    """`data` as whatever JSON it is: a line of the file, or (without `line`) all of it, the line then being found."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not valid JSON ({printable(str(error), 120)})"
        raise TraceError(path, _line_of_error(data) if line is None else line, None, problem) from error


def is_json(data: bytes) -> bool:
    """Is it one whole JSON value?"""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _line_of_error(document: bytes) -> int:
    """Line at which a document stops being JSON; 1 where only its meaning is wrong."""
    try:
        json.loads(document)
    except json.JSONDecodeError as error:
        return error.lineno
    except (UnicodeDecodeError, RecursionError):
        return 1
    return 1


def explain(message: str, at: str = "") -> tuple[str | None, str]:
    """The field and the problem in a message of msgspec."""
    where = re.search(r" - at `\$\.?([^`]*)`$", message)
    problem = message[: where.start()] if where else message
    named = re.search(r"(missing required|unknown) field `([^`]*)`", problem)
    parts = [at, where.group(1) if where else "", named.group(2) if named else ""]
    field = printable(".".join(part for part in parts if part), 120)
    if named:
        problem = "is missing" if named.group(1).startswith("missing") else "is not known here"
    return field or None, printable(problem[:1].lower() + problem[1:])


def _broken_compression(path: Path, line: int | None, error: Exception) -> TraceError:
    return TraceError(path, line, None, f"cannot be read or decompressed ({printable(str(error))})")
